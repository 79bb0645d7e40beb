// Eight elements as they lie in memory, for threads that want several loads under way at once: a load that converts at
// once (element.cuh) is waited for before the next one starts. Device code; every function belongs to the calling
// thread.
#pragma once

#include "backends/cuda/element.cuh"

namespace switchyard {

struct Packed {
  uint4 low, high;  // high: of f32 alone
};

// x[i], …, x[i + 7]; i is a multiple of 8, x is f32, bf16 or f16.
__device__ __forceinline__ Packed LoadPacked(const View& x, int64_t i) {
  const bool wide = x.dtype == SY_F32;
  const auto* from = reinterpret_cast<const uint4*>(x.data + i * (wide ? sizeof(float) : sizeof(uint16_t)));
  return {from[0], wide ? from[1] : make_uint4(0, 0, 0, 0)};
}

__device__ __forceinline__ void Unpack(const Packed& packed, sy_dtype dtype, float (&v)[kPack]) {
  const uint32_t words[kPack] = {packed.low.x,  packed.low.y,  packed.low.z,  packed.low.w,
                                 packed.high.x, packed.high.y, packed.high.z, packed.high.w};
  if (dtype == SY_F32) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) v[k] = BitCast<float>(words[k]);
  } else if (dtype == SY_BF16) {
#pragma unroll
    for (int k = 0; k < kPack / 2; ++k) {
      v[2 * k] = BitCast<float>(words[k] << 16);
      v[2 * k + 1] = BitCast<float>(words[k] & 0xFFFF0000u);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPack / 2; ++k) {
      v[2 * k] = FromF16(words[k] & 0xFFFF);
      v[2 * k + 1] = FromF16(words[k] >> 16);
    }
  }
}

// The same for one element, which is converted as it is loaded, so that kernels of N = 1 and 8 read alike.
template <int N>
__device__ __forceinline__ auto LoadRaw(const View& x, int64_t i) {
  if constexpr (N == 1) {
    return LoadOne(x, i);
  } else {
    return LoadPacked(x, i);
  }
}
__device__ __forceinline__ void Unpack(float raw, sy_dtype, float (&v)[1]) { v[0] = raw; }

// The dtype that all maps of a kernel have, for kernels that are worth an instance for it: what depends on the dtype is
// then gone from the machine code, and eight halves take four registers.
constexpr int kAnyDtype = -1;
template <int kDtype>
__device__ __forceinline__ View Known(View x) {
  if constexpr (kDtype != kAnyDtype) x.dtype = static_cast<sy_dtype>(kDtype);
  return x;
}
// x as it is read where it was stored in that dtype.
template <int kDtype>
__device__ __forceinline__ float Rounded(float x) {
  static_assert(kDtype != kAnyDtype);
  if constexpr (kDtype == SY_BF16) return FromBf16(ToBf16(x));
  if constexpr (kDtype == SY_F16) return FromF16(ToF16(x));
  return x;
}

}  // namespace switchyard
