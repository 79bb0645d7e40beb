#include "core/nn/convolution.h"

#include <cmath>

#include "core/graph/ops/convolution.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "fmt/format.h"

namespace switchyard::nn {
namespace {

constexpr Initializer kStartAtZero = {Initializer::kZeros, 0};
constexpr Initializer kStartAtOne = {Initializer::kConstant, 1};

int SpatialRank(const char* layer, const Value& x, Where where) {
  if (x.rank() != 4 && x.rank() != 5) ThrowBuildError(layer, "x must be (N, H, W, C) or (N, D, H, W, C)", {x}, where);
  return x.rank() - 2;
}

// (outermost, kernel, innermost)
Shape WeightShape(int64_t outermost, int spatial, int kernel, int64_t innermost) {
  Shape shape(static_cast<size_t>(spatial), kernel);
  shape.insert(shape.begin(), outermost);
  shape.push_back(innermost);
  return shape;
}

// torch.nn's: kaiming_uniform with a = √5 of all that one result reads, shape (fan_out, …fan_in).
Initializer TorchUniform(const Shape& weight) {
  const int64_t fan_in = Elements(weight) / weight[0];
  return {Initializer::kUniform, 1 / std::sqrt(static_cast<float>(fan_in))};
}

Initializer HeFanOut(const Shape& weight) {
  const int64_t fan_out = Elements(weight) / weight.back();
  return {Initializer::kNormal, std::sqrt(2 / static_cast<float>(fan_out))};
}

}  // namespace

Value Convolution(Context& context, const std::string& name, const Value& x, int64_t out, const ConvolutionOptions& o,
                  Where where) {
  const int spatial = SpatialRank("convolution", x, where);
  if (o.kernel < 1 || o.stride < 1 || o.dilation < 1 || out < 1) {
    ThrowBuildError("convolution", "kernel, stride, dilation and what goes out must be 1 or more", {x}, where);
  }
  if (o.groups < 1 || x.dim(-1) % o.groups != 0 || out % o.groups != 0) {
    ThrowBuildError(
        "convolution",
        fmt::format("{} groups must divide the channels that come in, {}, and go out, {}", o.groups, x.dim(-1), out),
        {x}, where);
  }
  const Graph::Scope scope(context.graph, name);
  const Shape shape = WeightShape(out, spatial, o.kernel, x.dim(-1) / o.groups);
  const Initializer uniform = TorchUniform(shape);
  const bool he = o.start == ConvolutionStart::kHeFanOut;
  const Value weight = Parameter(context, "weight", shape, he ? HeFanOut(shape) : uniform, true, where);
  const Value bias = o.bias ? Parameter(context, "bias", {out}, he ? kStartAtZero : uniform, false, where) : Value();
  return ops::Convolution(x, weight, bias,
                          {.stride = o.stride,
                           .dilation = o.dilation,
                           .padding = o.padding.value_or(o.dilation * (o.kernel - 1) / 2),
                           .groups = o.groups},
                          where);
}

Value TransposedConvolution(Context& context, const std::string& name, const Value& x, int64_t out,
                            const TransposedConvolutionOptions& o, Where where) {
  const int spatial = SpatialRank("transposed_convolution", x, where);
  if (o.kernel < 1 || o.stride < 1 || out < 1 || o.output_padding < 0 || o.output_padding >= o.stride) {
    ThrowBuildError("transposed_convolution",
                    "kernel, stride and what goes out must be 1 or more, output_padding less than the stride", {x},
                    where);
  }
  const Graph::Scope scope(context.graph, name);
  const Shape shape = WeightShape(x.dim(-1), spatial, o.kernel, out);
  // torch takes the second extent of its weight (C, out, kernel) for what one result reads.
  const int64_t fan_in = Elements(shape) / x.dim(-1);
  const Initializer uniform = {Initializer::kUniform, 1 / std::sqrt(static_cast<float>(fan_in))};
  const Value weight = Parameter(context, "weight", shape, uniform, true, where);
  const Value y =
      ops::TransposedConvolution(x, weight, {.stride = o.stride, .padding = o.padding}, o.output_padding, where);
  return o.bias ? ops::Add(y, Parameter(context, "bias", {out}, uniform, false, where), where) : y;
}

namespace {

// The new running statistics of each channel where they are finite: an overflow in one batch, whose update is left out,
// must not stay in them for good. The ones before come first among the operands: a kernel that may write over its
// operands takes their places in turn, and then nothing is copied into the states.
std::pair<Value, Value> FiniteOrBefore(const ops::BatchNormed& normed, const Value& mean, const Value& var,
                                       Where where) {
  sy_pointwise_attributes program{};
  program.instruction_count = 4;
  program.output_count = 2;
  program.instructions[0] = {SY_PW_IS_FINITE, 2, 0, 0, 0};
  program.instructions[1] = {SY_PW_IS_FINITE, 3, 0, 0, 0};
  program.instructions[2] = {SY_PW_SELECT, 4, 2, 0, 0};
  program.instructions[3] = {SY_PW_SELECT, 5, 3, 1, 0};
  program.outputs[0] = 6;
  program.outputs[1] = 7;
  const auto next =
      ops::Pointwise({mean, var, normed.running_mean, normed.running_var}, program, {DType::kF32, DType::kF32}, where);
  return {next[0], next[1]};
}

}  // namespace

Value BatchNorm(Context& context, const std::string& name, const Value& x, const BatchNormOptions& o, Where where) {
  const Graph::Scope scope(context.graph, name);
  const Shape channels = {x.dim(-1)};
  const Value gamma = Parameter(context, "weight", channels, o.zero ? kStartAtZero : kStartAtOne, false, where);
  const Value beta = Parameter(context, "bias", channels, kStartAtZero, false, where);
  const Value mean = State(context, "running_mean", channels, kStartAtZero, where);
  const Value var = State(context, "running_var", channels, kStartAtOne, where);
  if (!context.training) return ops::BatchNormInference(x, gamma, beta, mean, var, o.eps, where);
  const ops::BatchNormed normed = ops::BatchNorm(x, gamma, beta, mean, var, o.eps, o.momentum, where);
  const auto [next_mean, next_var] = FiniteOrBefore(normed, mean, var, where);
  context.graph.Assign(mean, next_mean, where);
  context.graph.Assign(var, next_var, where);
  return normed.y;
}

Value ConvolutionNormReLU(Context& context, const std::string& convolution, const std::string& norm, const Value& x,
                          int64_t out, const ConvolutionOptions& options, const BatchNormOptions& norm_options,
                          Where where) {
  const Value y = Convolution(context, convolution, x, out, options, where);
  return ReLU(BatchNorm(context, norm, y, norm_options, where), where);
}

Value ReLU(const Value& x, Where where) { return ops::Activation(x, SY_ACTIVATION_RELU, where); }

Value MaxPool(const Value& x, int kernel, int stride, int padding, Where where) {
  return ops::Pool(x, {.kernel = kernel, .stride = stride, .padding = padding}, where);
}

Value GlobalAveragePool(const Value& x, Where where) {
  const int spatial = SpatialRank("global_average_pool", x, where);
  const int64_t places = Elements(x.shape()) / (x.dim(0) * x.dim(-1));
  return ops::Reduce(x, SY_REDUCE_SUM, ((1u << spatial) - 1) << 1, 1 / static_cast<float>(places), false, where);
}

Value ResizeLinear(const Value& x, const Shape& size, Where where) {
  return ops::Resize(x, size, SY_RESIZE_LINEAR, false, where);
}

}  // namespace switchyard::nn
