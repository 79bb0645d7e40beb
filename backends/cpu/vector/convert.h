// Rows of any float dtype as f32: used in place where they are f32, else widened into, and rounded out of, a scratch
// row.
#pragma once

#include "backends/cpu/vector/kernels.h"
#include "backends/cpu/vector/simd.h"

namespace switchyard::SY_ISA {

SY_INLINE int64_t ElementBytes(sy_dtype dtype) { return dtype == SY_F32 ? 4 : 2; }

// f32 view of `n` elements of x from element `first` on.
SY_INLINE const float* Widened(const Rows& x, int64_t first, int64_t n, float* scratch) {
  const char* from = x.data + first * ElementBytes(x.dtype);
  if (x.dtype == SY_F32) return reinterpret_cast<const float*>(from);
  to_float(x.dtype, from, scratch, n);
  return scratch;
}
// Where to compute the f32 values of a row of y, and how to bring them home.
SY_INLINE float* Destination(const Rows& y, int64_t first, float* scratch) {
  return y.dtype == SY_F32 ? reinterpret_cast<float*>(y.data) + first : scratch;
}
SY_INLINE void Finish(const Rows& y, int64_t first, int64_t n, const float* scratch) {
  if (y.dtype != SY_F32) from_float(y.dtype, scratch, y.data + first * 2, n);
}

// One vector at a time, for loops that do enough with it to hide the choice.
SY_INLINE Floats LoadRow(const Rows& x, int64_t i, int64_t lanes) {
  if (x.dtype == SY_F32) return Load(reinterpret_cast<const float*>(x.data) + i, lanes);
  const Halves h = LoadHalves(reinterpret_cast<const uint16_t*>(x.data) + i, lanes);
  return x.dtype == SY_BF16 ? FromBf16(h) : FromF16(h);
}
SY_INLINE void StoreRow(const Rows& y, int64_t i, Floats v, int64_t lanes) {
  if (y.dtype == SY_F32) return Store(reinterpret_cast<float*>(y.data) + i, v, lanes);
  StoreHalves(reinterpret_cast<uint16_t*>(y.data) + i, y.dtype == SY_BF16 ? ToBf16(v) : ToF16(v), lanes);
}

SY_INLINE float& At(const Rows& x, int64_t i) { return reinterpret_cast<float*>(x.data)[i]; }

}  // namespace switchyard::SY_ISA
