// layer_norm (Ba et al. 2016) and group_norm (Wu and He 2018).
#include "core/graph/ops/normalization.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/norms.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

Shape Rows(const Shape& x) { return {x.begin(), x.end() - 1}; }

// y may be asked for in another floating dtype than x.
std::vector<TensorType> LayerNormTypes(const Signature& call) {
  const auto& a = call.attributes.as<sy_layer_norm_attributes>();
  const bool residual = a.residual != 0;
  call.Require(!a.column_sums, "column_sums belongs to the backward");
  call.RequireInputs(residual ? 4 : 3);
  CheckChannels(call, residual ? 2 : 1, call.inputs.size());
  const DType dtype = call.DTypeOr(call[0].dtype);
  call.Require(IsFloating(dtype), "the result must be floating");
  const TensorType rows = {DType::kF32, Rows(call.shape(0))};
  std::vector<TensorType> results = {{dtype, call.shape(0)}, rows, rows};
  if (!residual) return results;
  call.Require(call.shape(0) == call.shape(1), "x and residual differ in shape");
  results.push_back({Widest(call[0].dtype, call[1].dtype), call.shape(0)});
  return results;
}

// dh may be asked for in another floating dtype than h.
std::vector<TensorType> LayerNormBackwardTypes(const Signature& call) {
  const auto& a = call.attributes.as<sy_layer_norm_attributes>();
  const bool residual = a.residual != 0;
  call.RequireInputs(residual ? 6 : 5);
  CheckChannels(call, 1, 2);
  const Shape &h = call.shape(0), rows = Rows(h);
  call.Require(call.shape(2) == rows && call.shape(3) == rows, "mean and rstd must have one element a row of h");
  call.Require(call.shape(4) == h && (!residual || call.shape(5) == h), "gradients must have h's shape");
  const DType dtype = call.DTypeOr(call[0].dtype);
  call.Require(IsFloating(dtype), "the result must be floating");
  const TensorType channel = {DType::kF32, {h.back()}};
  std::vector<TensorType> results = {{dtype, h}, channel, channel};
  if (a.column_sums) results.push_back(channel);
  return results;
}

// mean and rstd of group_norm's x (input 0).
TensorType GroupStatistics(const Signature& call) {
  const int64_t groups = call.attributes.as<sy_group_norm_attributes>().groups;
  call.Require(call.rank(0) >= 2, "x must be (N, …, C)");
  call.Require(groups >= 1 && call.dim(0, -1) % groups == 0, "the groups must divide the channels");
  return {DType::kF32, {call.dim(0, 0), groups}};
}

// y may be asked for in another floating dtype than x.
std::vector<TensorType> GroupNormTypes(const Signature& call) {
  call.RequireInputs(3);
  CheckChannels(call, 1, 3);
  const DType dtype = call.DTypeOr(call[0].dtype);
  call.Require(IsFloating(dtype), "the result must be floating");
  const TensorType statistics = GroupStatistics(call);
  return {{dtype, call.shape(0)}, statistics, statistics};
}

std::vector<TensorType> GroupNormBackwardTypes(const Signature& call) {
  call.RequireInputs(5);
  CheckChannels(call, 1, 2);
  const TensorType statistics = GroupStatistics(call);
  call.Require(call[2] == statistics && call[3] == statistics, "mean and rstd must be f32 (N, groups)");
  call.Require(call.shape(4) == call.shape(0), "dy must have x's shape");
  const TensorType channel = {DType::kF32, {call.dim(0, -1)}};
  return {call[0], channel, channel};
}

}  // namespace

namespace ops {

Value LayerNorm(const Value& x, const Value& gamma, const Value& beta, float eps, Where where) {
  sy_layer_norm_attributes attributes{};
  attributes.eps = eps;
  return x.graph().Add("layer_norm", {x, gamma, beta}, Attributes(attributes), {}, where)[0];
}

Value GroupNorm(const Value& x, const Value& gamma, const Value& beta, int groups, float eps, Where where) {
  sy_group_norm_attributes attributes{};
  attributes.eps = eps;
  attributes.groups = groups;
  return x.graph().Add("group_norm", {x, gamma, beta}, Attributes(attributes), {}, where)[0];
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
  const auto results =
      graph.Add("layer_norm_backward", inputs, Attributes(attributes), {}, node.where, node.name + "/backward");
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
  std::vector<Value> results = {ops::Cast(dh, node.outputs[0].dtype), ops::SumOfRows(ops::Mul(dy, x)),
                                ops::SumOfRows(dy)};
  if (a.column_sums) results.push_back(ops::SumOfRows(dh));
  return results;
}

std::vector<Value> GroupNormGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  if (!dy[0]) return std::vector<Value>(3);
  const Value x = graph.value(node.inputs[0]), gamma = graph.value(node.inputs[1]);
  const auto results = graph.Add("group_norm_backward", {x, gamma, graph.value({id, 1}), graph.value({id, 2}), dy[0]},
                                 node.attributes, {}, node.where, node.name + "/backward");
  graph.mutable_node(results[0].ref().node).forward = id;
  std::vector<Value> gradients;
  for (size_t i = 0; i < 3; ++i) gradients.push_back(ops::Cast(results[i], graph.type(node.inputs[i]).dtype));
  return gradients;
}

