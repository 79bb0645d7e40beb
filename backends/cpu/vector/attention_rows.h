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

// Brings row `query` of what is computed next into the second-level cache: rows of a head lie far apart, and one after
// another they would be waited for.
SY_INLINE void FetchNext(const AttentionHead& a, int64_t query, bool backward) {
  if (!a.next) return;
  const AttentionHead& n = *a.next;
  const int64_t bytes = ElementBytes(a.dtype), row = query * a.stride * bytes, out_row = query * a.out_stride * bytes;
  for (int64_t i = 0; i < a.head_dim * bytes; i += 64) {
    __builtin_prefetch(n.q + row + i, 0, 2);
    __builtin_prefetch(n.k + row + i, 0, 2);
    __builtin_prefetch(n.v + row + i, 0, 2);
    if (!backward) continue;
    __builtin_prefetch(n.dq + row + i, 0, 2);
    __builtin_prefetch(n.dk + row + i, 0, 2);
    __builtin_prefetch(n.dv + row + i, 0, 2);
    __builtin_prefetch(n.dout + out_row + i, 0, 2);
    __builtin_prefetch(n.out + out_row + i, 0, 2);
  }
}

// What is added to the scaled scores of row `query`.
struct Addends {
  Rows bias, mask;
  int64_t at;
  SY_INLINE Addends(const AttentionHead& a, int64_t query)
      : bias{const_cast<char*>(a.bias), a.bias_dtype},
        mask{const_cast<char*>(a.mask), a.mask_dtype},
        at(query * a.tokens) {}
  SY_INLINE Floats To(Floats scores, int64_t i, int64_t lanes) const {
    if (bias.data) scores += LoadRow(bias, at + i, lanes);
    if (mask.data) scores += LoadRow(mask, at + i, lanes);
    return scores;
  }
};

// scores = scale·scores + bias + mask, row `query`, padded to whole vectors; returns the largest.
inline float Bias(const AttentionHead& a, int64_t query, float* scores) {
  const Addends addends(a, query);
  const Floats least = Splat(-__builtin_inff());
  Floats largest = least;
  ForEachVector(a.tokens, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats s = addends.To(Load(scores + i) * a.scale, i, lanes);
    Store(scores + i, s);
    largest = Larger(KeepOr(s, lanes, least), largest);
  });
  return Largest(largest);
}

// exp(x) of a score less the largest, and 0 below 2^-100, of which no sum beside the largest sees anything: masks of
// -100 would make subnormal numbers of it, and so would gradients times what is a little larger, and products with
// these take many times as long on some CPUs.
SY_INLINE Floats Probability(Floats x) {
  const Floats power = x * 1.44269504088896341f, least = Splat(-100.0f), p = Exp2(least > power ? least : power);
  return least > power ? Floats{} : p;
}

// The largest of a row's scores, scaled and with bias and mask; 0 where the row is masked out altogether. With a bias
// or a mask the row then holds these; without, it is left as it is, not scaled.
SY_INLINE float LargestScore(const AttentionHead& a, int64_t query, float* row) {
  const float largest = a.bias || a.mask ? Bias(a, query, row)
                        : a.scale < 0    ? reduce(SY_REDUCE_MIN, row, a.tokens) * a.scale
                                         : LargestOf(row, a.tokens) * a.scale;
  return largest == -__builtin_inff() ? 0.0f : largest;
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
