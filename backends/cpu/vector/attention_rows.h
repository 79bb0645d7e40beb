// What both attentions of this folder, on vectors and on tiles, do with rows of scores and of heads.
#pragma once

#include "backends/cpu/vector/convert.h"
#include "backends/cpu/vector/math.h"

namespace switchyard::SY_ISA {

SY_INLINE int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Takes 64-byte aligned arrays of words one after another; from no memory, at 0, it counts their bytes.
struct Arena {
  uintptr_t at = 0;
  float* Take(int64_t words) {
    float* taken = reinterpret_cast<float*>(at);
    at += RoundUp(words * 4, 64);
    return taken;
  }
};

// pairs: word (i, d) = elements (2i, d) and (2i + 1, d). Else a copy in f32. Columns padded to `width` with zeros, rows
// to a pair.
template <bool pairs>
void PackRows(const char* rows, int64_t count, int64_t dim, int64_t stride, sy_dtype dtype, int64_t width,
              float* words) {
  if constexpr (pairs) {
    const auto* from = reinterpret_cast<const uint16_t*>(rows);
    auto* to = reinterpret_cast<uint32_t*>(words);
    for (int64_t i = 0; i < count; i += 2, to += width) {
      const uint16_t *low = from + i * stride, *high = low + stride;
      if (i + 1 < count) {
        for (int64_t d = 0; d < dim; ++d) to[d] = low[d] | uint32_t{high[d]} << 16;
      } else {
        for (int64_t d = 0; d < dim; ++d) to[d] = low[d];
      }
      for (int64_t d = dim; d < width; ++d) to[d] = 0;
    }
  } else {
    for (int64_t i = 0; i < count; ++i, words += width) {
      to_float(dtype, rows + i * stride * ElementBytes(dtype), words, dim);
      for (int64_t d = dim; d < width; ++d) words[d] = 0;
    }
  }
}

// scores = scale·scores + bias + mask, row `query`.
inline void Bias(const AttentionHead& a, int64_t query, float* scores) {
  const int64_t n = a.tokens, at = query * n;
  const Rows bias = {const_cast<char*>(a.bias), a.bias_dtype}, mask = {const_cast<char*>(a.mask), a.mask_dtype};
  ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
    Floats s = Load(scores + i, lanes) * a.scale;
    if (bias.data) s += LoadRow(bias, at + i, lanes);
    if (mask.data) s += LoadRow(mask, at + i, lanes);
    Store(scores + i, s, lanes);
  });
}

// Probabilities are powers of two, of scores in units of ln 2.
constexpr float kLog2E = 1.44269504088896341f;

// 2^x of a score less the largest, and 0 below 2^-100, of which no sum beside the largest sees anything: masks of -100
// would make subnormal numbers of it, and so would gradients times what is a little larger, and products with these
// take many times as long on some CPUs.
SY_INLINE Floats Probability(Floats x) {
  const Floats least = Splat(-100.0f), p = Exp2(least > x ? least : x);
  return least > x ? Floats{} : p;
}

// The largest of scale·row, or 0 for a row that is masked out altogether.
SY_INLINE float LargestScore(const float* row, int64_t tokens, float scale) {
  const float extreme = (scale < 0 ? reduce(SY_REDUCE_MIN, row, tokens) : LargestOf(row, tokens)) * scale;
  return extreme == -__builtin_inff() ? 0.0f : extreme;
}

// D of the backward pass: rowsum(dO∘O) of row `query`. o and d: scratch rows.
SY_INLINE float OutTimesGradient(const AttentionHead& a, int64_t query, float* o, float* d) {
  const int64_t bytes = ElementBytes(a.dtype), offset = query * a.out_stride * bytes;
  const float* outs = Widened({a.out + offset, a.dtype}, 0, a.head_dim, o);
  const float* gradients = Widened({const_cast<char*>(a.dout) + offset, a.dtype}, 0, a.head_dim, d);
  return SumOver(a.head_dim, [&](int64_t i, int64_t lanes)
                                 SY_INLINED { return Load(outs + i, lanes) * Load(gradients + i, lanes); });
}

SY_INLINE void StoreScaled(sy_dtype dtype, float* row, float factor, char* to, int64_t dim) {
  float* scaled = dtype == SY_F32 ? reinterpret_cast<float*>(to) : row;
  ForEachVector(dim,
                [&](int64_t i, int64_t lanes) SY_INLINED { Store(scaled + i, Load(row + i, lanes) * factor, lanes); });
  if (dtype != SY_F32) from_float(dtype, row, to, dim);
}

}  // namespace switchyard::SY_ISA
