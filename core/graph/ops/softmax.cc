// softmax and its gradient.
#include "core/graph/ops/softmax.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace ops {

Value Softmax(const Value& x, std::source_location where) { return x.graph().Add("softmax", {x}, {}, {}, where)[0]; }

}  // namespace ops

namespace {

std::vector<TensorType> SoftmaxTypes(const Signature& call) {
  call.RequireInputs(1);
  call.Require(call.rank(0) >= 1, "x must have an axis");
  return {call[0]};
}

std::vector<TensorType> SoftmaxBackwardTypes(const Signature& call) {
  call.RequireInputs(2);
  call.Require(call.shape(0) == call.shape(1), "y and dy differ in shape");
  return {call[0]};
}

std::vector<Value> SoftmaxGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Value y = graph.value({id, 0});
  const Node node = graph.node(id);
  const auto dx =
      graph.Add("softmax_backward", {y, ops::Cast(dy[0], y.dtype())}, {}, {}, node.where, node.name + "/backward");
  graph.mutable_node(dx[0].ref().node).forward = id;
  return dx;
}

std::vector<Value> SoftmaxDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const Value x = ops::Cast(inputs[0], DType::kF32);
  const uint32_t last = 1u << (x.rank() - 1);
  const Value e = ops::Unary(SY_PW_EXP, ops::Sub(x, ops::Reduce(x, SY_REDUCE_MAX, last, 1, true)));
  return {ops::Cast(ops::Div(e, ops::Reduce(e, SY_REDUCE_SUM, last, 1, true)), node.outputs[0].dtype)};
}

std::vector<Value> SoftmaxBackwardDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const Value y = ops::Cast(inputs[0], DType::kF32), dy = ops::Cast(inputs[1], DType::kF32);
  const Value dot = ops::Reduce(ops::Mul(y, dy), SY_REDUCE_SUM, 1u << (y.rank() - 1), 1, true);
  return {ops::Cast(ops::Mul(y, ops::Sub(dy, dot)), node.outputs[0].dtype)};
}

double SoftmaxFlops(const Graph&, const Node& node) { return 5.0 * static_cast<double>(node.outputs[0].elements()); }

}  // namespace

std::vector<OpDefinition> SoftmaxOps() {
  return {{.name = "softmax",
           .summary = "softmax over the last axis",
           .infer = SoftmaxTypes,
           .gradient = SoftmaxGradient,
           .decompose = SoftmaxDecompose,
           .flops = SoftmaxFlops,
           .traits = {.precision = Precision::kFull},
           .factors = "... _ -> ... _"},
          {.name = "softmax_backward",
           .summary = "its gradient",
           .infer = SoftmaxBackwardTypes,
           .decompose = SoftmaxBackwardDecompose,
           .flops = SoftmaxFlops,
           .factors = "... _, ... _ -> ... _"}};
}

}  // namespace switchyard
