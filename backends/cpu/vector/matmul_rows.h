// What follows the sums of a matmul, on a block of rows: see MatmulRows.
#pragma once

#include "backends/cpu/vector/convert.h"
#include "backends/cpu/vector/math.h"

namespace switchyard::SY_ISA {

SY_INLINE Rows RowsFrom(const Rows& x, int64_t element) {
  return {x.data == nullptr ? nullptr : x.data + element * ElementBytes(x.dtype), x.dtype};
}

// Past the caches, where `streamed` and the address allow it.
SY_INLINE void StoreRow(const Rows& y, int64_t i, Floats v, int64_t lanes, [[maybe_unused]] bool streamed) {
#if defined(__AVX512F__)
  char* const to = y.data + i * ElementBytes(y.dtype);
  if (streamed && lanes == kLanes && reinterpret_cast<uintptr_t>(to) % 32 == 0) {
    if (y.dtype == SY_BF16) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), Bits<__m256i>(ToBf16(v)));
    if (y.dtype == SY_F32 && reinterpret_cast<uintptr_t>(to) % 64 == 0)
      return _mm512_stream_ps(reinterpret_cast<float*>(to), v);
  }
#endif
  StoreRow(y, i, v, lanes);
}

template <typename F, typename G>
SY_INLINE void FinishRows(const MatmulRows& a, int64_t rows, const float* sums, int64_t sums_stride, F activation,
                          G slope) {
  for (int64_t r = 0; r < rows; ++r, sums += sums_stride) {
    const int64_t at = r * a.stride;
    const Rows preactivation = RowsFrom(a.preactivation, at), saved = RowsFrom(a.saved, at),
               residual = RowsFrom(a.residual, at), out = RowsFrom(a.out, at);
    ForEachVector(a.columns, [&](int64_t i, int64_t lanes) SY_INLINED {
      Floats v = Load(sums + i, lanes) * a.alpha;
      if (a.bias.data) v += LoadRow(a.bias, i, lanes);
      if (preactivation.data) {
        v *= slope(LoadRow(preactivation, i, lanes));
      } else {
        if (saved.data) StoreRow(saved, i, v, lanes, a.streamed);
        v = activation(v);
      }
      if (residual.data) v += LoadRow(residual, i, lanes);
      if (a.accumulate) v += LoadRow(out, i, lanes);
      StoreRow(out, i, v, lanes, a.streamed);
    });
  }
}

inline void FinishMatmul(const MatmulRows& a, int64_t rows, const float* sums, int64_t sums_stride) {
  const auto finish = [&](auto activation, auto slope)
                          SY_INLINED { FinishRows(a, rows, sums, sums_stride, activation, slope); };
  switch (a.activation) {
    case SY_ACTIVATION_GELU:
      if (a.out.dtype == SY_BF16)
        return finish([](Floats v) SY_INLINED { return GeluForBf16(v); },
                      [](Floats v) SY_INLINED { return GeluGradientForBf16(v); });
      return finish([](Floats v) SY_INLINED { return Gelu(v); }, [](Floats v) SY_INLINED { return GeluGradient(v); });
    case SY_ACTIVATION_GELU_TANH:
      return finish([](Floats v) SY_INLINED { return GeluTanh(v); },
                    [](Floats v) SY_INLINED { return GeluTanhGradient(v); });
    case SY_ACTIVATION_RELU:
      return finish([](Floats v) SY_INLINED { return Relu(v); }, [](Floats v) SY_INLINED { return ReluGradient(v); });
    case SY_ACTIVATION_SILU:
      return finish([](Floats v) SY_INLINED { return Silu(v); }, [](Floats v) SY_INLINED { return SiluGradient(v); });
    default:
      return finish([](Floats v) SY_INLINED { return v; }, [](Floats) SY_INLINED { return Splat(1.0f); });
  }
}

}  // namespace switchyard::SY_ISA
