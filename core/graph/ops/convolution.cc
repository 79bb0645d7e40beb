// convolution and its gradients.
#include "core/graph/ops/convolution.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/spatial.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// y (N, spatial', K) of a convolution of x (N, spatial, C) with w (K, kernel, C/groups).
Shape ConvolutionShape(const Signature& call, const Shape& x, const Shape& w) {
  const auto& a = call.attributes.as<sy_convolution_attributes>();
  CheckSpatialRank(call, a.spatial_rank, static_cast<int>(x.size()));
  call.Require(a.groups > 0 && w.size() == x.size() && w.back() * a.groups == x.back() && w[0] % a.groups == 0,
               [&] { return fmt::format("weight must be (K, kernel, C/groups) with {} groups", a.groups); });
  Shape y = {x[0]};
  for (int i = 0; i < a.spatial_rank; ++i) {
    call.Require(a.stride[i] > 0 && a.dilation[i] > 0, "stride and dilation must be 1 or more");
    y.push_back(WindowExtent(x[i + 1], w[i + 1], a.stride[i], a.dilation[i], a.before[i], a.after[i]));
    call.Require(y.back() >= 1, "the kernel is larger than the padded input");
  }
  y.push_back(w[0]);
  return y;
}

std::vector<TensorType> ConvolutionTypes(const Signature& call) {
  const bool bias = call.attributes.as<sy_convolution_attributes>().bias != 0;
  call.RequireInputs(bias ? 3 : 2);
  if (bias) call.Require(call.shape(2) == Shape{call.dim(1, 0)}, "bias must be (K)");
  return {{call[0].dtype, ConvolutionShape(call, call.shape(0), call.shape(1))}};
}

// dy, w → dx. Several extents of x give the same y, so its shape is asked for.
std::vector<TensorType> ConvolutionDataTypes(const Signature& call) {
  call.RequireInputs(2);
  const Shape& x = call.WantedShape();
  call.Require(ConvolutionShape(call, x, call.shape(1)) == call.shape(0),
               [&] { return fmt::format("{} does not give a result of dy's shape", ToString(x)); });
  return {{call[0].dtype, x}};
}

// x, dy → dw, whose shape is asked for.
std::vector<TensorType> ConvolutionWeightTypes(const Signature& call) {
  call.RequireInputs(2);
  const Shape& w = call.WantedShape();
  call.Require(ConvolutionShape(call, call.shape(0), w) == call.shape(1),
               [&] { return fmt::format("{} does not give a result of dy's shape", ToString(w)); });
  return {{call.DTypeOr(call[0].dtype), w}};
}

}  // namespace

