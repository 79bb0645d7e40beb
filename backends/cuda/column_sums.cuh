// Two sums over the rows of a (rows, C) array for every column at once, in a fixed order: what the gradients of gamma
// and beta are made of, Σ dy·x̂ and Σ dy with x̂ = (x − mean)·rstd, where the statistics belong to rows (layer_norm) or
// to columns (batch_norm). The rows are cut into parts by the shape alone; each block sums its part of 32·N columns,
// and a second kernel adds the parts in order.
#pragma once

#include "backends/cuda/team.cuh"
#include "backends/cuda/views.h"

namespace switchyard {

constexpr int kLanes = 8;  // rows that a block of 32 × 8 threads reads at once

struct ColumnParts {
  int64_t rows, columns, rows_per_part;
  int parts;

  ColumnParts(int64_t row_count, int64_t column_count) : rows(row_count), columns(column_count) {
    rows_per_part = Largest<int64_t>(64, CeilDivide(rows, 256));
    parts = static_cast<int>(CeilDivide(rows, rows_per_part));
  }
  // f32 values of one sum's partial results, (parts, columns).
  int64_t Partials() const { return parts * columns; }
  dim3 Grid() const {
    return dim3(static_cast<unsigned>(CeilDivide(columns, kWarp * (Packs(columns) ? kPack : 1))),
                static_cast<unsigned>(parts));
  }
};

// The block's lanes' sums, added in order, by the threads of lane 0. Every thread calls it.
template <int N>
__device__ __forceinline__ void AddLanes(float (&sum)[N]) {
  __shared__ float of_lane[kLanes][kWarp * N];
#pragma unroll
  for (int k = 0; k < N; ++k) of_lane[threadIdx.y][threadIdx.x + kWarp * k] = sum[k];
  __syncthreads();
  for (int lane = 1; lane < kLanes && threadIdx.y == 0; ++lane) {
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += of_lane[lane][threadIdx.x + kWarp * k];
  }
  __syncthreads();
}

// g = dy where y > 0, else 0: what passes back through a ReLU that gave y. Without y, dy as it is.
template <int N>
__device__ __forceinline__ void LoadPassed(View dy, View y, int64_t i, float (&g)[N]) {
  Load<N>(dy, i, g);
  if (!y) return;
  float v[N];
  Load<N>(y, i, v);
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] = v[k] > 0 ? g[k] : 0;
}

template <int N, bool kRowStatistics>
__device__ __forceinline__ void SumGradients(ColumnParts p, View x, View mean, View rstd, View dy, View y,
                                             float* partials) {
  const int64_t column = (blockIdx.x * static_cast<int64_t>(kWarp) + threadIdx.x) * N;
  const int64_t first = blockIdx.y * p.rows_per_part, last = Least(p.rows, first + p.rows_per_part);
  float with_x[N] = {}, plain[N] = {}, m[N] = {}, s[N] = {};
  if (column < p.columns) {
    if (!kRowStatistics) {
      Load<N>(mean, column, m);
      Load<N>(rstd, column, s);
    }
    for (int64_t row = first + threadIdx.y; row < last; row += kLanes) {
      float v[N], g[N];
      Load<N>(x, row * p.columns + column, v);
      LoadPassed<N>(dy, y, row * p.columns + column, g);
      const float row_mean = kRowStatistics ? LoadOne(mean, row) : 0,
                  row_rstd = kRowStatistics ? LoadOne(rstd, row) : 0;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        with_x[k] += g[k] * (v[k] - (kRowStatistics ? row_mean : m[k])) * (kRowStatistics ? row_rstd : s[k]);
        plain[k] += g[k];
      }
    }
  }
  AddLanes<N>(with_x);
  AddLanes<N>(plain);
  if (column >= p.columns || threadIdx.y != 0) return;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    partials[blockIdx.y * p.columns + column + k] = with_x[k];
    partials[(p.parts + blockIdx.y) * p.columns + column + k] = plain[k];
  }
}

// dgamma = Σ dy·x̂ and dbeta = Σ dy from their partial sums.
__device__ __forceinline__ void FinishGradients(ColumnParts p, const float* partials, View dgamma, View dbeta) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (column >= p.columns) return;
  float with_x = 0, plain = 0;
  for (int part = 0; part < p.parts; ++part) {
    with_x += partials[part * p.columns + column];
    plain += partials[(p.parts + part) * p.columns + column];
  }
  StoreOne(dgamma, column, with_x);
  StoreOne(dbeta, column, plain);
}

}  // namespace switchyard
