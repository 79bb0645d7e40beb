// What follows a matrix product that the library has no epilogue for (MatmulEpilogue in kernel.h): bias, activation or
// its derivative, residual, in one pass with f32 arithmetic. Where a bias' gradient sums the columns of what the
// derivative has made, the pass does that too, in parts that a second kernel joins.
#include "backends/cuda/activation.cuh"
#include "backends/cuda/column_sums.cuh"
#include "backends/cuda/packed.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

struct EpilogueOperands {
  View accumulator, bias, preactivation, residual, saved, output;  // all but the first and the last may be absent

  // With the dtype of all matrices; the bias has its own.
  template <int kDtype>
  __device__ __forceinline__ EpilogueOperands As() const {
    return {Known<kDtype>(accumulator),   bias,
            Known<kDtype>(preactivation), Known<kDtype>(residual),
            Known<kDtype>(saved),         Known<kDtype>(output)};
  }
};

template <int N>
__device__ __forceinline__ void Add(const View& x, int64_t i, float (&t)[N]) {
  float v[N];
  Load<N>(x, i, v);
#pragma unroll
  for (int k = 0; k < N; ++k) t[k] += v[k];
}

// Groups of N elements that a thread has, so that their loads are under way together: of halves, whose registers are
// few.
template <int kDtype>
constexpr int kGroups = kDtype == kAnyDtype ? 1 : 2;

template <int N, int kDtype>
__global__ void __launch_bounds__(kThreads, kDtype == kAnyDtype ? 8 : 5)
    MatmulEpilogueKernel(int64_t elements, int64_t columns, int activation, bool accumulate,
                         EpilogueOperands operands) {
  const EpilogueOperands p = operands.As<kDtype>();
  const int64_t first = (blockIdx.x * int64_t{kThreads * kGroups<kDtype>} + threadIdx.x) * N;
  if (first >= elements) return;
  decltype(LoadRaw<N>(p.accumulator, 0)) accumulator[kGroups<kDtype>], preactivation[kGroups<kDtype>] = {};
  int64_t at[kGroups<kDtype>];
#pragma unroll
  for (int r = 0; r < kGroups<kDtype>; ++r) {
    at[r] = first + r * kThreads * N;
    const int64_t there = at[r] < elements ? at[r] : first;
    accumulator[r] = LoadRaw<N>(p.accumulator, there);
    if (p.preactivation) preactivation[r] = LoadRaw<N>(p.preactivation, there);
  }
#pragma unroll
  for (int r = 0; r < kGroups<kDtype>; ++r) {
    const int64_t i = at[r];
    if (i >= elements) return;
    float t[N], other[N];
    Unpack(accumulator[r], p.accumulator.dtype, t);
    if (p.bias) Add<N>(p.bias, i % columns, t);
    if (p.preactivation) {
      Unpack(preactivation[r], p.preactivation.dtype, other);
      MultiplyGradient(activation, other, t);
    } else {
      if (p.saved) Store<N>(p.saved, i, t);
      Activate(activation, t);
    }
    if (p.residual || accumulate) {  // a jump over both, rather than their instructions one by one
      if (p.residual) Add<N>(p.residual, i, t);
      if (accumulate) Add<N>(p.output, i, t);
    }
    Store<N>(p.output, i, t);
  }
}

// output = t·activation'(preactivation), and the block's part of its columns' sums. `output` may be the accumulator: a
// thread reads its rows before it writes them, one of them twice where the part has no other, and no thread reads
// another's.
constexpr int kSummedAtOnce = 2;  // rows of a thread, so that their loads are under way together
template <int kDtype>
__global__ void __launch_bounds__(kWarp* kLanes)
    GradientSumsKernel(ColumnParts parts, int activation, EpilogueOperands operands, float* partials) {
  const EpilogueOperands p = operands.As<kDtype>();
  const int64_t column = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * kPack;
  const int64_t first = blockIdx.y * parts.rows_per_part, last = Least(parts.rows, first + parts.rows_per_part);
  float sum[kPack] = {};
  for (int64_t from = first + threadIdx.y; column < parts.columns && from < last; from += blockDim.y * kSummedAtOnce) {
    Packed t[kSummedAtOnce], preactivation[kSummedAtOnce];
    int64_t at[kSummedAtOnce];
#pragma unroll
    for (int r = 0; r < kSummedAtOnce; ++r) {
      const int64_t row = from + r * blockDim.y;
      at[r] = (row < last ? row : from) * parts.columns + column;
      t[r] = LoadPacked(p.accumulator, at[r]);
      preactivation[r] = LoadPacked(p.preactivation, at[r]);
    }
#pragma unroll
    for (int r = 0; r < kSummedAtOnce; ++r) {
      if (from + r * blockDim.y >= last) break;
      float v[kPack], x[kPack];
      Unpack(t[r], p.accumulator.dtype, v);
      Unpack(preactivation[r], p.preactivation.dtype, x);
      MultiplyGradient(activation, x, v);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum[k] += v[k];
      Store<kPack>(p.output, at[r], v);
    }
  }
  AddLanes<kPack>(sum);
  if (column >= parts.columns || threadIdx.y != 0) return;
  StorePartial(partials + blockIdx.y * parts.columns + column, sum);
}

