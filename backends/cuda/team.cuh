// Threads that work on one row together: a warp, or a whole block where rows are long. Sums run in a fixed order, so
// that a result depends on the shapes alone. Device code; every thread of the team makes the same calls.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/element.cuh"

namespace switchyard {

constexpr int kWarp = 32;
constexpr int kTeamBlock = 256;     // threads of a block of teams
constexpr int64_t kLongRow = 2048;  // elements from which a row gets a block of its own

struct Plus {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
// Not a number if either is.
struct Greater {
  __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};
struct Smaller {
  __device__ __forceinline__ float operator()(float a, float b) const { return a < b || a != a ? a : b; }
};

template <typename Combine>
__device__ __forceinline__ float WarpReduce(float x, Combine combine) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) x = combine(x, __shfl_xor_sync(~0u, x, bits));
  return x;
}

// The block has whole warps, at most 1024 threads.
template <typename Combine>
__device__ __forceinline__ float BlockReduce(float x, Combine combine) {
  __shared__ float of_warp[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  x = WarpReduce(x, combine);
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  x = of_warp[0];
  for (int w = 1; w < warps; ++w) x = combine(x, of_warp[w]);
  __syncthreads();  // the next reduction writes of_warp again
  return x;
}

// How rows are dealt to teams: chosen on the host, used by the kernel.
struct Teams {
  int32_t size;  // threads of a team: kWarp or kTeamBlock
  int64_t rows;

  Teams(int64_t row_count, int64_t row_elements)
      : size(row_elements > kLongRow ? kTeamBlock : kWarp), rows(row_count) {}
  dim3 Grid() const { return dim3(static_cast<unsigned>(CeilDivide(rows * size, kTeamBlock))); }

  __device__ __forceinline__ int64_t Row() const {
    return blockIdx.x * static_cast<int64_t>(kTeamBlock / size) + threadIdx.x / size;
  }
  __device__ __forceinline__ int Rank() const { return threadIdx.x % size; }
  template <typename Combine>
  __device__ __forceinline__ float Reduce(float x, Combine combine) const {
    return size == kWarp ? WarpReduce(x, combine) : BlockReduce(x, combine);
  }
  __device__ __forceinline__ float Sum(float x) const { return Reduce(x, Plus()); }
  // f(first element) for each of this thread's groups of N elements of a row.
  template <int N, typename F>
  __device__ __forceinline__ void ForRow(int64_t elements, F f) const {
    for (int64_t i = static_cast<int64_t>(Rank()) * N; i < elements; i += static_cast<int64_t>(size) * N) f(i);
  }
};

}  // namespace switchyard
