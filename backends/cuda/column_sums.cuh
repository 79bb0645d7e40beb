// Sums over the rows of a (rows, C) array for every column at once, in a fixed order: what the gradients of gamma and
// beta are made of, Σ dy·x̂ and Σ dy with x̂ = (x − mean)·rstd. The rows are cut into parts by the shape alone; each
// block sums its part of width·N columns, and a second kernel adds the parts in an order that they alone decide.
#pragma once

#include "backends/cuda/team.cuh"
#include "backends/cuda/views.h"

namespace switchyard {

constexpr int kLanes = 8;  // rows that a block of 32 × 8 threads reads at once

struct ColumnParts {
  static constexpr int64_t kMostParts = 512, kEnoughBlocks = 1024;
  int64_t rows, columns, rows_per_part;
  int parts;
  int width = kWarp;  // threads of a block that share a row, 8 to 32; the rest are lanes, which read other rows

  ColumnParts(int64_t row_count, int64_t column_count) : rows(row_count), columns(column_count) {
    while (width > 8 && width / 2 >= Packed()) width /= 2;
    const int64_t wanted = Least(kMostParts, CeilDivide(kEnoughBlocks, CeilDivide(Packed(), int64_t{width})));
    rows_per_part = Largest<int64_t>(64, CeilDivide(rows, wanted));
    parts = static_cast<int>(CeilDivide(rows, rows_per_part));
  }
  // f32 values of one sum's partial results, (parts, columns).
  int64_t Partials() const { return parts * columns; }
  dim3 Block() const { return dim3(static_cast<unsigned>(width), static_cast<unsigned>(kWarp * kLanes / width)); }
  dim3 Grid() const {
    return dim3(static_cast<unsigned>(CeilDivide(Packed(), int64_t{width})), static_cast<unsigned>(parts));
  }
  // Of AddParts and of SumOfParts.
  dim3 JoinGrid() const { return dim3(static_cast<unsigned>(CeilDivide(columns, int64_t{kWarp}))); }

 private:
  int64_t Packed() const { return Packs(columns) ? columns / kPack : columns; }
};

// The sums of the lanes (threadIdx.y) of a block of at most kWarp · kLanes threads, added in order, by the threads of
// lane 0. Every thread calls it.
template <int N>
__device__ __forceinline__ void AddLanes(float (&sum)[N]) {
  __shared__ float of_lane[kLanes * kWarp * N];
  const unsigned stride = blockDim.x * N;
#pragma unroll
  for (int k = 0; k < N; ++k) of_lane[threadIdx.y * stride + threadIdx.x + blockDim.x * k] = sum[k];
  __syncthreads();
  for (unsigned lane = 1; lane < blockDim.y && threadIdx.y == 0; ++lane) {
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += of_lane[lane * stride + threadIdx.x + blockDim.x * k];
  }
  __syncthreads();
}

__device__ __forceinline__ void StorePartial(float* to, const float (&v)[kPack]) {
  auto* const four = reinterpret_cast<float4*>(to);
  four[0] = make_float4(v[0], v[1], v[2], v[3]);
  four[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// The sum of column kWarp · blockIdx.x + threadIdx.y from its parts, (parts, c), for thread 0 of that row of a block of
// kWarp × kWarp: 32 lanes add up 32 columns, each every 32nd part, and a warp the lanes of a column. Every thread
// calls it.
__device__ __forceinline__ float SumOfParts(int parts, int64_t c, const float* from) {
  __shared__ float of_lane[kWarp][kWarp + 1];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
  if (column < c) {
#pragma unroll 8
    for (int part = threadIdx.y; part < parts; part += kWarp) sum += from[part * c + column];
  }
  of_lane[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  return WarpReduce(of_lane[threadIdx.x][threadIdx.y], Plus());
}

// Where dgamma and dbeta go, and which of them is added to what lies there.
struct ColumnGradients {
  View dgamma, dbeta;
  bool adds_dgamma = false, adds_dbeta = false;
};

// Σ dy·x̂ and Σ dy of the column of this thread from their partial sums, for the threads of lane 0; each lane adds every
// kLanes-th part. Blocks of kWarp × kLanes threads, ColumnParts::JoinGrid of them.
__device__ __forceinline__ void AddParts(ColumnParts p, const float* partials, float* with_x, float* plain) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(kWarp) + threadIdx.x;
  float sum[2] = {};
  if (column < p.columns) {
#pragma unroll 4
    for (int part = threadIdx.y; part < p.parts; part += kLanes) {
      sum[0] += partials[part * p.columns + column];
      sum[1] += partials[(p.parts + part) * p.columns + column];
    }
  }
  AddLanes<2>(sum);
  *with_x = sum[0];
  *plain = sum[1];
}

}  // namespace switchyard
