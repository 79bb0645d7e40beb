// reduce and squared_norm.
#include "core/graph/ops/reduction.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"

namespace switchyard {
namespace ops {

Value Reduce(const Value& x, int reduction, uint32_t axes, float scale, bool keep, Where where) {
  if (axes == 0 || (axes >> x.rank()) != 0) ThrowBuildError("reduce", "axes outside the tensor", {x}, where);
  Shape shape;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool reduced = axes >> axis & 1;
    if (!reduced) shape.push_back(x.dim(axis));
    if (reduced && keep) shape.push_back(1);
  }
  if (shape.empty()) shape = {1};
  sy_reduce_attributes attributes{};
  attributes.reduction = reduction;
  attributes.axes = axes;
  attributes.scale = scale;
  return x.graph().Add("reduce", {x}, {{x.dtype(), shape}}, Attributes(attributes), where)[0];
}

namespace {
uint32_t AllAxes(const Value& x) { return (1u << x.rank()) - 1; }
}  // namespace

Value Sum(const Value& x, Where where) { return Reduce(x, SY_REDUCE_SUM, AllAxes(x), 1, false, where); }
Value Mean(const Value& x, Where where) {
  return Reduce(x, SY_REDUCE_SUM, AllAxes(x), 1.0f / static_cast<float>(x.type().elements()), false, where);
}

Value SquaredNorm(const std::vector<Value>& tensors, Where where) {
  return tensors.at(0).graph().Add("squared_norm", tensors, {{DType::kF32, {1}}}, {}, where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> ReduceGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  const auto a = node.attributes.as<sy_reduce_attributes>();
  const Value x = graph.value(node.inputs[0]);
  Shape kept = x.shape();
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (a.axes >> axis & 1) kept[axis] = 1;
  }
  const Value g = ops::Scale(ops::Reshape(dy[0], kept), a.scale);
  switch (a.reduction) {
    case SY_REDUCE_SUM:
      return {ops::BroadcastTo(g, x.shape())};
    case SY_REDUCE_SUM_OF_SQUARES:
      return {ops::Scale(ops::Mul(x, g), 2)};
    default: {  // extrema: every position that equals the result takes the gradient, divided among ties as torch.amax
                // does
      const Value y = ops::Scale(ops::Reshape(graph.value({id, 0}), kept), 1 / a.scale);
      const Value hit = ops::Binary(SY_PW_EQUAL, x, y);
      return {ops::Mul(ops::Div(hit, ops::Reduce(hit, SY_REDUCE_SUM, a.axes, 1, true)), g)};
    }
  }
}

std::vector<Value> SquaredNormGradient(Graph& graph, int id, const std::vector<Value>& dy,
                                       const std::vector<bool>& wanted) {
  std::vector<Value> gradients(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Value t = graph.value(graph.node(id).inputs[i]);
    if (wanted[i]) gradients[i] = ops::Scale(ops::Mul(t, ops::Cast(dy[0], t.dtype())), 2);
  }
  return gradients;
}

std::vector<Value> SquaredNormDecompose(Graph&, const Node&, const std::vector<Value>& inputs) {
  Value total;
  for (const Value& t : inputs) {
    const Value flat = ops::Cast(ops::Reshape(t, {t.type().elements()}), DType::kF32);
    const Value part = ops::Reduce(flat, SY_REDUCE_SUM_OF_SQUARES, 1);
    total = total ? ops::Add(total, part) : part;
  }
  return {total};
}

double InputElements(const Graph& graph, const Node& node) {
  double count = 0;
  for (const Ref& input : node.inputs) count += static_cast<double>(graph.type(input).elements());
  return count;
}

}  // namespace

std::vector<OpDefinition> ReductionOps() {
  return {{"reduce", "sum, max, min, sum of squares over axes", ReduceGradient, nullptr, InputElements},
          {"squared_norm", "sum of squares over many tensors", SquaredNormGradient, SquaredNormDecompose,
           [](const Graph& g, const Node& n) { return 2 * InputElements(g, n); }}};
}

}  // namespace switchyard
