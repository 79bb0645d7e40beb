// batch_norm (Ioffe and Szegedy 2015), with the batch's statistics and with running ones.
#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/norms.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

// What batch_norm demands of its inputs, training or not; y may be asked for in another floating dtype than x.
TensorType BatchNormResult(const Signature& call) {
  const auto& a = call.attributes.as<sy_batch_norm_attributes>();
  call.Require(a.activation == SY_ACTIVATION_NONE || a.activation == SY_ACTIVATION_RELU, "the activation must be relu");
  call.RequireInputs(a.residual ? 6 : 5);
  CheckChannels(call, 1, 5);
  call.Require(!a.residual || call.shape(5) == call.shape(0), "x and residual differ in shape");
  const DType dtype = call.DTypeOr(call[0].dtype);
  call.Require(IsFloating(dtype), "the result must be floating");
  return {dtype, call.shape(0)};
}

std::vector<TensorType> BatchNormTypes(const Signature& call) {
  const TensorType y = BatchNormResult(call), channel = {DType::kF32, {call.dim(0, -1)}};
  return {y, channel, channel, channel, channel};
}

std::vector<TensorType> BatchNormInferenceTypes(const Signature& call) { return {BatchNormResult(call)}; }

std::vector<TensorType> BatchNormBackwardTypes(const Signature& call) {
  const auto& a = call.attributes.as<sy_batch_norm_attributes>();
  call.RequireInputs(a.activation ? 6 : 5);
  CheckChannels(call, 1, 4);
  for (size_t i = 4; i < call.inputs.size(); ++i)
    call.Require(call.shape(i) == call.shape(0), "dy and y must have x's shape");
  const TensorType channel = {DType::kF32, {call.dim(0, -1)}};
  std::vector<TensorType> results = {call[0], channel, channel};
  if (a.residual) results.push_back(call[4]);
  return results;
}

}  // namespace

namespace ops {

BatchNormed BatchNorm(const Value& x, const Value& gamma, const Value& beta, const Value& running_mean,
                      const Value& running_var, float eps, float momentum, Where where) {
  sy_batch_norm_attributes attributes{};
  attributes.eps = eps;
  attributes.momentum = momentum;
  const auto results =
      x.graph().Add("batch_norm", {x, gamma, beta, running_mean, running_var}, Attributes(attributes), {}, where);
  return {results[0], results[3], results[4]};
}

Value BatchNormInference(const Value& x, const Value& gamma, const Value& beta, const Value& running_mean,
                         const Value& running_var, float eps, Where where) {
  sy_batch_norm_attributes attributes{};
  attributes.eps = eps;
  return x.graph().Add("batch_norm_inference", {x, gamma, beta, running_mean, running_var}, Attributes(attributes), {},
                       where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> BatchNormGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  const auto& a = node.attributes.as<sy_batch_norm_attributes>();
  if (!dy[0]) return std::vector<Value>(node.inputs.size());  // running statistics hand no gradient on
  std::vector<Value> inputs = {graph.value(node.inputs[0]), graph.value(node.inputs[1]), graph.value({id, 1}),
                               graph.value({id, 2}), dy[0]};
  if (a.activation) inputs.push_back(graph.value({id, 0}));
  const auto results =
      graph.Add("batch_norm_backward", inputs, node.attributes, {}, node.where, node.name + "/backward");
  graph.mutable_node(results[0].ref().node).forward = id;
  std::vector<Value> gradients(5);
  for (size_t i = 0; i < 3; ++i) gradients[i] = ops::Cast(results[i], graph.type(node.inputs[i]).dtype);
  if (a.residual) gradients.push_back(ops::Cast(results[3], graph.type(node.inputs[5]).dtype));
  return gradients;
}

// x (…, C) seen as rows of channels.
struct Channels {
  explicit Channels(const Value& x)
      : outer((1u << (x.rank() - 1)) - 1),
        count(static_cast<float>(Elements(x.shape()) / x.dim(-1))),
        channel{x.dim(-1)} {}
  // Per channel, (C).
  Value Sum(const Value& x, int reduction = SY_REDUCE_SUM, float scale = 1) const {
    return ops::Reshape(ops::Reduce(x, reduction, outer, scale), channel);
  }
  uint32_t outer;
  float count;
  Shape channel;
};

// act(normal·gamma + beta [+ residual]), for an x that is centred and has this rstd.
Value BatchNormResult(const Node& node, const Value& centred, const Value& rstd, const std::vector<Value>& inputs) {
  const auto& a = node.attributes.as<sy_batch_norm_attributes>();
  Value y = ops::Add(ops::Mul(ops::Mul(centred, rstd), inputs[1]), inputs[2]);
  if (a.residual) y = ops::Add(y, ops::Cast(inputs[5], DType::kF32));
  return ops::Cast(ops::Activation(y, a.activation), node.outputs[0].dtype);
}

std::vector<Value> BatchNormDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto& a = node.attributes.as<sy_batch_norm_attributes>();
  const Value x = ops::Cast(inputs[0], DType::kF32);
  const Channels channels(x);
  const Value mean = channels.Sum(x, SY_REDUCE_SUM, 1 / channels.count), centred = ops::Sub(x, mean);
  const Value variance = channels.Sum(centred, SY_REDUCE_SUM_OF_SQUARES, 1 / channels.count);
  const Value rstd = ops::Unary(SY_PW_RSQRT, ops::AddScalar(variance, a.eps));
  const float unbiased = channels.count > 1 ? channels.count / (channels.count - 1) : 1;
  const auto running = [&](const Value& before, const Value& now, float factor) {
    return ops::Add(ops::Scale(before, 1 - a.momentum), ops::Scale(now, a.momentum * factor));
  };
  return {BatchNormResult(node, centred, rstd, inputs), mean, rstd, running(inputs[3], mean, 1),
          running(inputs[4], variance, unbiased)};
}

std::vector<Value> BatchNormInferenceDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const float eps = node.attributes.as<sy_batch_norm_attributes>().eps;
  const Value rstd = ops::Unary(SY_PW_RSQRT, ops::AddScalar(inputs[4], eps));
  return {BatchNormResult(node, ops::Sub(ops::Cast(inputs[0], DType::kF32), inputs[3]), rstd, inputs)};
}

