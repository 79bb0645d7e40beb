// dropout, per element and per sample.
#include "core/graph/ops/random.h"

#include "core/abi/ops.h"
#include "core/graph/ops/families.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace ops {
namespace {

Value DropoutNode(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key, bool per_sample,
                  Where where) {
  if (p == 0) return x;
  if (p < 0 || p >= 1) ThrowBuildError("dropout", "the probability must lie in [0, 1)", {x}, where);
  sy_dropout_attributes attributes{};
  attributes.key = key;
  attributes.p = p;
  attributes.per_sample = per_sample;
  return x.graph().Add("dropout", {x, sample_ids, step}, Attributes(attributes), {}, where)[0];
}

}  // namespace

Value Dropout(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key, Where where) {
  return DropoutNode(x, sample_ids, step, p, key, false, where);
}
Value DropPath(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key, Where where) {
  return DropoutNode(x, sample_ids, step, p, key, true, where);
}

}  // namespace ops

namespace {

std::vector<TensorType> DropoutTypes(const Signature& call) {
  call.RequireInputs(3);
  call.Require(call.rank(1) == 1 && call[1].dtype == DType::kI32 && call.dim(1, 0) > 0 &&
                   call[0].elements() % call.dim(1, 0) == 0,
               "x does not hold a whole number of elements per sample");
  call.Require(call[2] == TensorType{DType::kI32, {2}}, "step must be (2) i32");
  return {call[0]};
}

std::vector<Value> DropoutGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  const auto dx = graph.Add("dropout", {dy[0], graph.value(node.inputs[1]), graph.value(node.inputs[2])},
                            node.attributes, {}, node.where, node.name + "/backward");
  return {dx[0], {}, {}};
}

// Samples are told apart by their ids, so that a part may hold any of them. The elements of a sample are counted from
// its first on: a part of them would need to know where it lies in the whole sample, which the attributes do not say;
// so that they stay whole but where one number decides on the whole sample.
std::string DropoutFactors(const Graph& graph, const Node& node) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  const bool per_sample = node.attributes.as<sy_dropout_attributes>().per_sample != 0;
  const bool rows = !x.empty() && x[0] % graph.type(node.inputs[1]).shape[0] == 0;  // else samples cross them
  std::vector<std::string> names(x.size(), "_");
  if (rows) names[0] = per_sample ? "(s r)" : "(s _)";
  for (size_t axis = 1; rows && per_sample && axis < x.size(); ++axis) names[axis] = fmt::format("x{}", axis);
  return fmt::format("{0}, {1}, _ -> {0}", fmt::join(names, " "), rows ? "s" : "_");
}

}  // namespace

std::vector<OpDefinition> RandomOps() {
  return {{.name = "dropout",
           .summary = "zeroes elements or whole samples at random",
           .infer = DropoutTypes,
           .gradient = DropoutGradient,
           .factors = {"(s _) _..., s, _ -> (s _) _...", DropoutFactors}}};
}

}  // namespace switchyard
