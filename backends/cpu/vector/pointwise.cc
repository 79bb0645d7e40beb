// One pointwise instruction on a block of elements, and the activations that follow or precede a matmul.
#include "backends/cpu/vector/convert.h"
#include "backends/cpu/vector/math.h"
#include "backends/cpu/vector/matmul_rows.h"

namespace switchyard::SY_ISA {
namespace {

template <typename F>
SY_INLINE void Unary(float* out, const float* a, int64_t n, F f) {
  ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED { Store(out + i, f(Load(a + i, lanes)), lanes); });
}
template <typename F>
SY_INLINE void Binary(float* out, const float* a, const float* b, int64_t n, F f) {
  ForEachVector(n, [&](int64_t i, int64_t lanes)
                       SY_INLINED { Store(out + i, f(Load(a + i, lanes), Load(b + i, lanes)), lanes); });
}

// max and min return NaN if either operand is one.
SY_INLINE Floats Maximum(Floats a, Floats b) { return a > b ? a : (a != a ? a : b); }
SY_INLINE Floats Minimum(Floats a, Floats b) { return a < b ? a : (a != a ? a : b); }

template <bool gradient, typename F>
SY_INLINE void Apply(Rows x, Rows y, int64_t begin, int64_t end, F f) {
  ForEachVector(end - begin, [&](int64_t i, int64_t lanes) SY_INLINED {
    Floats v = f(LoadRow(x, begin + i, lanes));
    if constexpr (gradient) v *= LoadRow(y, begin + i, lanes);
    StoreRow(y, begin + i, v, lanes);
  });
}

}  // namespace

void activate(int32_t activation, Rows x, Rows y, int64_t begin, int64_t end) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      if (y.dtype == SY_BF16) return Apply<false>(x, y, begin, end, [](Floats v) SY_INLINED { return GeluForBf16(v); });
      return Apply<false>(x, y, begin, end, [](Floats v) SY_INLINED { return Gelu(v); });
    case SY_ACTIVATION_GELU_TANH:
      return Apply<false>(x, y, begin, end, [](Floats v) SY_INLINED { return GeluTanh(v); });
    case SY_ACTIVATION_RELU:
      return Apply<false>(x, y, begin, end, [](Floats v) SY_INLINED { return Relu(v); });
    case SY_ACTIVATION_SILU:
      return Apply<false>(x, y, begin, end, [](Floats v) SY_INLINED { return Silu(v); });
    default:
      return Apply<false>(x, y, begin, end, [](Floats v) SY_INLINED { return v; });
  }
}

void scale_by_activation_gradient(int32_t activation, Rows x, Rows y, int64_t begin, int64_t end) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      if (y.dtype == SY_BF16)
        return Apply<true>(x, y, begin, end, [](Floats v) SY_INLINED { return GeluGradientForBf16(v); });
      return Apply<true>(x, y, begin, end, [](Floats v) SY_INLINED { return GeluGradient(v); });
    case SY_ACTIVATION_GELU_TANH:
      return Apply<true>(x, y, begin, end, [](Floats v) SY_INLINED { return GeluTanhGradient(v); });
    case SY_ACTIVATION_RELU:
      return Apply<true>(x, y, begin, end, [](Floats v) SY_INLINED { return ReluGradient(v); });
    case SY_ACTIVATION_SILU:
      return Apply<true>(x, y, begin, end, [](Floats v) SY_INLINED { return SiluGradient(v); });
    default:
      return;
  }
}

void finish_matmul(const MatmulRows& a, int64_t rows, const float* sums, int64_t sums_stride) {
  FinishMatmul(a, rows, sums, sums_stride);
}

void instruction(const sy_instruction& in, float* out, const float* a, const float* b, const float* c, int64_t n) {
  const Floats one = Splat(1.0f), zero = Splat(0.0f);
  switch (in.op) {
    case SY_PW_CONSTANT:
      return ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED { Store(out + i, Splat(in.value), lanes); });
    case SY_PW_ADD:
      return Binary(out, a, b, n, [](Floats x, Floats y) SY_INLINED { return x + y; });
    case SY_PW_SUB:
      return Binary(out, a, b, n, [](Floats x, Floats y) SY_INLINED { return x - y; });
    case SY_PW_MUL:
      return Binary(out, a, b, n, [](Floats x, Floats y) SY_INLINED { return x * y; });
    case SY_PW_DIV:
      return Binary(out, a, b, n, [](Floats x, Floats y) SY_INLINED { return x / y; });
    case SY_PW_MAX:
      return Binary(out, a, b, n, [](Floats x, Floats y) SY_INLINED { return Maximum(x, y); });
    case SY_PW_MIN:
      return Binary(out, a, b, n, [](Floats x, Floats y) SY_INLINED { return Minimum(x, y); });
    case SY_PW_POW:
      for (int64_t i = 0; i < n; ++i) out[i] = __builtin_powf(a[i], b[i]);
      return;
    case SY_PW_NEG:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return -x; });
    case SY_PW_ABS:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Absolute(x); });
    case SY_PW_EXP:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Exp(x); });
    case SY_PW_LOG:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Log(x); });
    case SY_PW_SQRT:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return SquareRoot(x); });
    case SY_PW_RSQRT:
      return Unary(out, a, n, [&](Floats x) SY_INLINED { return one / SquareRoot(x); });
    case SY_PW_RECIPROCAL:
      return Unary(out, a, n, [&](Floats x) SY_INLINED { return one / x; });
    case SY_PW_TANH:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Tanh(x); });
    case SY_PW_SIGMOID:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Sigmoid(x); });
    case SY_PW_ERF:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Erf(x); });
    case SY_PW_FLOOR:
      for (int64_t i = 0; i < n; ++i) out[i] = __builtin_floorf(a[i]);
      return;
    case SY_PW_RELU:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Relu(x); });
    case SY_PW_GELU:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Gelu(x); });
    case SY_PW_GELU_TANH:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return GeluTanh(x); });
    case SY_PW_SILU:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return Silu(x); });
    case SY_PW_RELU_GRAD:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return ReluGradient(x); });
    case SY_PW_GELU_GRAD:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return GeluGradient(x); });
    case SY_PW_GELU_TANH_GRAD:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return GeluTanhGradient(x); });
    case SY_PW_SILU_GRAD:
      return Unary(out, a, n, [](Floats x) SY_INLINED { return SiluGradient(x); });
    case SY_PW_LESS:
      return Binary(out, a, b, n, [&](Floats x, Floats y) SY_INLINED { return x < y ? one : zero; });
    case SY_PW_LESS_EQUAL:
      return Binary(out, a, b, n, [&](Floats x, Floats y) SY_INLINED { return x <= y ? one : zero; });
    case SY_PW_EQUAL:
      return Binary(out, a, b, n, [&](Floats x, Floats y) SY_INLINED { return x == y ? one : zero; });
    case SY_PW_SELECT:
      return ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
        Store(out + i, Load(a + i, lanes) != zero ? Load(b + i, lanes) : Load(c + i, lanes), lanes);
      });
    case SY_PW_IS_FINITE:
      return Unary(out, a, n, [&](Floats x) SY_INLINED { return x - x == zero ? one : zero; });
    default:
      return;
  }
}

}  // namespace switchyard::SY_ISA
