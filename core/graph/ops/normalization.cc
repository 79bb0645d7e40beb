// layer_norm (Ba et al. 2016) and batch_norm (Ioffe and Szegedy 2015).
#include "core/graph/ops/normalization.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace ops {
namespace {

void CheckChannels(const char* op, const Value& x, const std::vector<Value>& vectors, Where where) {
  for (const Value& v : vectors) {
    if (v.shape() != Shape{x.dim(-1)})
      ThrowBuildError(op, "gamma, beta and statistics must have the extent of the last axis", {x, v}, where);
  }
}

std::vector<Value> LayerNormNode(const std::vector<Value>& inputs, float eps, bool residual, DType dtype, Where where) {
  const Value& x = inputs[0];
  CheckChannels("layer_norm", x, {inputs[inputs.size() - 2], inputs[inputs.size() - 1]}, where);
  Shape rows(x.shape().begin(), x.shape().end() - 1);
  if (rows.empty()) rows = {1};
  sy_layer_norm_attributes attributes{};
  attributes.eps = eps;
  attributes.residual = residual;
  std::vector<TensorType> outputs = {{dtype, x.shape()}, {DType::kF32, rows}, {DType::kF32, rows}};
  if (residual) outputs.push_back({Widest(x.dtype(), inputs[1].dtype()), x.shape()});
  return x.graph().Add("layer_norm", inputs, outputs, Attributes(attributes), where);
}

}  // namespace

Value LayerNorm(const Value& x, const Value& gamma, const Value& beta, float eps, Where where) {
  return LayerNormNode({x, gamma, beta}, eps, false, x.dtype(), where)[0];
}

Normalized ResidualLayerNorm(const Value& x, const Value& residual, const Value& gamma, const Value& beta, float eps,
                             Where where) {
  if (x.shape() != residual.shape())
    ThrowBuildError("layer_norm", "x and residual differ in shape", {x, residual}, where);
  const auto results = LayerNormNode({x, residual, gamma, beta}, eps, true, x.dtype(), where);
  return {results[0], results[3]};
}

BatchNormed BatchNorm(const Value& x, const Value& gamma, const Value& beta, const Value& running_mean,
                      const Value& running_var, float eps, float momentum, Where where) {
  CheckChannels("batch_norm", x, {gamma, beta, running_mean, running_var}, where);
  sy_batch_norm_attributes attributes{};
  attributes.eps = eps;
  attributes.momentum = momentum;
  const TensorType channel = {DType::kF32, {x.dim(-1)}};
  const auto results = x.graph().Add("batch_norm", {x, gamma, beta, running_mean, running_var},
                                     {x.type(), channel, channel, channel, channel}, Attributes(attributes), where);
  return {results[0], results[3], results[4]};
}

