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

// exp(x) of a score less the largest, and 0 below 2^-100, of which no sum beside the largest sees anything: masks of
// -100 would make subnormal numbers of it, and so would gradients times what is a little larger, and products with
// these take many times as long on some CPUs.
SY_INLINE Floats Probability(Floats x) {
  const Floats power = x * 1.44269504088896341f, least = Splat(-100.0f), p = Exp2(least > power ? least : power);
  return least > power ? Floats{} : p;
}

// The largest of scale·row, or 0 for a row that is masked out altogether.
SY_INLINE float LargestScore(const float* row, int64_t tokens, float scale) {
  const float extreme = (scale < 0 ? reduce(SY_REDUCE_MIN, row, tokens) : LargestOf(row, tokens)) * scale;
  return extreme == -__builtin_inff() ? 0.0f : extreme;
}

// D of the backward pass: rowsum(dO∘O) of row `query`.
SY_INLINE float OutTimesGradient(const AttentionHead& a, int64_t query) {
  const Rows out = {a.out, a.dtype}, dout = {const_cast<char*>(a.dout), a.dtype};
  const int64_t first = query * a.out_stride;
  return SumOver(a.head_dim, [&](int64_t i, int64_t lanes) SY_INLINED {
    return LoadRow(out, first + i, lanes) * LoadRow(dout, first + i, lanes);
  });
}

SY_INLINE void StoreScaled(sy_dtype dtype, float* row, float factor, char* to, int64_t dim) {
  float* scaled = dtype == SY_F32 ? reinterpret_cast<float*>(to) : row;
  ForEachVector(dim,
                [&](int64_t i, int64_t lanes) SY_INLINED { Store(scaled + i, Load(row + i, lanes) * factor, lanes); });
  if (dtype != SY_F32) from_float(dtype, row, to, dim);
}

}  // namespace switchyard::SY_ISA