namespace ops {
namespace {

sy_convolution_attributes Window(int spatial_rank, const WindowOptions& options) {
  sy_convolution_attributes a{};
  a.spatial_rank = spatial_rank;
  a.groups = options.groups;
  for (int i = 0; i < spatial_rank; ++i) {
    a.stride[i] = options.stride;
    a.dilation[i] = options.dilation;
    a.before[i] = a.after[i] = options.padding;
  }
  return a;
}

}  // namespace

Value Convolution(const Value& x, const Value& weight, const Value& bias, const WindowOptions& options, Where where) {
  sy_convolution_attributes a = Window(SpatialRank("convolution", x, where), options);
  a.bias = static_cast<bool>(bias);
  std::vector<Value> inputs = {x, weight};
  if (bias) inputs.push_back(bias);
  return x.graph().Add("convolution", inputs, Attributes(a), {}, where)[0];
}

Value TransposedConvolution(const Value& x, const Value& weight, const WindowOptions& o, int output_padding,
                            Where where) {
  const int spatial = SpatialRank("transposed convolution", x, where);
  if (weight.rank() != x.rank() || weight.dim(0) != x.dim(-1) || o.groups != 1)
    ThrowBuildError("transposed convolution", "weight must be (C, kernel, K), in one group", {x, weight}, where);
  Shape shape = {x.dim(0)};
  for (int i = 1; i <= spatial; ++i)
    shape.push_back((x.dim(i) - 1) * o.stride - 2 * o.padding + o.dilation * (weight.dim(i) - 1) + 1 + output_padding);
  shape.push_back(weight.dim(-1));
  return x.graph().Add("convolution_backward_data", {x, weight}, Attributes(Window(spatial, o)), {.shape = shape},
                       where)[0];
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
    gradients[0] = graph.Add("convolution_backward_data", {dy[0], w}, Attributes(a), {.shape = x.shape()}, node.where,
                             node.name + "/backward_data")[0];
  if (wanted[1])
    gradients[1] =
        graph.Add("convolution_backward_weights", {x, dy[0]}, Attributes(a),
                  {.dtypes = {w.dtype()}, .shape = w.shape()}, node.where, node.name + "/backward_weights")[0];
  if (bias && wanted[2]) {
    const uint32_t places = (1u << (dy[0].rank() - 1)) - 1;
    gradients[2] = ops::Cast(ops::Reduce(dy[0], SY_REDUCE_SUM, places), graph.type(node.inputs[2]).dtype);
  }
  return gradients;
}

// Of a transposed convolution y = convolution_backward_data(x, w): dx = convolution(dy, w), and w has the gradient of
// the convolution that takes dy to x's place.
std::vector<Value> ConvolutionDataGradient(Graph& graph, int id, const std::vector<Value>& dy,
                                           const std::vector<bool>& wanted) {
  const Node node = graph.node(id);
  const Value x = graph.value(node.inputs[0]), w = graph.value(node.inputs[1]);
  std::vector<Value> gradients(2);
  if (wanted[0])
    gradients[0] =
        graph.Add("convolution", {dy[0], w}, node.attributes, {}, node.where, node.name + "/backward_data")[0];
  if (wanted[1])
    gradients[1] =
        graph.Add("convolution_backward_weights", {dy[0], x}, node.attributes,
                  {.dtypes = {w.dtype()}, .shape = w.shape()}, node.where, node.name + "/backward_weights")[0];
  return gradients;
}

// Two FLOPs for each product of an output element with a weight: 2·|y|·|w|/K.
double ConvolutionFlops(const TensorType& y, const TensorType& w) {
  return 2.0 * static_cast<double>(y.elements()) * static_cast<double>(w.elements()) / static_cast<double>(w.shape[0]);
}

// Batch and channels; of a convolution in groups the batch alone, as a part would have another number of groups.
std::string OneGroup(const Node& node, const char* line, const char* grouped) {
  return node.attributes.as<sy_convolution_attributes>().groups == 1 ? line : grouped;
}
std::string ConvolutionFactors(const Graph&, const Node& node) {
  if (node.attributes.as<sy_convolution_attributes>().bias)
    return OneGroup(node, "n _... c, k _... c, +k -> n _... k", "n _..., _..., _ -> n _...");
  return OneGroup(node, "n _... c, k _... c -> n _... k", "n _..., _... -> n _...");
}
std::string ConvolutionDataFactors(const Graph&, const Node& node) {
  return OneGroup(node, "n _... k, k _... c -> n _... c", "n _..., _... -> n _...");
}
std::string ConvolutionWeightFactors(const Graph&, const Node& node) {
  return OneGroup(node, "n _... c, n _... k -> k _... c", "n _..., n _... -> _...");
}

}  // namespace

std::vector<OpDefinition> ConvolutionOps() {
  return {{.name = "convolution",
           .summary = "2-D and 3-D convolution, channels last",
           .infer = ConvolutionTypes,
           .gradient = ConvolutionGradient,
           .flops = [](const Graph& g, const Node& n) { return ConvolutionFlops(n.outputs[0], g.type(n.inputs[1])); },
           .traits = {.precision = Precision::kHalf, .half_inputs = 2},
           .factors = {"n _... c, k _... c, +k -> n _... k", ConvolutionFactors}},
          {.name = "convolution_backward_data",
           .summary = "its gradient for the input, and the transposed convolution",
           .infer = ConvolutionDataTypes,
           .gradient = ConvolutionDataGradient,
           .flops = [](const Graph& g,
                       const Node& n) { return ConvolutionFlops(g.type(n.inputs[0]), g.type(n.inputs[1])); },
           .traits = {.precision = Precision::kHalf, .half_inputs = 2},
           .factors = {"n _... k, k _... c -> n _... c", ConvolutionDataFactors}},
          {.name = "convolution_backward_weights",
           .summary = "its gradient for the weight",
           .infer = ConvolutionWeightTypes,
           .decompose = ops::CastSums,
           .flops = [](const Graph& g, const Node& n) { return ConvolutionFlops(g.type(n.inputs[1]), n.outputs[0]); },
           .traits = {.wide_sums = true},
           .factors = {"n _... c, n _... k -> k _... c", ConvolutionWeightFactors}}};
}

}  // namespace switchyard
