// The CUDA language for an ordinary C++ compiler: force-included, it makes g++ compile the .cu files of backends/cuda
// as they are. A kernel becomes a function that every thread of a block calls on a fiber of its own (blocks.h); the
// built-in variables, barriers, warp shuffles and intrinsics that the kernels use are defined here, and Launch, which
// launch.h defines for a GPU, puts the whole grid on the stream as one host function. What a GPU would refuse (block
// and grid sizes, 48 KiB of shared memory) is refused. Thread-safe: everything belongs to the host thread that runs the
// grid. Meanings: https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (C++ language extensions)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#include "tests/doubles/cuda_emulation/blocks.h"

#undef __shared__
#define __shared__ static thread_local  // one block at a time runs on a host thread
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__ __attribute__((noinline))

#define threadIdx (::switchyard::emulation::Here().thread)
#define blockIdx (::switchyard::emulation::Here().block)
#define blockDim (::switchyard::emulation::Here().block_dim)
#define gridDim (::switchyard::emulation::Here().grid_dim)

#define SWITCHYARD_DYNAMIC_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(::switchyard::emulation::DynamicShared())

inline void __syncthreads() { switchyard::emulation::SyncThreads(); }
inline void __syncwarp(unsigned mask = ~0u) { switchyard::emulation::SyncWarp(mask); }

namespace switchyard::emulation {

// What lane `from` of the warp passes in, for every lane of `mask`.
template <typename T>
T Shuffle(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace switchyard::emulation

// Lanes of a group of `width` exchange among themselves; a lane beyond the group reads itself.
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const int self = switchyard::emulation::Lane();
  return switchyard::emulation::Shuffle(mask, value, self / width * width + lane % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int self = switchyard::emulation::Lane(), from = self ^ bits;
  return switchyard::emulation::Shuffle(mask, value, from / width == self / width ? from : self);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int self = switchyard::emulation::Lane(), from = self + static_cast<int>(delta);
  return switchyard::emulation::Shuffle(mask, value, from / width == self / width ? from : self);
}

// Of the whole warp.
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned bits = predicate ? 1u << switchyard::emulation::Lane() : 0;
  for (int step = 16; step > 0; step /= 2) bits |= __shfl_xor_sync(mask, bits, step);
  return bits;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>((uint64_t{a} * b) >> 32); }
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __float2int_rz(float x) {  // saturates; 0 for not a number
  if (std::isnan(x)) return 0;
  if (x >= 2147483648.0f) return INT32_MAX;
  return x <= -2147483648.0f ? INT32_MIN : static_cast<int>(x);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

// Single instructions (backends/cuda/approximate.cuh, which then has nothing to add), without their errors.
#define SWITCHYARD_APPROXIMATE_CUH_

namespace switchyard {

// A comparison, since std::fpclassify is a call.
inline float WithoutDenormals(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float ApproximateExp2(float x) { return WithoutDenormals(std::exp2(WithoutDenormals(x))); }
inline float ApproximateLog2(float x) { return std::log2(WithoutDenormals(x)); }
inline float ApproximateReciprocal(float x) { return WithoutDenormals(1 / WithoutDenormals(x)); }
inline float LeastOrNan(float a, float b) { return a < b || a != a ? a : b; }

}  // namespace switchyard

// Tensor cores (backends/cuda/tensor_core.cuh, which then has nothing to add): fragments laid out as there.
#define SWITCHYARD_TENSOR_CORE_CUH_

namespace switchyard {

template <int kDtype>
float HalfAt(uint32_t word, int upper) {
  const auto bits = static_cast<uint16_t>(upper ? word >> 16 : word);
  if (kDtype == 1) return __uint_as_float(uint32_t{bits} << 16);  // SY_BF16
  __half value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof bits);
  return __half2float(value);
}

template <int kDtype>
void MultiplyFragments(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  float own[12];
  for (int i = 0; i < 12; ++i) own[i] = HalfAt<kDtype>(words[i / 2], i % 2);
  const emulation::Shown lanes = emulation::Show(own, sizeof own);
  const int g = emulation::Lane() / 4, t = emulation::Lane() % 4;
  float left[2][16], right[2][16];  // rows g and g + 8 of a, columns 2·t and 2·t + 1 of b
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 16; k += 2) {
      const int lane = k % 8 / 2, half = k / 8;
      std::memcpy(&left[i][k], lanes[4 * g + lane] + sizeof(float[2]) * static_cast<size_t>(2 * half + i),
                  sizeof(float[2]));
      std::memcpy(&right[i][k], lanes[4 * (2 * t + i) + lane] + sizeof(float[2]) * static_cast<size_t>(4 + half),
                  sizeof(float[2]));
    }
  }
  for (int k = 0; k < 16; ++k)
    for (int e = 0; e < 4; ++e) c[e] += left[e / 2][k] * right[e % 2][k];
}

template <bool kTransposed>
void LoadFourMatrices(const void* row, uint32_t (&r)[4]) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) __builtin_trap();
  const emulation::Shown lanes = emulation::Show(&row, sizeof row);
  const int g = emulation::Lane() / 4, t = emulation::Lane() % 4;
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int i, int j) {
      const uint16_t* address;
      std::memcpy(&address, lanes[8 * m + i], sizeof address);
      return uint32_t{address[j]};
    };
    r[m] =
        kTransposed ? element(2 * t, g) | element(2 * t + 1, g) << 16 : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
}
inline void LoadMatrices(const void* row, uint32_t (&r)[4]) { LoadFourMatrices<false>(row, r); }
inline void LoadMatricesTransposed(const void* row, uint32_t (&r)[4]) { LoadFourMatrices<true>(row, r); }

inline void CopyAsync(void* to, const void* from, bool valid) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) __builtin_trap();
  emulation::CopyLater(to, valid ? from : nullptr, 16);
}
inline void CommitCopies() { emulation::CommitCopies(); }
template <int kLeft>
void WaitForCopies() {
  emulation::WaitForCopies(kLeft);
}

}  // namespace switchyard

#define SWITCHYARD_CUDA_LAUNCH_H_  // backends/cuda/launch.h has nothing to add

namespace switchyard {

template <class... P, class... A>
cudaError_t Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  static_assert((sizeof(P) + ...) <= 4096, "kernel parameters are limited to 4 KiB");
  std::tuple<std::remove_const_t<P>...> values(static_cast<P>(std::forward<A>(arguments))...);
  return emulation::Enqueue(reinterpret_cast<const void*>(kernel), grid, block, shared, stream,
                            [kernel, values] { std::apply(kernel, values); });
}

}  // namespace switchyard
