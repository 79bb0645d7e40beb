// matmul and linear.
#include "core/graph/ops/matmul.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "fmt/format.h"

namespace switchyard {
namespace ops {

std::vector<Value> MatmulNode(const std::vector<Value>& inputs, sy_matmul_attributes attributes, DType dtype,
                              Where where, const std::string& name) {
  return inputs.at(0).graph().Add("matmul", inputs, Attributes(attributes), {.dtypes = {dtype}}, where, name);
}

Value Matmul(const Value& a, const Value& b, const MatmulOptions& options, Where where) {
  sy_matmul_attributes attributes{};
  attributes.transpose_a = options.transpose_a;
  attributes.transpose_b = options.transpose_b;
  attributes.alpha = options.alpha;
  std::vector<Value> inputs = {a, b};
  if (options.bias) {
    attributes.bias = 1;
    inputs.push_back(options.bias);
  }
  return MatmulNode(inputs, attributes, Widest(a.dtype(), b.dtype()), where)[0];
}

Value Linear(const Value& x, const Value& weight, const Value& bias, Where where) {
  if (weight.rank() != 2 || x.rank() < 1 || x.dim(-1) != weight.dim(1))
    ThrowBuildError("linear", "x (…, K) needs weight (N, K)", {x, weight}, where);
  Shape shape = x.shape();
  shape.back() = weight.dim(0);
  const Value rows = Reshape(x, {-1, x.dim(-1)}, where);
  MatmulOptions options;
  options.transpose_b = true;
  options.bias = bias;
  return Reshape(Matmul(rows, weight, options, where), shape, where);
}

}  // namespace ops

namespace {

// Result 0 may be asked for in another floating dtype than the factors' widest: weight gradients in f32 from halves.
std::vector<TensorType> MatmulTypes(const Signature& call) {
  const auto& a = call.attributes.as<sy_matmul_attributes>();
  call.Require(a.activation >= SY_ACTIVATION_NONE && a.activation <= SY_ACTIVATION_SILU, "there is no such activation");
  call.RequireInputs(2 + (a.bias != 0) + (a.activation_gradient != 0) + (a.residual != 0));
  call.Require(call.rank(0) >= 2 && call.rank(0) == call.rank(1), "both factors need the same rank of at least 2");
  for (int axis = 0; axis + 2 < call.rank(0); ++axis)
    call.Require(call.dim(0, axis) == call.dim(1, axis), "leading axes differ");
  const int64_t m = call.dim(0, a.transpose_a ? -1 : -2), n = call.dim(1, a.transpose_b ? -2 : -1);
  call.Require(call.dim(0, a.transpose_a ? -2 : -1) == call.dim(1, a.transpose_b ? -1 : -2), "inner extents differ");
  const DType dtype = call.DTypeOr(Widest(call[0].dtype, call[1].dtype));
  call.Require(IsFloating(dtype), "the result must be floating");
  TensorType product = {dtype, call.shape(0)};
  product.shape[product.shape.size() - 2] = m;
  product.shape.back() = n;
  size_t next = 2;
  if (a.bias) call.Require(call.shape(next++) == Shape{n}, "the bias must have the result's last extent");
  if (a.activation_gradient)
    call.Require(call.shape(next++) == product.shape, "the preactivation has another shape than the result");
  if (a.residual) call.Require(call.shape(next++) == product.shape, "the residual has another shape than the result");
  std::vector<TensorType> results = {product};
  if (a.save_preactivation) results.push_back(product);
  if (a.bias_gradient) results.push_back({DType::kF32, {m}});
  if (a.column_sums) results.push_back({DType::kF32, {n}});
  call.Require(results.size() <= 2, "save_preactivation, bias_gradient and column_sums exclude each other");
  return results;
}

// With t = alpha·op(a)·op(b) + bias, c = act(t) + residual: dt = dc·act'(t); d op(a) = alpha·dt·op(b)ᵀ; d op(b) =
// alpha·op(a)ᵀ·dt.
std::vector<Value> MatmulGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>& wanted) {
  const Node node = graph.node(id);
  const auto a = node.attributes.as<sy_matmul_attributes>();
  const Value x = graph.value(node.inputs[0]), w = graph.value(node.inputs[1]);
  if (a.activation_gradient || a.column_sums)
    ThrowBuildError("matmul", "no gradient rule of a product that is itself a gradient", {x, w}, node.where);
  std::vector<Value> gradients(node.inputs.size());
  Value dt = dy[0];
  if (a.residual && wanted.back()) gradients.back() = dt;
  if (a.activation != SY_ACTIVATION_NONE) {
    sy_matmul_attributes again = a;
    again.activation = SY_ACTIVATION_NONE;
    again.residual = 0;
    again.save_preactivation = 0;
    std::vector<Value> inputs;
    for (size_t i = 0; i < node.inputs.size() - (a.residual ? 1 : 0); ++i)
      inputs.push_back(graph.value(node.inputs[i]));
    const Value t =
        a.save_preactivation ? Value(&graph, {id, 1}) : ops::MatmulNode(inputs, again, node.outputs[0].dtype)[0];
    constexpr int kGradient[] = {0, SY_PW_GELU_GRAD, SY_PW_GELU_TANH_GRAD, SY_PW_RELU_GRAD, SY_PW_SILU_GRAD};
    dt = ops::Mul(dt, ops::Unary(kGradient[a.activation], t));
  }
  const auto product = [&](const Value& l, const Value& r, bool tl, bool tr) {
    ops::MatmulOptions options;
    options.transpose_a = tl;
    options.transpose_b = tr;
    options.alpha = a.alpha;
    return ops::Matmul(l, r, options);
  };
  if (wanted[0]) {
    gradients[0] = a.transpose_a ? product(w, dt, a.transpose_b, true) : product(dt, w, false, !a.transpose_b);
    gradients[0] = ops::Cast(gradients[0], x.dtype());
  }
  if (wanted[1]) {
    gradients[1] = a.transpose_b ? product(dt, x, true, a.transpose_a) : product(x, dt, !a.transpose_a, false);
    gradients[1] = ops::Cast(gradients[1], w.dtype());
  }
  if (a.bias && wanted[2]) {
    const uint32_t rows = (1u << (dt.rank() - 1)) - 1;
    gradients[2] = ops::Cast(ops::Reduce(dt, SY_REDUCE_SUM, rows), graph.type(node.inputs[2]).dtype);
  }
  return gradients;
}

// Drops what a plain product does not have: activation, residual, bias, alpha, sums, each as its own node.
std::vector<Value> MatmulDecompose(Graph& graph, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_matmul_attributes>();
  if (!a.bias && !a.activation && !a.save_preactivation && !a.activation_gradient && !a.residual && !a.bias_gradient &&
      !a.column_sums && a.alpha == 1) {
    if (std::vector<Value> rounded = ops::CastSums(graph, node, inputs); !rounded.empty()) return rounded;
    // Strip transposes last: an elementary product takes neither.
    if (!a.transpose_a && !a.transpose_b) return {};
    const auto swap_last = [](const Value& v) {
      std::vector<int> axes(v.rank());
      for (int i = 0; i < v.rank(); ++i) axes[i] = i;
      std::swap(axes[v.rank() - 1], axes[v.rank() - 2]);
      return ops::Transpose(v, axes);
    };
    sy_matmul_attributes plain{};
    plain.alpha = 1;
    return ops::MatmulNode(
        {a.transpose_a ? swap_last(inputs[0]) : inputs[0], a.transpose_b ? swap_last(inputs[1]) : inputs[1]}, plain,
        node.outputs[0].dtype);
  }
  sy_matmul_attributes plain{};
  plain.transpose_a = a.transpose_a;
  plain.transpose_b = a.transpose_b;
  plain.alpha = 1;
  Value t = ops::MatmulNode({inputs[0], inputs[1]}, plain, node.outputs[0].dtype)[0];
  t = ops::Scale(t, a.alpha);
  size_t next = 2;
  if (a.bias) t = ops::Cast(ops::Add(t, inputs[next++]), node.outputs[0].dtype);
  std::vector<Value> results = {t};
  if (a.activation_gradient) {
    constexpr int kGradient[] = {0, SY_PW_GELU_GRAD, SY_PW_GELU_TANH_GRAD, SY_PW_RELU_GRAD, SY_PW_SILU_GRAD};
    t = ops::Mul(t, ops::Unary(kGradient[a.activation], inputs[next++]));
  } else {
    if (a.save_preactivation) results.push_back(t);
    t = ops::Activation(t, a.activation);
  }
  if (a.residual) t = ops::Add(t, inputs[next++]);
  results[0] = ops::Cast(t, node.outputs[0].dtype);
  if (a.bias_gradient) {
    const int k_axis = inputs[0].rank() - (a.transpose_a ? 2 : 1);
    results.push_back(ops::Reduce(ops::Cast(inputs[0], DType::kF32), SY_REDUCE_SUM, 1u << k_axis));
  }
  if (a.column_sums) results.push_back(ops::SumOfRows(t));
  return results;
}

// The result is linear in the products, so that k leaves partial sums; but for an activation, which needs the sum.
std::string MatmulFactors(const Graph&, const Node& node) {
  const auto& a = node.attributes.as<sy_matmul_attributes>();
  const char* k = a.activation != SY_ACTIVATION_NONE && !a.activation_gradient ? "_" : "k";
  std::string line = fmt::format(fmt::runtime(a.transpose_a ? "... {0} m" : "... m {0}"), k);
  line += fmt::format(fmt::runtime(a.transpose_b ? ", ... n {0}" : ", ... {0} n"), k);
  if (a.bias) line += ", +n";
  if (a.activation_gradient) line += ", ... m n";
  if (a.residual) line += ", +... m n";
  line += " -> ... m n";
  if (a.save_preactivation) line += ", ... m n";
  if (a.bias_gradient) line += ", m =n";
  if (a.column_sums) line += ", n";
  return line;
}

double MatmulFlops(const Graph& graph, const Node& node) {
  const auto a = node.attributes.as<sy_matmul_attributes>();
  const Shape& x = graph.type(node.inputs[0]).shape;
  const int64_t k = x[x.size() - (a.transpose_a ? 2 : 1)];
  return 2.0 * static_cast<double>(node.outputs[0].elements()) * static_cast<double>(k);
}

}  // namespace

std::vector<OpDefinition> MatmulOps() {
  return {{.name = "matmul",
           .summary = "matrix product with bias, activation and residual epilogues",
           .infer = MatmulTypes,
           .gradient = MatmulGradient,
           .decompose = MatmulDecompose,
           .flops = MatmulFlops,
           .traits = {.wide_sums = true, .precision = Precision::kHalf, .half_inputs = 2},
           .factors = {"... m k, ... k n, +n -> ... m n", MatmulFactors}}};
}

}  // namespace switchyard
