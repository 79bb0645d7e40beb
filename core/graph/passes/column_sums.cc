// The gradient of a bias, which sums the rows of dt, beside what makes dt: the gradient of the activation behind the
// product, or that of the norm before the residual sum in which the product ends. Left with the weight's gradient
// (matmul_fusion.cc), it may cost a reading of dt of its own.
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/kernel_fusion.h"

namespace switchyard {
namespace {

// Does it sum all rows of its input 0, by itself or beside a weight's gradient?
bool SumsRows(const Graph& graph, const Node& node) {
  const size_t rank = graph.type(node.inputs[0]).shape.size();
  if (node.op == "matmul") {
    const auto& a = node.attributes.as<sy_matmul_attributes>();
    return a.bias_gradient && a.transpose_a && rank == 2;
  }
  if (node.op != "reduce" || rank < 2) return false;
  const auto& a = node.attributes.as<sy_reduce_attributes>();
  return a.reduction == SY_REDUCE_SUM && a.axes == (1u << (rank - 1)) - 1 && a.scale == 1;
}

// Who sums the rows of `ref`, which have this width, through views that leave them whole and through casts.
void CollectSums(const Pattern& pattern, Ref ref, int64_t width, std::vector<int>* sums) {
  const Graph& graph = pattern.graph;
  if (graph.type(ref).shape.empty() || graph.type(ref).shape.back() != width) return;
  for (const int user : pattern.users[ref.node]) {
    const Node& reader = graph.node(user);
    if (reader.inputs[0] != ref) continue;
    if (SumsRows(graph, reader)) sums->push_back(user);
    if (TraitsOf(reader.op).view || ops::IsCast(graph, reader)) CollectSums(pattern, {user, 0}, width, sums);
  }
}

// The attributes of what makes dt with its sums; none where it is something else.
std::optional<Attributes> WithSums(const Node& node) {
  if (node.op == "layer_norm_backward") {
    auto a = node.attributes.as<sy_layer_norm_attributes>();
    a.column_sums = 1;
    return Attributes(a);
  }
  if (node.op != "matmul" || node.outputs.size() != 1) return std::nullopt;
  auto a = node.attributes.as<sy_matmul_attributes>();
  if (!a.activation_gradient) return std::nullopt;
  a.column_sums = 1;
  return Attributes(a);
}

}  // namespace

Graph SumColumnsWhereTheyAreMade(Graph source, const CanPrepare& can_prepare) {
  const Pattern pattern(source);
  std::vector<Value> sum(source.size());  // of a node that sums rows: what another one gives now
  const auto rule = [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    const Wanted wanted = {.dtypes = {node.outputs.empty() ? DType::kF32 : node.outputs[0].dtype}};
    if (sum[id] && node.op == "reduce")
      return std::vector{ops::Reshape(ops::Cast(sum[id], wanted.dtypes[0]), node.outputs[0].shape, node.where)};
    if (sum[id]) {
      auto a = node.attributes.as<sy_matmul_attributes>();
      a.bias_gradient = 0;
      return std::vector{ops::MatmulNode(r.Map(node.inputs), a, wanted.dtypes[0], node.where, node.name)[0], sum[id]};
    }
    const std::optional<Attributes> more = WithSums(node);
    if (!more) return std::nullopt;
    std::vector<int> summing;
    CollectSums(pattern, {id, 0}, node.outputs[0].shape.back(), &summing);
    if (summing.empty() || !Preparable(can_prepare, node.op, source, node.inputs, *more, wanted)) return std::nullopt;
    const auto made = r.result.Add(node.op, r.Map(node.inputs), *more, wanted, node.where, node.name);
    for (const int reader : summing) sum[reader] = made.back();
    return std::vector<Value>(made.begin(), made.end() - 1);
  };
  return RemoveDeadNodes(Rewrite("column sums", source, rule));
}

}  // namespace switchyard