std::vector<Value> BatchNormBackwardDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto& a = node.attributes.as<sy_batch_norm_attributes>();
  Value g = ops::Cast(inputs[4], DType::kF32);
  if (a.activation) g = ops::Mul(g, ops::Unary(SY_PW_RELU_GRAD, ops::Cast(inputs[5], DType::kF32)));
  const Channels channels(g);
  const Value normal = ops::Mul(ops::Sub(ops::Cast(inputs[0], DType::kF32), inputs[2]), inputs[3]);
  const Value dgamma = channels.Sum(ops::Mul(g, normal)), dbeta = channels.Sum(g);
  const Value mean_g = ops::Scale(dbeta, 1 / channels.count), dot = ops::Scale(dgamma, 1 / channels.count);
  const Value dx = ops::Mul(ops::Sub(ops::Sub(g, mean_g), ops::Mul(normal, dot)), ops::Mul(inputs[3], inputs[1]));
  std::vector<Value> results = {ops::Cast(dx, node.outputs[0].dtype), dgamma, dbeta};
  if (a.residual) results.push_back(ops::Cast(g, node.outputs[3].dtype));
  return results;
}

std::string BatchNormFactors(const Graph&, const Node& node) {
  const bool residual = node.attributes.as<sy_batch_norm_attributes>().residual != 0;
  return residual ? "_... c, c, c, c, c, _... c -> _... c, c, c, c, c" : "_... c, c, c, c, c -> _... c, c, c, c, c";
}
std::string BatchNormInferenceFactors(const Graph&, const Node& node) {
  const bool residual = node.attributes.as<sy_batch_norm_attributes>().residual != 0;
  return residual ? "... c, c, c, c, c, ... c -> ... c" : "... c, c, c, c, c -> ... c";
}
std::string BatchNormBackwardFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_batch_norm_attributes>();
  return std::string("_... c, c, c, c, _... c") + (a.activation ? ", _... c" : "") + " -> _... c, c, c" +
         (a.residual ? ", _... c" : "");
}

}  // namespace

std::vector<OpDefinition> BatchNormOps() {
  return {{.name = "batch_norm",
           .summary = "batch norm with the batch's statistics, optionally plus a residual, optionally with relu",
           .infer = BatchNormTypes,
           .gradient = BatchNormGradient,
           .decompose = BatchNormDecompose,
           .flops = NormFlops,
           .traits = {.precision = Precision::kReaders},
           .factors = {"_... c, c, c, c, c -> _... c, c, c, c, c", BatchNormFactors}},
          {.name = "batch_norm_backward",
           .summary = "its gradient",
           .infer = BatchNormBackwardTypes,
           .decompose = BatchNormBackwardDecompose,
           .flops = NormFlops,
           .factors = {"_... c, c, c, c, _... c -> _... c, c, c", BatchNormBackwardFactors}},
          {.name = "batch_norm_inference",
           .summary = "batch norm with running statistics, optionally plus a residual, optionally with relu",
           .infer = BatchNormInferenceTypes,
           .decompose = BatchNormInferenceDecompose,
           .flops = NormFlops,
           .traits = {.precision = Precision::kReaders},
           .factors = {"... c, c, c, c, c -> ... c", BatchNormInferenceFactors}}};
}

}  // namespace switchyard
