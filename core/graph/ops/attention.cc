// attention: softmax(scale·q·kᵀ + bias + mask)·v and its gradient; decomposes into matmul and softmax. window_attention
// reads and writes the tokens of windows where they lie in maps; decomposes into attention between two moves of rows.
#include "core/graph/ops/attention.h"

#include <cmath>

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"
#include "fmt/format.h"

namespace switchyard {
namespace ops {

static Value AttentionNode(const std::string& op, std::vector<Value> inputs, const Value& bias, const Value& mask,
                           float scale, Where where) {
  const Value qkv = inputs[0];
  sy_attention_attributes attributes{};
  attributes.scale = scale != 0 ? scale : 1 / std::sqrt(static_cast<float>(qkv.shape().empty() ? 1 : qkv.dim(-1)));
  if (bias) {
    attributes.bias = 1;
    inputs.push_back(bias);
  }
  if (mask) {
    attributes.mask = 1;
    inputs.push_back(mask);
  }
  return qkv.graph().Add(op, inputs, Attributes(attributes), {}, where)[0];
}

Value Attention(const Value& qkv, const Value& bias, const Value& mask, float scale, Where where) {
  return AttentionNode("attention", {qkv}, bias, mask, scale, where);
}

Value WindowAttention(const Value& qkv, const Value& rows, const Value& bias, const Value& mask, float scale,
                      Where where) {
  return AttentionNode("window_attention", {qkv, rows}, bias, mask, scale, where);
}

}  // namespace ops

namespace {

// The extra inputs, which stand from `first` on.
void CheckBiasAndMask(const Signature& call, size_t first) {
  const auto& a = call.attributes.as<sy_attention_attributes>();
  call.RequireInputs(first + (a.bias != 0) + (a.mask != 0));
  call.Require(call.rank(0) == 5 && call.dim(0, 2) == 3, "qkv must be (B, T, 3, H, D)");
  const int64_t batch = call.dim(0, 0), tokens = call.dim(0, 1), heads = call.dim(0, 3);
  if (a.bias) call.Require(call.shape(first) == Shape{heads, tokens, tokens}, "bias must be (H, T, T)");
  if (!a.mask) return;
  const Shape& mask = call.inputs.back().shape;
  call.Require(mask.size() == 3 && mask[1] == tokens && mask[2] == tokens && mask[0] > 0 && batch % mask[0] == 0,
               "mask must be (G, T, T) with B a multiple of G");
}

// Input `at` has the rows of windows, (W, T).
void CheckRows(const Signature& call, size_t at) {
  CheckBiasAndMask(call, at + 1);
  call.Require(call[at].dtype == DType::kI32 && call.rank(at) == 2 && call.dim(at, 1) == call.dim(0, 1) &&
                   call.dim(at, 0) > 0 && call.dim(0, 0) % call.dim(at, 0) == 0,
               "rows must be (W, T) i32 with B a multiple of W");
}

std::vector<TensorType> ResultTypes(const Signature& call) {
  const Shape& s = call.shape(0);
  return {{call[0].dtype, {s[0], s[1], s[3], s[4]}}, {DType::kF32, {s[0], s[3], s[1]}}};
}

std::vector<TensorType> AttentionTypes(const Signature& call) {
  CheckBiasAndMask(call, 1);
  return ResultTypes(call);
}
std::vector<TensorType> WindowAttentionTypes(const Signature& call) {
  CheckRows(call, 1);
  return ResultTypes(call);
}

// The bias, if any, is input `bias`.
std::vector<TensorType> GradientTypes(const Signature& call, size_t bias) {
  const Shape& s = call.shape(0);
  const Shape out = {s[0], s[1], s[3], s[4]};
  call.Require(call.shape(1) == out && call.shape(3) == out && call.shape(2) == Shape{s[0], s[3], s[1]},
               "expected qkv, out (B, T, H, D), logsumexp (B, H, T), dout (B, T, H, D)");
  std::vector<TensorType> results = {call[0]};
  if (call.attributes.as<sy_attention_attributes>().bias) results.push_back({DType::kF32, call.shape(bias)});
  return results;
}
std::vector<TensorType> AttentionBackwardTypes(const Signature& call) {
  CheckBiasAndMask(call, 4);
  return GradientTypes(call, 4);
}
std::vector<TensorType> WindowAttentionBackwardTypes(const Signature& call) {
  CheckRows(call, 4);
  return GradientTypes(call, 5);
}

// Of either op: its gradient takes results and incoming gradient behind qkv, then the other inputs.
std::vector<Value> AttentionGradient(Graph& graph, int id, const std::vector<Value>& dy,
                                     const std::vector<bool>& wanted) {
  const Node node = graph.node(id);
  const auto a = node.attributes.as<sy_attention_attributes>();
  if (a.mask && wanted.back())
    ThrowBuildError(node.op, "a mask has no gradient, and a parameter is behind it; a bias has one", {}, node.where);
  std::vector<Value> inputs = {graph.value(node.inputs[0]), graph.value({id, 0}), graph.value({id, 1}),
                               ops::Cast(dy[0], node.outputs[0].dtype)};
  for (size_t i = 1; i < node.inputs.size(); ++i) inputs.push_back(graph.value(node.inputs[i]));
  const auto results =
      graph.Add(node.op + "_backward", inputs, node.attributes, {}, node.where, node.name + "/backward");
  graph.mutable_node(results[0].ref().node).forward = id;
  std::vector<Value> gradients(node.inputs.size());
  gradients[0] = results[0];
  const size_t bias = node.op == "attention" ? 1 : 2;
  if (a.bias && wanted[bias]) gradients[bias] = ops::Cast(results[1], graph.type(node.inputs[bias]).dtype);
  return gradients;
}

// (B, T, 3, H, D) → q, k, v, each (B·H, T, D)
std::vector<Value> Split(const Value& qkv) {
  const int64_t b = qkv.dim(0), t = qkv.dim(1), h = qkv.dim(3), d = qkv.dim(4);
  const Value parts = ops::Transpose(qkv, {2, 0, 3, 1, 4});  // (3, B, H, T, D)
  std::vector<Value> result;
  for (int i = 0; i < 3; ++i) result.push_back(ops::Reshape(ops::Slice(parts, 0, i, 1), {b * h, t, d}));
  return result;
}

Value Scores(const Value& q, const Value& k, const sy_attention_attributes& a, const Value& bias, const Value& mask,
             int64_t heads) {
  const int64_t bh = q.dim(0), t = q.dim(1);
  ops::MatmulOptions options;
  options.transpose_b = true;
  options.alpha = a.scale;
  Value s = ops::Cast(ops::Matmul(q, k, options), DType::kF32);
  if (bias) s = ops::Reshape(ops::Add(ops::Reshape(s, {bh / heads, heads, t, t}), bias), {bh, t, t});
  if (mask) {
    const int64_t g = mask.dim(0);
    s = ops::Reshape(ops::Add(ops::Reshape(s, {bh / heads / g, g, heads, t, t}), ops::Reshape(mask, {g, 1, t, t})),
                     {bh, t, t});
  }
  return s;
}

std::vector<Value> AttentionDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_attention_attributes>();
  const int64_t b = inputs[0].dim(0), t = inputs[0].dim(1), h = inputs[0].dim(3), d = inputs[0].dim(4);
  const auto qkv = Split(inputs[0]);
  const Value s = Scores(qkv[0], qkv[1], a, a.bias ? inputs[1] : Value(), a.mask ? inputs.back() : Value(), h);
  const Value largest = ops::Reduce(s, SY_REDUCE_MAX, 1u << 2, 1, true);
  const Value sums = ops::Reduce(ops::Unary(SY_PW_EXP, ops::Sub(s, largest)), SY_REDUCE_SUM, 1u << 2, 1, true);
  const Value lse = ops::Add(ops::Unary(SY_PW_LOG, sums), largest);
  const Value p = ops::Cast(ops::Softmax(s), qkv[2].dtype());
  const Value o = ops::Transpose(ops::Reshape(ops::Matmul(p, qkv[2]), {b, h, t, d}), {0, 2, 1, 3});
  return {o, ops::Reshape(lse, {b, h, t})};
}

// p = exp(s − lse); dv = pᵀ·do; dp = do·vᵀ; ds = p·(dp − Σ dp·p); dq = scale·ds·k; dk = scale·dsᵀ·q.
std::vector<Value> AttentionBackwardDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_attention_attributes>();
  const int64_t b = inputs[0].dim(0), t = inputs[0].dim(1), h = inputs[0].dim(3), d = inputs[0].dim(4);
  const DType dtype = inputs[0].dtype();
  const auto qkv = Split(inputs[0]);
  const Value s = Scores(qkv[0], qkv[1], a, a.bias ? inputs[4] : Value(), a.mask ? inputs.back() : Value(), h);
  const Value p = ops::Unary(SY_PW_EXP, ops::Sub(s, ops::Reshape(inputs[2], {b * h, t, 1})));
  const Value dout = ops::Reshape(ops::Transpose(inputs[3], {0, 2, 1, 3}), {b * h, t, d});
  ops::MatmulOptions left, right, scaled, scaled_left;
  left.transpose_a = true;
  right.transpose_b = true;
  scaled.alpha = scaled_left.alpha = a.scale;
  scaled_left.transpose_a = true;
  const Value dv = ops::Matmul(ops::Cast(p, dtype), dout, left);
  const Value dp = ops::Cast(ops::Matmul(dout, qkv[2], right), DType::kF32);
  const Value ds = ops::Mul(p, ops::Sub(dp, ops::Reduce(ops::Mul(dp, p), SY_REDUCE_SUM, 1u << 2, 1, true)));
  const Value ds_half = ops::Cast(ds, dtype);
  const Value dq = ops::Matmul(ds_half, qkv[1], scaled), dk = ops::Matmul(ds_half, qkv[0], scaled_left);
  std::vector<Value> parts;
  for (const Value& part : {dq, dk, dv})
    parts.push_back(ops::Reshape(ops::Transpose(ops::Reshape(part, {b, h, t, d}), {0, 2, 1, 3}), {b, t, 1, h, d}));
  std::vector<Value> results = {ops::Concat(parts, 2)};
  if (a.bias) results.push_back(ops::Reduce(ops::Reshape(ds, {b, h, t, t}), SY_REDUCE_SUM, 1));
  return results;
}