// x (N, …, C) as (N, places, groups, channels of a group), and the means over a sample's group, (N, 1, groups, 1).
struct Grouped {
  Shape whole, parts, statistics;
  explicit Grouped(const Shape& x, int64_t groups) : whole(x) {
    const int64_t places = Elements(x) / (x.front() * x.back());
    parts = {x.front(), places, groups, x.back() / groups};
    statistics = {x.front(), 1, groups, 1};
  }
  Value Split(const Value& x) const { return ops::Reshape(ops::Cast(x, DType::kF32), parts); }
  Value Join(const Value& x) const { return ops::Reshape(x, whole); }
  Value Mean(const Value& x, int reduction = SY_REDUCE_SUM) const {
    return ops::Reduce(x, reduction, 0b1010, 1.0f / static_cast<float>(parts[1] * parts[3]), true);
  }
};

std::vector<Value> GroupNormDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_group_norm_attributes>();
  const Grouped grouped(inputs[0].shape(), a.groups);
  const Value x = grouped.Split(inputs[0]), mean = grouped.Mean(x), centred = ops::Sub(x, mean);
  const Value variance = grouped.Mean(centred, SY_REDUCE_SUM_OF_SQUARES);
  const Value rstd = ops::Unary(SY_PW_RSQRT, ops::AddScalar(variance, a.eps));
  const Value y = ops::Add(ops::Mul(grouped.Join(ops::Mul(centred, rstd)), inputs[1]), inputs[2]);
  const Shape& statistics = node.outputs[1].shape;
  return {ops::Cast(y, node.outputs[0].dtype), ops::Reshape(mean, statistics), ops::Reshape(rstd, statistics)};
}

// As layer_norm's, with the means over a sample's group.
std::vector<Value> GroupNormBackwardDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_group_norm_attributes>();
  const Grouped grouped(inputs[0].shape(), a.groups);
  const Value rstd = ops::Reshape(inputs[3], grouped.statistics), dy = ops::Cast(inputs[4], DType::kF32);
  const Value x = ops::Mul(ops::Sub(grouped.Split(inputs[0]), ops::Reshape(inputs[2], grouped.statistics)), rstd);
  const Value g = grouped.Split(ops::Mul(dy, inputs[1]));
  const Value dot = grouped.Mean(ops::Mul(g, x));
  const Value dx = ops::Mul(rstd, ops::Sub(ops::Sub(g, grouped.Mean(g)), ops::Mul(x, dot)));
  const uint32_t outer = (1u << (dy.rank() - 1)) - 1;
  return {ops::Cast(grouped.Join(dx), node.outputs[0].dtype),
          ops::Reduce(ops::Mul(dy, grouped.Join(x)), SY_REDUCE_SUM, outer), ops::Reduce(dy, SY_REDUCE_SUM, outer)};
}

std::string LayerNormFactors(const Graph&, const Node& node) {
  const bool residual = node.attributes.as<sy_layer_norm_attributes>().residual != 0;
  return residual ? "... _, ... _, _, _ -> ... _, ..., ..., ... _" : "... _, _, _ -> ... _, ..., ...";
}
std::string LayerNormBackwardFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_layer_norm_attributes>();
  std::string line = "... _, _, ..., ..., ... _";
  line += a.residual ? ", ... _ -> ... _, _, _" : " -> ... _, _, _";
  return a.column_sums ? line + ", _" : line;
}

}  // namespace

std::vector<OpDefinition> NormalizationOps() {
  return {{.name = "layer_norm",
           .summary = "layer norm, optionally of a residual sum",
           .infer = LayerNormTypes,
           .gradient = LayerNormGradient,
           .decompose = LayerNormDecompose,
           .flops = NormFlops,
           .traits = {.precision = Precision::kReaders},
           .factors = {"... _, _, _ -> ... _, ..., ...", LayerNormFactors}},
          {.name = "layer_norm_backward",
           .summary = "its gradient",
           .infer = LayerNormBackwardTypes,
           .decompose = LayerNormBackwardDecompose,
           .flops = NormFlops,
           .factors = {"... _, _, ..., ..., ... _ -> ... _, _, _", LayerNormBackwardFactors}},
          {.name = "group_norm",
           .summary = "norm of each sample's groups of channels",
           .infer = GroupNormTypes,
           .gradient = GroupNormGradient,
           .decompose = GroupNormDecompose,
           .flops = NormFlops,
           .traits = {.precision = Precision::kReaders},
           .factors = "n _..., _, _ -> n _..., n _, n _"},
          {.name = "group_norm_backward",
           .summary = "its gradient",
           .infer = GroupNormBackwardTypes,
           .decompose = GroupNormBackwardDecompose,
           .flops = NormFlops,
           .factors = "n _..., _, n _, n _, n _... -> n _..., _, _"}};
}

}  // namespace switchyard
