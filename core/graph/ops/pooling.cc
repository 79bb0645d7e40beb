// pool, resize and their gradients.
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/spatial.h"

namespace switchyard {
namespace {

Shape PoolShape(const Signature& call) {
  const auto& a = call.attributes.as<sy_pool_attributes>();
  const Shape& x = call.shape(0);
  CheckSpatialRank(call, a.spatial_rank, static_cast<int>(x.size()));
  Shape y = {x[0]};
  for (int i = 0; i < a.spatial_rank; ++i) {
    call.Require(a.stride[i] > 0 && a.kernel[i] > 0, "kernel and stride must be 1 or more");
    y.push_back(WindowExtent(x[i + 1], a.kernel[i], a.stride[i], 1, a.before[i], a.after[i]));
    call.Require(y.back() >= 1, "the window is larger than the padded input");
  }
  y.push_back(x.back());
  return y;
}

std::vector<TensorType> PoolTypes(const Signature& call) {
  call.RequireInputs(1);
  return {{call[0].dtype, PoolShape(call)}};
}

std::vector<TensorType> PoolBackwardTypes(const Signature& call) {
  call.RequireInputs(2);
  call.Require(call.shape(1) == PoolShape(call), "dy must have the shape of the pooled x");
  return {call[0]};
}

// Of either direction: the size is asked for, batch and channels stay.
std::vector<TensorType> ResizeTypes(const Signature& call) {
  call.RequireInputs(1);
  const auto& a = call.attributes.as<sy_resize_attributes>();
  CheckSpatialRank(call, a.spatial_rank, call.rank(0));
  call.Require(a.mode == SY_RESIZE_NEAREST || a.mode == SY_RESIZE_LINEAR, "the mode is nearest or linear");
  const Shape &from = call.shape(0), &to = call.WantedShape();
  call.Require(to.size() == from.size() && to[0] == from[0] && to.back() == from.back() && Elements(to) > 0,
               "one size per spatial axis is needed");
  return {{call[0].dtype, to}};
}

}  // namespace

namespace ops {

Value Pool(const Value& x, const PoolOptions& options, Where where) {
  sy_pool_attributes a{};
  a.spatial_rank = SpatialRank("pool", x, where);
  a.average = options.average;
  a.count_include_pad = options.count_include_pad;
  for (int i = 0; i < a.spatial_rank; ++i) {
    a.kernel[i] = options.kernel;
    a.stride[i] = options.stride;
    a.before[i] = a.after[i] = options.padding;
  }
  return x.graph().Add("pool", {x}, Attributes(a), {}, where)[0];
}

Value Resize(const Value& x, const Shape& size, int mode, bool align_corners, Where where) {
  sy_resize_attributes a{};
  a.spatial_rank = SpatialRank("resize", x, where);
  a.mode = mode;
  a.align_corners = align_corners;
  Shape shape = {x.dim(0)};
  shape.insert(shape.end(), size.begin(), size.end());
  shape.push_back(x.dim(-1));
  return x.graph().Add("resize", {x}, Attributes(a), {.shape = shape}, where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> PoolGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  const Value x = graph.value(node.inputs[0]);
  const auto dx = graph.Add("pool_backward", {x, dy[0]}, node.attributes, {}, node.where, node.name + "/backward");
  graph.mutable_node(dx[0].ref().node).forward = id;
  return dx;
}

std::vector<Value> ResizeGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  return graph.Add("resize_backward", {dy[0]}, node.attributes, {.shape = graph.type(node.inputs[0]).shape}, node.where,
                   node.name + "/backward");
}

double PoolFlops(const Node& node, const TensorType& y) {
  const auto a = node.attributes.as<sy_pool_attributes>();
  double window = 1;
  for (int i = 0; i < a.spatial_rank; ++i) window *= a.kernel[i];
  return window * static_cast<double>(y.elements());
}

}  // namespace

std::vector<OpDefinition> PoolingOps() {
  return {
      {.name = "pool",
       .summary = "max and average pooling",
       .infer = PoolTypes,
       .gradient = PoolGradient,
       .flops = [](const Graph&, const Node& n) { return PoolFlops(n, n.outputs[0]); },
       .precision =
           [](const Node& n) {
             const bool average = n.attributes.as<sy_pool_attributes>().average != 0;
             return average ? Precision::kWidest : Precision::kSelects;
           },
       .factors = "n _... c -> n _... c"},
      {.name = "pool_backward",
       .summary = "its gradient",
       .infer = PoolBackwardTypes,
       .flops = [](const Graph& g, const Node& n) { return PoolFlops(n, g.type(n.inputs[1])); },
       .factors = "n _... c, n _... c -> n _... c"},
      {.name = "resize",
       .summary = "nearest and linear interpolation",
       .infer = ResizeTypes,
       .gradient = ResizeGradient,
       .precision =
           [](const Node& n) {
             const bool nearest = n.attributes.as<sy_resize_attributes>().mode == SY_RESIZE_NEAREST;
             return nearest ? Precision::kSelects : Precision::kBetween;
           },
       .factors = "n _... c -> n _... c"},
      {.name = "resize_backward", .summary = "its gradient", .infer = ResizeTypes, .factors = "n _... c -> n _... c"}};
}

}  // namespace switchyard