// x (B, T, …) of maps as windows, and back. Windows' tokens lie at rows (W, T) of their map.
Value MapsToWindows(const Value& x, const Value& rows) {
  const int64_t tokens = rows.dim(0) * rows.dim(1), maps = x.dim(0) / rows.dim(0);
  const Value by_token = ops::Transpose(ops::Reshape(x, {maps, tokens, -1}), {1, 0, 2});
  return ops::Reshape(ops::Transpose(ops::Gather(by_token, ops::Reshape(rows, {tokens})), {1, 0, 2}), x.shape());
}
Value WindowsToMaps(const Value& x, const Value& rows) {
  const int64_t tokens = rows.dim(0) * rows.dim(1), maps = x.dim(0) / rows.dim(0);
  const Value by_token = ops::Transpose(ops::Reshape(x, {maps, tokens, -1}), {1, 0, 2});
  return ops::Reshape(ops::Transpose(ops::ScatterAdd(ops::Reshape(rows, {tokens}), by_token, tokens), {1, 0, 2}),
                      x.shape());
}

std::vector<Value> WindowAttentionDecompose(Graph& graph, const Node& node, const std::vector<Value>& inputs) {
  std::vector<Value> windows = {MapsToWindows(inputs[0], inputs[1])};
  windows.insert(windows.end(), inputs.begin() + 2, inputs.end());
  std::vector<Value> results = graph.Add("attention", windows, node.attributes, {}, node.where);
  results[0] = WindowsToMaps(results[0], inputs[1]);
  return results;
}

