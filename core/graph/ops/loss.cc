// cross_entropy, its gradient, label_rank.
#include "core/graph/ops/loss.h"

#include <limits>

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"

namespace switchyard {
namespace {

std::vector<TensorType> CrossEntropyTypes(const Signature& call) {
  call.RequireInputs(2);
  const bool soft = call.attributes.as<sy_cross_entropy_attributes>().soft_targets != 0;
  call.Require(call.rank(0) == 2 && (soft ? call.shape(1) == call.shape(0) && IsFloating(call[1].dtype)
                                          : call.shape(1) == Shape{call.dim(0, 0)} && call[1].dtype == DType::kI32),
               "logits (N, C) need labels (N) i32 or soft targets (N, C)");
  const TensorType rows = {DType::kF32, {call.dim(0, 0)}};
  return {rows, rows};
}

std::vector<TensorType> CrossEntropyBackwardTypes(const Signature& call) {
  call.RequireInputs(4);
  call.Require(call.rank(0) == 2 && call.shape(2) == Shape{call.dim(0, 0)} && call.shape(3) == call.shape(2),
               "logits (N, C) need logsumexp (N) and dloss (N)");
  return {call[0]};
}

std::vector<TensorType> LabelRankTypes(const Signature& call) {
  call.RequireInputs(2);
  call.Require(call.rank(0) == 2 && call.shape(1) == Shape{call.dim(0, 0)} && call[1].dtype == DType::kI32,
               "logits (N, C) need labels (N) i32");
  return {{DType::kI32, {call.dim(0, 0)}}};
}

}  // namespace

namespace ops {

Value CrossEntropy(const Value& logits, const Value& labels, float label_smoothing, Where where) {
  sy_cross_entropy_attributes attributes{};
  attributes.label_smoothing = label_smoothing;
  attributes.ignore_index = -100;
  attributes.soft_targets = IsFloating(labels.dtype());
  return logits.graph().Add("cross_entropy", {logits, labels}, Attributes(attributes), {}, where)[0];
}

Value LabelRank(const Value& logits, const Value& labels, Where where) {
  return logits.graph().Add("label_rank", {logits, labels}, {}, {}, where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> CrossEntropyGradient(Graph& graph, int id, const std::vector<Value>& dy,
                                        const std::vector<bool>& wanted) {
  const Node node = graph.node(id);
  if (wanted[1]) ThrowBuildError(node.op, "targets have no gradient, and a parameter is behind them", {}, node.where);
  const Value logits = graph.value(node.inputs[0]);
  const auto dx =
      graph.Add("cross_entropy_backward", {logits, graph.value(node.inputs[1]), graph.value({id, 1}), dy[0]},
                node.attributes, {}, node.where, node.name + "/backward");
  graph.mutable_node(dx[0].ref().node).forward = id;
  return {dx[0], {}};
}

// y as (N, C): a one-hot row per label, smoothed; all zero where ignored, NaN where the label is beyond the classes.
Value Targets(Graph& graph, const Value& logits, const Value& labels, const sy_cross_entropy_attributes& a) {
  const int64_t n = logits.dim(0), classes = logits.dim(1);
  const float s = a.label_smoothing, off = s / static_cast<float>(classes);
  if (a.soft_targets) return ops::AddScalar(ops::Scale(ops::Cast(labels, DType::kF32), 1 - s), off);
  // Row c of the identity, built by comparing two index vectors made from padded ones.
  Value index = ops::Full(graph, {1}, 0);
  for (int64_t have = 1; have < classes; have *= 2) {
    index = ops::Concat(
        {index, ops::AddScalar(ops::Slice(index, 0, 0, std::min(have, classes - have)), static_cast<float>(have))}, 0);
  }
  const Value wanted = ops::Reshape(ops::Cast(labels, DType::kF32), {n, 1});
  const Value hot =
      ops::AddScalar(ops::Scale(ops::Binary(SY_PW_EQUAL, wanted, ops::Reshape(index, {1, classes})), 1 - s), off);
  const Value zero = ops::Full(graph, {1}, 0);
  const Value beyond = ops::Binary(SY_PW_LESS_EQUAL, ops::Full(graph, {1}, static_cast<float>(classes)), wanted);
  const Value nothing = ops::Full(graph, {1}, std::numeric_limits<float>::quiet_NaN());
  const Value ignored =
      ops::Binary(SY_PW_MAX, ops::Binary(SY_PW_LESS, wanted, zero),
                  ops::Binary(SY_PW_EQUAL, wanted, ops::Full(graph, {1}, static_cast<float>(a.ignore_index))));
  return ops::Select(ignored, zero, ops::Select(beyond, nothing, hot));
}

std::vector<Value> CrossEntropyDecompose(Graph& graph, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_cross_entropy_attributes>();
  const Value x = ops::Cast(inputs[0], DType::kF32);
  const Value largest = ops::Reduce(x, SY_REDUCE_MAX, 2, 1, true);
  const Value below = ops::Sub(x, largest);  // relative to the largest, so that large logits do not cancel
  const Value relative = ops::Unary(SY_PW_LOG, ops::Reduce(ops::Unary(SY_PW_EXP, below), SY_REDUCE_SUM, 2, 1, true));
  const Value loss =
      ops::Reduce(ops::Mul(Targets(graph, x, inputs[1], a), ops::Sub(relative, below)), SY_REDUCE_SUM, 2);
  return {loss, ops::Reshape(ops::Add(relative, largest), {x.dim(0)})};
}

std::vector<Value> CrossEntropyBackwardDecompose(Graph& graph, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_cross_entropy_attributes>();
  const Value x = ops::Cast(inputs[0], DType::kF32);
  const int64_t n = x.dim(0);
  const Value y = Targets(graph, x, inputs[1], a);
  const Value mass = ops::Reduce(y, SY_REDUCE_SUM, 2, 1, true);
  const Value p = ops::Unary(SY_PW_EXP, ops::Sub(x, ops::Reshape(inputs[2], {n, 1})));
  return {ops::Cast(ops::Mul(ops::Sub(ops::Mul(p, mass), y), ops::Reshape(inputs[3], {n, 1})), node.outputs[0].dtype)};
}

std::string CrossEntropyFactors(const Graph&, const Node& node) {
  const bool soft = node.attributes.as<sy_cross_entropy_attributes>().soft_targets != 0;
  return soft ? "n _, n _ -> n, n" : "n _, n -> n, n";
}
std::string CrossEntropyBackwardFactors(const Graph&, const Node& node) {
  const bool soft = node.attributes.as<sy_cross_entropy_attributes>().soft_targets != 0;
  return soft ? "n _, n _, n, n -> n _" : "n _, n, n, n -> n _";
}

double LossFlops(const Graph& graph, const Node& node) {
  return 5.0 * static_cast<double>(graph.type(node.inputs[0]).elements());
}

}  // namespace

std::vector<OpDefinition> LossOps() {
  return {{.name = "cross_entropy",
           .summary = "cross entropy with integer or soft targets",
           .infer = CrossEntropyTypes,
           .gradient = CrossEntropyGradient,
           .decompose = CrossEntropyDecompose,
           .flops = LossFlops,
           .traits = {.fused = true, .precision = Precision::kFull},
           .factors = {"n _, n -> n, n", CrossEntropyFactors}},
          {.name = "cross_entropy_backward",
           .summary = "its gradient",
           .infer = CrossEntropyBackwardTypes,
           .decompose = CrossEntropyBackwardDecompose,
           .flops = LossFlops,
           .traits = {.fused = true},
           .factors = {"n _, n, n, n -> n _", CrossEntropyBackwardFactors}},
          {.name = "label_rank",
           .summary = "rank of the true class, for top-k accuracy",
           .infer = LabelRankTypes,
           .flops = LossFlops,
           .traits = {.precision = Precision::kFull},
           .factors = "n _, n -> n"}};
}

}  // namespace switchyard
