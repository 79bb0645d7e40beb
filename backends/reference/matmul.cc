// matmul with its epilogues, as ops.h lists them.
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

// Positions of the optional operands, by the order that ops.h gives them.
struct Optional {
  size_t bias, preactivation, residual, count;
  explicit Optional(const sy_matmul_attributes& a) {
    size_t next = 2;
    bias = a.bias ? next++ : 0;
    preactivation = a.activation_gradient ? next++ : 0;
    residual = a.residual ? next++ : 0;
    count = next;
  }
};

void CheckMatmul(Check& check) {
  const auto& attr = check.attributes<sy_matmul_attributes>();
  check.Knows(attr.activation >= SY_ACTIVATION_NONE && attr.activation <= SY_ACTIVATION_SILU, "unknown activation");
  check.Need(!(attr.activation_gradient && attr.save_preactivation), "activation_gradient excludes save_preactivation");
  const int more = (attr.save_preactivation != 0) + (attr.bias_gradient != 0) + (attr.column_sums != 0);
  check.Need(more <= 1, "save_preactivation, bias_gradient and column_sums exclude each other");
  const Optional optional(attr);
  if (!check.Operands(optional.count, more > 0 ? 2 : 1) || !check.Floats()) return;
  const Dims a = check.InputDims(0), b = check.InputDims(1);
  if (!check.Need(a.size() >= 2 && a.size() == b.size() && WithoutLast(a, 2) == WithoutLast(b, 2),
                  Text("a and b need equal leading dims, found ", ToText(a), " and ", ToText(b)))) {
    return;
  }
  const size_t last = a.size() - 1;
  const int64_t m = a[attr.transpose_a ? last : last - 1], k = a[attr.transpose_a ? last - 1 : last];
  const int64_t n = b[attr.transpose_b ? last - 1 : last], other_k = b[attr.transpose_b ? last : last - 1];
  if (!check.Need(k == other_k, Text("a sums over ", k, " elements and b over ", other_k))) return;
  const Dims c = Join(WithoutLast(a, 2), {m, n});
  check.Output("c", 0, c);
  if (attr.bias) check.Input("bias", optional.bias, {n});
  if (attr.activation_gradient) check.Input("preactivation", optional.preactivation, c);
  if (attr.residual) check.Input("residual", optional.residual, c);
  if (attr.save_preactivation) check.Output("preactivation", 1, c);
  if (attr.bias_gradient) check.Output("bias_gradient", 1, {m});
  if (attr.column_sums) check.Output("column_sums", 1, {n});
}

// The matrices of `x` with rows and columns exchanged.
Array Transposed(const Array& x, int64_t rows, int64_t columns) {
  Array y = x;
  for (int64_t matrix = 0; matrix < x.size(); matrix += rows * columns) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) y[matrix + c * rows + r] = x[matrix + r * columns + c];
    }
  }
  return y;
}

// out[j] += Σ a[i]·b[i, j] over i in its order, of b (k, n): four terms at a time, so that out is read and written once
// for them.
void AddProduct(const double* a, const double* b, int64_t k, int64_t n, double* __restrict out) {
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) {
    const double *b0 = b + i * n, *b1 = b0 + n, *b2 = b1 + n, *b3 = b2 + n;
    const double a0 = a[i], a1 = a[i + 1], a2 = a[i + 2], a3 = a[i + 3];
    for (int64_t j = 0; j < n; ++j) out[j] = out[j] + a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
  }
  for (; i < k; ++i) {
    const double* row = b + i * n;
    for (int64_t j = 0; j < n; ++j) out[j] += a[i] * row[j];
  }
}

void RunMatmul(Call& call) {
  const auto& attr = call.attributes<sy_matmul_attributes>();
  const Optional optional(attr);
  Array& c = call.output(0);
  const size_t rank = c.dims.size();
  const int64_t m = c.dims[rank - 2], n = c.dims[rank - 1], batch = c.size() / (m * n);
  const int64_t k = call.input(0).size() / (batch * m);
  const Array turned_a = attr.transpose_a ? Transposed(call.input(0), k, m) : Array();
  const Array turned_b = attr.transpose_b ? Transposed(call.input(1), n, k) : Array();
  const Array& a = attr.transpose_a ? turned_a : call.input(0);  // (batch, m, k)
  const Array& b = attr.transpose_b ? turned_b : call.input(1);  // (batch, k, n)

  for (int64_t row = 0; row < batch * m; ++row)
    AddProduct(&a.values[static_cast<size_t>(row * k)], &b.values[static_cast<size_t>(row / m * k * n)], k, n,
               &c[row * n]);
  for (int64_t at = 0; at < c.size(); ++at) {
    double t = double{attr.alpha} * c[at];
    if (attr.bias) t += call.input(optional.bias)[at % n];
    if (attr.activation_gradient) {
      t *= ActivationDerivative(attr.activation, call.input(optional.preactivation)[at]);
    } else {
      if (attr.save_preactivation) call.output(1)[at] = t;
      t = Activate(attr.activation, t);
    }
    c[at] = attr.residual ? t + call.input(optional.residual)[at] : t;
    if (attr.column_sums) call.output(1)[at % n] += c[at];
  }
  if (attr.bias_gradient) {
    for (int64_t at = 0; at < a.size(); ++at) call.output(1)[at / k % m] += a[at];
  }
}

}  // namespace

double Activate(int32_t activation, double x) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      return 0.5 * x * (1 + std::erf(x * M_SQRT1_2));  // Hendrycks and Gimpel, 2016
    case SY_ACTIVATION_GELU_TANH:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case SY_ACTIVATION_RELU:
      return x < 0 ? 0 : x;
    case SY_ACTIVATION_SILU:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

double ActivationDerivative(int32_t activation, double x) {
  switch (activation) {
    case SY_ACTIVATION_GELU: {
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
      return 0.5 * (1 + std::erf(x * M_SQRT1_2)) + x * density;
    }
    case SY_ACTIVATION_GELU_TANH: {
      const double slope = std::sqrt(2 / M_PI), t = std::tanh(slope * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x);
    }
    case SY_ACTIVATION_RELU:
      return x > 0 ? 1 : 0;
    case SY_ACTIVATION_SILU: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    default:
      return 1;
  }
}

namespace {

const Operation kMatmul{"matmul", sizeof(sy_matmul_attributes), CheckMatmul, RunMatmul};

}  // namespace

}  // namespace switchyard