std::vector<Value> WindowAttentionBackwardDecompose(Graph& graph, const Node& node, const std::vector<Value>& inputs) {
  const Value& rows = inputs[4];
  std::vector<Value> windows = {MapsToWindows(inputs[0], rows), MapsToWindows(inputs[1], rows), inputs[2],
                                MapsToWindows(inputs[3], rows)};
  windows.insert(windows.end(), inputs.begin() + 5, inputs.end());
  std::vector<Value> results = graph.Add("attention_backward", windows, node.attributes, {}, node.where);
  results[0] = WindowsToMaps(results[0], rows);
  return results;
}

// With a mask, sample b = (o, g) takes the mask of group g.
std::string AttentionFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_attention_attributes>();
  const std::string b = a.mask ? "(o g)" : "b", bias = a.bias ? ", h _ _" : "", mask = a.mask ? ", g _ _" : "";
  return fmt::format("{0} _ 3 h _{1}{2} -> {0} _ h _, {0} h _", b, bias, mask);
}
std::string AttentionBackwardFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_attention_attributes>();
  const std::string b = a.mask ? "(o g)" : "b", bias = a.bias ? ", h _ _" : "", mask = a.mask ? ", g _ _" : "";
  return fmt::format("{0} _ 3 h _, {0} _ h _, {0} h _, {0} _ h _{1}{2} -> {0} _ 3 h _{1}", b, bias, mask);
}

