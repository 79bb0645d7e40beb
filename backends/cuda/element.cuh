// Elements of device memory whose dtype is known only at run time, and how a thread moves them: one at a time, or eight
// at a time by 16-byte accesses. Kernels that are bound by memory take Views instead of being instantiated for every
// combination of dtypes: the branch on the dtype is the same for the whole grid. Arithmetic is in f32; stores round to
// nearest even. Device code; every function belongs to the calling thread.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "core/abi/base.h"

// Dynamic shared memory as an array `name`, 16-byte aligned. (A host emulation of CUDA defines its own.)
#ifndef SWITCHYARD_DYNAMIC_SHARED
#define SWITCHYARD_DYNAMIC_SHARED(type, name)               \
  extern __shared__ __align__(16) char switchyard_shared[]; \
  type* const name = reinterpret_cast<type*>(switchyard_shared)
#endif

namespace switchyard {

constexpr int kPack = 8;  // elements of a 16-byte access to a half type; f32 takes two

struct View {
  char* data = nullptr;  // aligned to 16 bytes; null: absent
  sy_dtype dtype = SY_F32;

  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

template <typename To, typename From>
__device__ __forceinline__ To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof to);
  return to;
}

template <typename T>
__host__ __device__ constexpr T Least(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
__host__ __device__ constexpr T Largest(T a, T b) {
  return a > b ? a : b;
}
__host__ __device__ constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ __forceinline__ float FromBf16(uint32_t bits) { return BitCast<float>(bits << 16); }
__device__ __forceinline__ float FromF16(uint32_t bits) {
  return __half2float(BitCast<__half>(static_cast<uint16_t>(bits)));
}
__device__ __forceinline__ uint32_t ToBf16(float x) { return BitCast<uint16_t>(__float2bfloat16_rn(x)); }
__device__ __forceinline__ uint32_t ToF16(float x) { return BitCast<uint16_t>(__float2half_rn(x)); }

// Two halves of one 32-bit word, the lower address in the lower bits.
__device__ __forceinline__ uint32_t PackTwo(float low, float high, sy_dtype dtype) {
  if (dtype == SY_BF16) return BitCast<uint32_t>(__floats2bfloat162_rn(low, high));
  return BitCast<uint32_t>(__floats2half2_rn(low, high));
}

// v = x[i], …, x[i + N - 1], N = 1 or 8; for 8, i is a multiple of 8. x is f32, bf16 or f16.
template <int N>
__device__ __forceinline__ void Load(const View& x, int64_t i, float (&v)[N]) {
  static_assert(N == 1 || N == kPack);
  if constexpr (N == 1) {
    if (x.dtype == SY_F32) {
      v[0] = reinterpret_cast<const float*>(x.data)[i];
    } else {
      const uint32_t bits = reinterpret_cast<const uint16_t*>(x.data)[i];
      v[0] = x.dtype == SY_BF16 ? FromBf16(bits) : FromF16(bits);
    }
  } else if (x.dtype == SY_F32) {
    const auto* from = reinterpret_cast<const float4*>(x.data + i * sizeof(float));
    const float4 low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
    const uint4 bits = *reinterpret_cast<const uint4*>(x.data + i * sizeof(uint16_t));
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (x.dtype == SY_BF16) {
        v[2 * k] = FromBf16(words[k] & 0xFFFF);
        v[2 * k + 1] = BitCast<float>(words[k] & 0xFFFF0000u);
      } else {
        v[2 * k] = FromF16(words[k] & 0xFFFF);
        v[2 * k + 1] = FromF16(words[k] >> 16);
      }
    }
  }
}

// x[i], …, x[i + N - 1] = v, under the same conditions.
template <int N>
__device__ __forceinline__ void Store(const View& x, int64_t i, const float (&v)[N]) {
  static_assert(N == 1 || N == kPack);
  if constexpr (N == 1) {
    if (x.dtype == SY_F32) {
      reinterpret_cast<float*>(x.data)[i] = v[0];
    } else {
      const uint32_t bits = x.dtype == SY_BF16 ? ToBf16(v[0]) : ToF16(v[0]);
      reinterpret_cast<uint16_t*>(x.data)[i] = static_cast<uint16_t>(bits);
    }
  } else if (x.dtype == SY_F32) {
    auto* to = reinterpret_cast<float4*>(x.data + i * sizeof(float));
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
  } else {
    *reinterpret_cast<uint4*>(x.data + i * sizeof(uint16_t)) =
        make_uint4(PackTwo(v[0], v[1], x.dtype), PackTwo(v[2], v[3], x.dtype), PackTwo(v[4], v[5], x.dtype),
                   PackTwo(v[6], v[7], x.dtype));
  }
}

__device__ __forceinline__ float LoadOne(const View& x, int64_t i) {
  float v[1];
  Load<1>(x, i, v);
  return v[0];
}
__device__ __forceinline__ void StoreOne(const View& x, int64_t i, float value) {
  const float v[1] = {value};
  Store<1>(x, i, v);
}

// x[i] = value, or x[i] + value where the plan accumulates (the ABI's `accumulate`).
__device__ __forceinline__ void StoreOrAdd(const View& x, int64_t i, float value, bool accumulate) {
  StoreOne(x, i, accumulate ? LoadOne(x, i) + value : value);
}

constexpr int64_t kMostIndices = (int64_t{1} << 31) - 1;  // that a Divider takes

// n / d by one multiplication (Warren, "Hacker's Delight", 10-9), for 0 ≤ n < 2³¹ and 1 ≤ d < 2³¹.
struct Divider {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  // Whoever divides by more refuses the shape elsewhere.
  explicit Divider(int64_t d) : divisor(d < 1 || d > kMostIndices ? 1 : static_cast<uint32_t>(d)) {
    while (shift < 31 && uint64_t{1} << shift < divisor) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t Quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// A row-major index over a few axes that becomes an offset into memory laid out otherwise. Extents multiply to < 2³¹.
template <int kRank>
struct Strided {
  int32_t rank = 0;
  Divider extent[kRank];  // outermost first
  int64_t stride[kRank] = {};

  void Add(int64_t axis_extent, int64_t axis_stride) {
    extent[rank] = Divider(axis_extent);
    stride[rank++] = axis_stride;
  }
  __device__ __forceinline__ int64_t Offset(uint32_t index) const {
    int64_t offset = 0;
    for (int d = rank - 1; d > 0; --d) {
      const uint32_t outer = extent[d].Quotient(index);
      offset += (index - outer * extent[d].divisor) * stride[d];
      index = outer;
    }
    return rank > 0 ? offset + index * stride[0] : 0;
  }
};

}  // namespace switchyard