Value BatchNormInference(const Value& x, const Value& gamma, const Value& beta, const Value& running_mean,
                         const Value& running_var, float eps, Where where) {
  CheckChannels("batch_norm", x, {gamma, beta, running_mean, running_var}, where);
  sy_batch_norm_attributes attributes{};
  attributes.eps = eps;
  return x.graph().Add("batch_norm_inference", {x, gamma, beta, running_mean, running_var}, {x.type()},
                       Attributes(attributes), where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> LayerNormGradient(Graph& graph, int id, const std::vector<Value>& dy,
                                     const std::vector<bool>& wanted) {
  const Node node = graph.node(id);
  const auto a = node.attributes.as<sy_layer_norm_attributes>();
  const size_t gamma = a.residual ? 2 : 1;
  const Value h = a.residual ? graph.value({id, 3}) : graph.value(node.inputs[0]);
  std::vector<Value> inputs = {h, graph.value(node.inputs[gamma]), graph.value({id, 1}), graph.value({id, 2}), dy[0]};
  sy_layer_norm_attributes attributes = a;
  attributes.residual = a.residual && dy[3];
  if (!dy[0]) return std::vector<Value>(node.inputs.size());
  if (attributes.residual) inputs.push_back(dy[3]);
  const TensorType channel = {DType::kF32, {h.dim(-1)}};
  const auto results = graph.Add("layer_norm_backward", inputs, {h.type(), channel, channel}, Attributes(attributes),
                                 node.where, node.name + "/backward");
  graph.mutable_node(results[0].ref().node).forward = id;
  std::vector<Value> gradients(node.inputs.size());
  gradients[0] = ops::Cast(results[0], graph.type(node.inputs[0]).dtype);
  if (a.residual) gradients[1] = ops::Cast(results[0], graph.type(node.inputs[1]).dtype);
  if (wanted[gamma]) gradients[gamma] = ops::Cast(results[1], graph.type(node.inputs[gamma]).dtype);
  if (wanted[gamma + 1]) gradients[gamma + 1] = ops::Cast(results[2], graph.type(node.inputs[gamma + 1]).dtype);
  return gradients;
}

Value Column(const Value& rows) {  // (…) → (…, 1)
  Shape shape = rows.shape();
  shape.push_back(1);
  return ops::Reshape(rows, shape);
}

std::vector<Value> LayerNormDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_layer_norm_attributes>();
  const Value sum = a.residual ? ops::Add(inputs[0], inputs[1]) : inputs[0];
  const Value gamma = inputs[a.residual ? 2 : 1], beta = inputs[a.residual ? 3 : 2];
  const Value h = ops::Cast(sum, DType::kF32);
  const uint32_t last = 1u << (h.rank() - 1);
  const float inverse = 1.0f / static_cast<float>(h.dim(-1));
  const Value mean = ops::Reduce(h, SY_REDUCE_SUM, last, inverse, true);
  const Value centred = ops::Sub(h, mean);
  const Value variance = ops::Reduce(centred, SY_REDUCE_SUM_OF_SQUARES, last, inverse, true);
  const Value rstd = ops::Unary(SY_PW_RSQRT, ops::AddScalar(variance, a.eps));
  const Value y = ops::Add(ops::Mul(ops::Mul(centred, rstd), gamma), beta);
  std::vector<Value> results = {ops::Cast(y, node.outputs[0].dtype), ops::Reshape(mean, node.outputs[1].shape),
                                ops::Reshape(rstd, node.outputs[2].shape)};
  if (a.residual) results.push_back(ops::Cast(sum, node.outputs[3].dtype));
  return results;
}

// x̂ = (h − mean)·rstd; g = dy·gamma; dh = rstd·(g − mean(g) − x̂·mean(g·x̂)); dgamma = Σ dy·x̂; dbeta = Σ dy.
std::vector<Value> LayerNormBackwardDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_layer_norm_attributes>();
  const Value h = ops::Cast(inputs[0], DType::kF32), dy = ops::Cast(inputs[4], DType::kF32), rstd = Column(inputs[3]);
  const uint32_t last = 1u << (h.rank() - 1);
  const float inverse = 1.0f / static_cast<float>(h.dim(-1));
  const Value x = ops::Mul(ops::Sub(h, Column(inputs[2])), rstd);
  const Value g = ops::Mul(dy, inputs[1]);
  const Value mean = ops::Reduce(g, SY_REDUCE_SUM, last, inverse, true),
              dot = ops::Reduce(ops::Mul(g, x), SY_REDUCE_SUM, last, inverse, true);
  Value dh = ops::Mul(rstd, ops::Sub(ops::Sub(g, mean), ops::Mul(x, dot)));
  if (a.residual) dh = ops::Add(dh, inputs[5]);
  const Value dgamma = h.rank() == 1 ? ops::Mul(dy, x) : ops::Reduce(ops::Mul(dy, x), SY_REDUCE_SUM, last - 1);
  const Value dbeta = h.rank() == 1 ? dy : ops::Reduce(dy, SY_REDUCE_SUM, last - 1);
  return {ops::Cast(dh, node.outputs[0].dtype), dgamma, dbeta};
}

std::vector<Value> BatchNormGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  const TensorType channel = node.outputs[1];
  const Value x = graph.value(node.inputs[0]);
  const auto results = graph.Add("batch_norm_backward",
                                 {x, graph.value(node.inputs[1]), graph.value({id, 1}), graph.value({id, 2}), dy[0]},
                                 {x.type(), channel, channel}, node.attributes, node.where, node.name + "/backward");
  graph.mutable_node(results[0].ref().node).forward = id;
  return {results[0], results[1], results[2], {}, {}};
}

double NormFlops(const Graph&, const Node& node) { return 8.0 * static_cast<double>(node.outputs[0].elements()); }

}  // namespace

std::vector<OpDefinition> NormalizationOps() {
  return {{"layer_norm", "layer norm, optionally of a residual sum", LayerNormGradient, LayerNormDecompose, NormFlops},
          {"layer_norm_backward", "its gradient", nullptr, LayerNormBackwardDecompose, NormFlops},
          {"batch_norm", "batch norm with the batch's statistics", BatchNormGradient, nullptr, NormFlops},
          {"batch_norm_backward", "its gradient", nullptr, nullptr, NormFlops},
          {"batch_norm_inference", "batch norm with running statistics", nullptr, nullptr, NormFlops}};
}

}  // namespace switchyard
