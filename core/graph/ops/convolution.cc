// convolution, pool, resize and their gradients.
#include "core/graph/ops/convolution.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "fmt/format.h"

namespace switchyard {
namespace ops {
namespace {

int64_t WindowExtent(int64_t n, int kernel, int stride, int dilation, int before, int after) {
  return (n + before + after - int64_t{dilation} * (kernel - 1) - 1) / stride + 1;
}

int SpatialRank(const char* op, const Value& x, Where where) {
  const int spatial = x.rank() - 2;
  if (spatial != 2 && spatial != 3)
    ThrowBuildError(op, "the input must be (N, H, W, C) or (N, D, H, W, C)", {x}, where);
  return spatial;
}

}  // namespace

Value Convolution(const Value& x, const Value& weight, const Value& bias, const WindowOptions& options, Where where) {
  const int spatial = SpatialRank("convolution", x, where);
  if (weight.rank() != x.rank() || weight.dim(-1) * options.groups != x.dim(-1) ||
      weight.dim(0) % options.groups != 0) {
    ThrowBuildError("convolution", fmt::format("weight must be (K, kernel, C/groups) with {} groups", options.groups),
                    {x, weight}, where);
  }
  sy_convolution_attributes a{};
  a.spatial_rank = spatial;
  a.groups = options.groups;
  a.bias = static_cast<bool>(bias);
  Shape shape = {x.dim(0)};
  for (int i = 0; i < spatial; ++i) {
    a.stride[i] = options.stride;
    a.dilation[i] = options.dilation;
    a.before[i] = a.after[i] = options.padding;
    shape.push_back(WindowExtent(x.dim(i + 1), static_cast<int>(weight.dim(i + 1)), options.stride, options.dilation,
                                 options.padding, options.padding));
    if (shape.back() < 1)
      ThrowBuildError("convolution", "the kernel is larger than the padded input", {x, weight}, where);
  }
  shape.push_back(weight.dim(0));
  std::vector<Value> inputs = {x, weight};
  if (bias) inputs.push_back(bias);
  return x.graph().Add("convolution", inputs, {{x.dtype(), shape}}, Attributes(a), where)[0];
}

Value Pool(const Value& x, const PoolOptions& options, Where where) {
  const int spatial = SpatialRank("pool", x, where);
  sy_pool_attributes a{};
  a.spatial_rank = spatial;
  a.average = options.average;
  a.count_include_pad = options.count_include_pad;
  Shape shape = {x.dim(0)};
  for (int i = 0; i < spatial; ++i) {
    a.kernel[i] = options.kernel;
    a.stride[i] = options.stride;
    a.before[i] = a.after[i] = options.padding;
    shape.push_back(WindowExtent(x.dim(i + 1), options.kernel, options.stride, 1, options.padding, options.padding));
    if (shape.back() < 1) ThrowBuildError("pool", "the window is larger than the padded input", {x}, where);
  }
  shape.push_back(x.dim(-1));
  return x.graph().Add("pool", {x}, {{x.dtype(), shape}}, Attributes(a), where)[0];
}

Value Resize(const Value& x, const Shape& size, int mode, bool align_corners, Where where) {
  const int spatial = SpatialRank("resize", x, where);
  if (static_cast<int>(size.size()) != spatial)
    ThrowBuildError("resize", "one size per spatial axis is needed", {x}, where);
  sy_resize_attributes a{};
  a.spatial_rank = spatial;
  a.mode = mode;
  a.align_corners = align_corners;
  Shape shape = {x.dim(0)};
  shape.insert(shape.end(), size.begin(), size.end());
  shape.push_back(x.dim(-1));
  return x.graph().Add("resize", {x}, {{x.dtype(), shape}}, Attributes(a), where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> ConvolutionGradient(Graph& graph, int id, const std::vector<Value>& dy,
                                       const std::vector<bool>& wanted) {
  const Node node = graph.node(id);
  auto a = node.attributes.as<sy_convolution_attributes>();
  const bool bias = a.bias;
  a.bias = 0;
  const Value x = graph.value(node.inputs[0]), w = graph.value(node.inputs[1]);
  std::vector<Value> gradients(node.inputs.size());
  if (wanted[0])
    gradients[0] = graph.Add("convolution_backward_data", {dy[0], w}, {x.type()}, Attributes(a), node.where,
                             node.name + "/backward_data")[0];
  if (wanted[1])
    gradients[1] = graph.Add("convolution_backward_weights", {x, dy[0]}, {w.type()}, Attributes(a), node.where,
                             node.name + "/backward_weights")[0];
  if (bias && wanted[2]) gradients[2] = ops::Reduce(dy[0], SY_REDUCE_SUM, (1u << (dy[0].rank() - 1)) - 1);
  return gradients;
}

std::vector<Value> PoolGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  const Value x = graph.value(node.inputs[0]);
  const auto dx =
      graph.Add("pool_backward", {x, dy[0]}, {x.type()}, node.attributes, node.where, node.name + "/backward");
  graph.mutable_node(dx[0].ref().node).forward = id;
  return dx;
}

std::vector<Value> ResizeGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  return graph.Add("resize_backward", {dy[0]}, {graph.type(node.inputs[0])}, node.attributes, node.where,
                   node.name + "/backward");
}

// Two FLOPs for each product of an output element with a weight: 2·|y|·|w|/K.
double ConvolutionFlops(const Graph& graph, const Node& node) {
  const bool data = node.op == "convolution_backward_data", weights = node.op == "convolution_backward_weights";
  const TensorType& w = weights ? node.outputs[0] : graph.type(node.inputs[1]);
  const TensorType& y = data ? graph.type(node.inputs[0]) : weights ? graph.type(node.inputs[1]) : node.outputs[0];
  return 2.0 * static_cast<double>(y.elements()) * static_cast<double>(w.elements()) / static_cast<double>(w.shape[0]);
}

double PoolFlops(const Graph& graph, const Node& node) {
  const auto a = node.attributes.as<sy_pool_attributes>();
  double window = 1;
  for (int i = 0; i < a.spatial_rank; ++i) window *= a.kernel[i];
  const TensorType& y = node.op == "pool" ? node.outputs[0] : graph.type(node.inputs[1]);
  return window * static_cast<double>(y.elements());
}

}  // namespace

std::vector<OpDefinition> ConvolutionOps() {
  return {{"convolution", "2-D and 3-D convolution, channels last", ConvolutionGradient, nullptr, ConvolutionFlops},
          {"convolution_backward_data", "its gradient for the input", nullptr, nullptr, ConvolutionFlops},
          {"convolution_backward_weights", "its gradient for the weight", nullptr, nullptr, ConvolutionFlops},
          {"pool", "max and average pooling", PoolGradient, nullptr, PoolFlops},
          {"pool_backward", "its gradient", nullptr, nullptr, PoolFlops},
          {"resize", "nearest and linear interpolation", ResizeGradient, nullptr, nullptr},
          {"resize_backward", "its gradient", nullptr, nullptr, nullptr}};
}

}  // namespace switchyard