// Windows of a map stay together.
std::string WindowAttentionFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_attention_attributes>();
  return fmt::format("_ _ 3 h _, _ _{}{} -> _ _ h _, _ h _", a.bias ? ", h _ _" : "", a.mask ? ", _ _ _" : "");
}
std::string WindowAttentionBackwardFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_attention_attributes>();
  const std::string bias = a.bias ? ", h _ _" : "", mask = a.mask ? ", _ _ _" : "";
  return fmt::format("_ _ 3 h _, _ _ h _, _ h _, _ _ h _, _ _{0}{1} -> _ _ 3 h _{0}", bias, mask);
}

// Of one product of a query with every key.
double ProductFlops(const Graph& graph, const Node& node) {
  const Shape& s = graph.type(node.inputs[0]).shape;
  return 2.0 * s[0] * s[3] * s[1] * s[1] * s[4];
}

}  // namespace

std::vector<OpDefinition> AttentionOps() {
  return {{.name = "attention",
           .summary = "scaled dot-product attention on packed qkv",
           .infer = AttentionTypes,
           .gradient = AttentionGradient,
           .decompose = AttentionDecompose,
           .flops = [](const Graph& g, const Node& n) { return 2 * ProductFlops(g, n); },
           .traits = {.fused = true, .precision = Precision::kHalf, .half_inputs = 1},
           .factors = {"b _ 3 h _ -> b _ h _, b h _", AttentionFactors}},
          {.name = "attention_backward",
           .summary = "its gradient",
           .infer = AttentionBackwardTypes,
           .decompose = AttentionBackwardDecompose,
           .flops = [](const Graph& g, const Node& n) { return 5 * ProductFlops(g, n); },
           .traits = {.fused = true},
           .factors = {"b _ 3 h _, b _ h _, b h _, b _ h _ -> b _ 3 h _", AttentionBackwardFactors}},
          {.name = "window_attention",
           .summary = "attention within windows whose tokens lie scattered in maps",
           .infer = WindowAttentionTypes,
           .gradient = AttentionGradient,
           .decompose = WindowAttentionDecompose,
           .flops = [](const Graph& g, const Node& n) { return 2 * ProductFlops(g, n); },
           .traits = {.fused = true, .precision = Precision::kHalf, .half_inputs = 1},
           .factors = {"_ _ 3 h _, _ _ -> _ _ h _, _ h _", WindowAttentionFactors}},
          {.name = "window_attention_backward",
           .summary = "its gradient",
           .infer = WindowAttentionBackwardTypes,
           .decompose = WindowAttentionBackwardDecompose,
           .flops = [](const Graph& g, const Node& n) { return 5 * ProductFlops(g, n); },
           .traits = {.fused = true},
           .factors = {"_ _ 3 h _, _ _ h _, _ h _, _ _ h _, _ _ -> _ _ 3 h _", WindowAttentionBackwardFactors}}};
}

}  // namespace switchyard