// The block's part of the columns' sums.
constexpr int kReadAtOnce = 4;  // rows of a thread
template <int kDtype>
__global__ void __launch_bounds__(kWarp* kLanes) ColumnSumsKernel(ColumnParts parts, View of, float* partials) {
  const View x = Known<kDtype>(of);
  const int64_t column = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * kPack;
  const int64_t first = blockIdx.y * parts.rows_per_part, last = Least(parts.rows, first + parts.rows_per_part);
  float sum[kPack] = {};
  const auto add = [&](const Packed& raw) {
    float v[kPack];
    Unpack(raw, x.dtype, v);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum[k] += v[k];
  };
  int64_t row = column < parts.columns ? first + threadIdx.y : last;
  for (; row + (kReadAtOnce - 1) * blockDim.y < last; row += kReadAtOnce * blockDim.y) {
    Packed raw[kReadAtOnce];
#pragma unroll
    for (int r = 0; r < kReadAtOnce; ++r) raw[r] = LoadPacked(x, (row + r * blockDim.y) * parts.columns + column);
#pragma unroll
    for (int r = 0; r < kReadAtOnce; ++r) add(raw[r]);
  }
  for (; row < last; row += blockDim.y) add(LoadPacked(x, row * parts.columns + column));
  AddLanes<kPack>(sum);
  if (column >= parts.columns || threadIdx.y != 0) return;
  StorePartial(partials + blockIdx.y * parts.columns + column, sum);
}

__global__ void __launch_bounds__(kWarp* kWarp)
    GradientSumsFinishKernel(int parts, int64_t columns, const float* partials, bool adds, View sums) {
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.y;
  const float sum = SumOfParts(parts, columns, partials);
  if (threadIdx.x == 0 && column < columns) StoreOrAdd(sums, column, sum, adds);
}

View Of(const void* data, sy_dtype dtype) { return {static_cast<char*>(const_cast<void*>(data)), dtype}; }

}  // namespace

uint64_t ColumnSumBytes(int64_t rows, int64_t columns) {
  return static_cast<uint64_t>(ColumnParts(rows, columns).Partials()) * sizeof(float);
}

cudaError_t LaunchColumnSums(const void* a, sy_dtype dtype, int64_t rows, int64_t columns, bool adds, float* out,
                             void* workspace, cudaStream_t stream) {
  const ColumnParts parts(rows, columns);
  auto* const partials = static_cast<float*>(workspace);
  const auto kernel = dtype == SY_BF16  ? ColumnSumsKernel<SY_BF16>
                      : dtype == SY_F16 ? ColumnSumsKernel<SY_F16>
                                        : ColumnSumsKernel<SY_F32>;
  const cudaError_t status = Launch(kernel, parts.Grid(), parts.Block(), 0, stream, parts, Of(a, dtype), partials);
  if (status != cudaSuccess) return status;
  return Launch(GradientSumsFinishKernel, parts.JoinGrid(), dim3(kWarp, kWarp), 0, stream, parts.parts, columns,
                partials, adds, Of(out, SY_F32));
}

cudaError_t LaunchMatmulEpilogue(const MatmulEpilogue& e, cudaStream_t stream) {
  const EpilogueOperands p = {
      Of(e.accumulator, e.accumulator_dtype), Of(e.bias, e.bias_dtype),   Of(e.preactivation, e.preactivation_dtype),
      Of(e.residual, e.residual_dtype),       Of(e.saved, e.saved_dtype), Of(e.output, e.output_dtype)};
  const bool packs = Packs(e.columns);
  const auto all_are = [&](sy_dtype dtype) {
    for (const View& matrix : {p.accumulator, p.preactivation, p.residual, p.saved, p.output}) {
      if (matrix && matrix.dtype != dtype) return false;
    }
    return packs;
  };
  const bool bf16 = all_are(SY_BF16), f16 = all_are(SY_F16);
  if (e.column_sums != nullptr) {
    const ColumnParts parts(e.rows, e.columns);
    auto* const partials = static_cast<float*>(e.workspace);
    const auto kernel = bf16  ? GradientSumsKernel<SY_BF16>
                        : f16 ? GradientSumsKernel<SY_F16>
                              : GradientSumsKernel<kAnyDtype>;
    const cudaError_t status = Launch(kernel, parts.Grid(), parts.Block(), 0, stream, parts, e.activation, p, partials);
    if (status != cudaSuccess) return status;
    return Launch(GradientSumsFinishKernel, parts.JoinGrid(), dim3(kWarp, kWarp), 0, stream, parts.parts, e.columns,
                  partials, e.adds_column_sums, Of(e.column_sums, SY_F32));
  }
  const int64_t elements = e.rows * e.columns;
  const int64_t of_block = int64_t{kThreads} * (packs ? kPack : 1) * (bf16 || f16 ? kGroups<SY_BF16> : 1);
  const auto kernel = bf16    ? MatmulEpilogueKernel<kPack, SY_BF16>
                      : f16   ? MatmulEpilogueKernel<kPack, SY_F16>
                      : packs ? MatmulEpilogueKernel<kPack, kAnyDtype>
                              : MatmulEpilogueKernel<1, kAnyDtype>;
  return Launch(kernel, dim3(static_cast<unsigned>(CeilDivide(elements, of_block))), dim3(kThreads), 0, stream,
                elements, e.columns, e.activation, e.accumulate, p);
}

}  // namespace switchyard
