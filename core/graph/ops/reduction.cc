// reduce and squared_norm.
#include "core/graph/ops/reduction.h"

#include "core/graph/factor_lines.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

Shape Reduced(const Shape& x, uint32_t axes, bool keep) {
  Shape shape;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    const bool reduced = axes >> axis & 1;
    if (!reduced) shape.push_back(x[axis]);
    if (reduced && keep) shape.push_back(1);
  }
  return shape.empty() ? Shape{1} : shape;
}

// Without the axes, (1) where none is left, or, where that is asked for, with each at extent 1, or without any. What
// comes of halves may be asked for in f32.
std::vector<TensorType> ReduceTypes(const Signature& call) {
  call.RequireInputs(1);
  const auto& a = call.attributes.as<sy_reduce_attributes>();
  const uint32_t axes = a.axes;
  call.Require(a.reduction >= SY_REDUCE_SUM && a.reduction <= SY_REDUCE_SUM_OF_SQUARES,
               [&] { return fmt::format("there is no reduction {}", a.reduction); });
  call.Require(axes != 0 && (axes >> call.rank(0)) == 0, "axes outside the tensor");
  const Shape dropped = Reduced(call.shape(0), axes, false), kept = Reduced(call.shape(0), axes, true);
  const Shape shape = call.wanted.shape.value_or(dropped);
  const bool none_left = shape.empty() && Elements(dropped) == 1 && axes == (1u << call.rank(0)) - 1;
  call.Require(shape == dropped || shape == kept || none_left,
               [&] { return fmt::format("{} is no result of these axes", ToString(shape)); });
  const DType dtype = call.DTypeOr(call[0].dtype);
  call.Require(dtype == call[0].dtype || (SizeOf(call[0].dtype) == 2 && dtype == DType::kF32),
               "only sums over halves may be of another dtype, f32");
  return {{dtype, shape}};
}

std::vector<TensorType> SquaredNormTypes(const Signature& call) {
  call.Require(!call.inputs.empty(), "there is nothing to measure");
  return {{DType::kF32, {1}}};
}

}  // namespace

namespace ops {

Value Reduce(const Value& x, int reduction, uint32_t axes, float scale, bool keep, Where where) {
  sy_reduce_attributes attributes{};
  attributes.reduction = reduction;
  attributes.axes = axes;
  attributes.scale = scale;
  Wanted wanted;
  if (keep) wanted.shape = Reduced(x.shape(), axes, true);
  return x.graph().Add("reduce", {x}, Attributes(attributes), wanted, where)[0];
}

namespace {
// Over everything, of which a scalar has one element.
Value SumOfAll(const Value& x, float scale, Where where) {
  const Value all = x.rank() > 0 ? x : Reshape(x, {1}, where);
  return Reduce(all, SY_REDUCE_SUM, (1u << all.rank()) - 1, scale, false, where);
}
}  // namespace

Value SumOfRows(const Value& x, Where where) {
  const Value wide = Cast(x, DType::kF32, where);
  return x.rank() == 1 ? wide : Reduce(wide, SY_REDUCE_SUM, (1u << (x.rank() - 1)) - 1, 1, false, where);
}
Value Sum(const Value& x, Where where) { return SumOfAll(x, 1, where); }
Value Mean(const Value& x, Where where) { return SumOfAll(x, 1.0f / static_cast<float>(x.type().elements()), where); }

Value SquaredNorm(const std::vector<Value>& tensors, Where where) {
  return tensors.at(0).graph().Add("squared_norm", tensors, {}, {}, where)[0];
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
  const Value g = ops::Cast(ops::Scale(ops::Reshape(dy[0], kept), a.scale), x.dtype());
  switch (a.reduction) {
    case SY_REDUCE_SUM:
      return {ops::BroadcastTo(g, x.shape())};
    case SY_REDUCE_SUM_OF_SQUARES:
      return {ops::Scale(ops::Mul(x, g), 2)};
    default: {  // extrema: every position that equals the result takes the gradient, divided among ties as torch.amax
                // does
      // What is scaled is rounded and cannot be undone: it is computed again.
      const Value y = a.scale == 1 ? ops::Reshape(graph.value({id, 0}), kept)
                                   : ops::Reduce(x, a.reduction, a.axes, 1, true, node.where);
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
    if (!wanted[i]) continue;
    const Value g = t.rank() == 0 ? ops::Reshape(dy[0], {}) : dy[0];
    gradients[i] = ops::Scale(ops::Mul(t, ops::Cast(g, t.dtype())), 2);
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

// A sum over an axis may be taken in parts; what is largest may not be added.
std::string ReduceFactors(const Graph& graph, const Node& node) {
  const auto& a = node.attributes.as<sy_reduce_attributes>();
  const bool sum = a.reduction == SY_REDUCE_SUM || a.reduction == SY_REDUCE_SUM_OF_SQUARES;
  const size_t rank = graph.type(node.inputs[0]).shape.size();
  const bool keeps = node.outputs[0].shape.size() == rank;
  std::vector<std::string> from, to;
  for (size_t axis = 0; axis < rank; ++axis) {
    const bool reduced = a.axes >> axis & 1;
    from.push_back(reduced && !sum ? "_" : fmt::format("x{}", axis));
    if (!reduced) to.push_back(from.back());
    if (reduced && keeps) to.push_back("1");
  }
  return fmt::format("{} -> {}", fmt::join(from, " "), fmt::join(to, " "));
}

// Each tensor may be split; the others are counted by one part alone.
std::string SquaredNormFactors(const Graph& graph, const Node& node) {
  std::vector<std::string> tensors;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    tensors.push_back("+ " + AxisNames(fmt::format("t{}_", i), graph.type(node.inputs[i]).shape.size()));
  return fmt::format("{} -> 1", fmt::join(tensors, ", "));
}

double InputElements(const Graph& graph, const Node& node) {
  double count = 0;
  for (const Ref& input : node.inputs) count += static_cast<double>(graph.type(input).elements());
  return count;
}

}  // namespace

std::vector<OpDefinition> ReductionOps() {
  return {{.name = "reduce",
           .summary = "sum, max, min, sum of squares over axes",
           .infer = ReduceTypes,
           .gradient = ReduceGradient,
           .decompose = ops::CastSums,
           .flops = InputElements,
           .traits = {.wide_sums = true, .precision = Precision::kFull},
           .factors = {"x y -> x", ReduceFactors}},
          {.name = "squared_norm",
           .summary = "sum of squares over many tensors",
           .infer = SquaredNormTypes,
           .gradient = SquaredNormGradient,
           .decompose = SquaredNormDecompose,
           .flops = [](const Graph& g, const Node& n) { return 2 * InputElements(g, n); },
           .traits = {.precision = Precision::kFull},
           .factors = {"+..., +... -> 1", SquaredNormFactors}}};
}

}  // namespace switchyard
