// reduce over any axes, squared_norm of many tensors, and the row sums that matmul asks for. Neighbouring axes that are
// both kept or both reduced are one; the innermost decides: where it is reduced, a team of threads runs along it, where
// it is kept, neighbouring threads have neighbouring results. The reduced elements are cut into parts by shapes and the
// number of multiprocessors alone; a second kernel joins the parts in order. So results are the same in every run.
#include <algorithm>
#include <cmath>

#include "backends/cuda/column_sums.cuh"

namespace switchyard {
namespace {

using Axes = Strided<SY_MAX_RANK / 2>;

struct ReduceShape {
  Axes kept, reduced;         // offsets into x of a result, and of an element within it
  int64_t results, elements;  // elements of each result
  int64_t per_part;
  int32_t parts;
  int32_t reduction;
  float scale;
  bool accumulate;
  bool rows;  // the innermost axis is reduced
};

__device__ __forceinline__ float Start(int reduction) {
  return reduction == SY_REDUCE_MAX ? -INFINITY : reduction == SY_REDUCE_MIN ? INFINITY : 0;
}
__device__ __forceinline__ float Join(int reduction, float a, float b) {
  if (reduction == SY_REDUCE_MAX) return Greater()(a, b);
  if (reduction == SY_REDUCE_MIN) return Smaller()(a, b);
  return a + b;
}
struct Joining {
  int reduction;
  __device__ __forceinline__ float operator()(float a, float b) const { return Join(reduction, a, b); }
};
__device__ __forceinline__ float Term(int reduction, float x) {
  return reduction == SY_REDUCE_SUM_OF_SQUARES ? x * x : x;
}

__device__ __forceinline__ void Finish(const ReduceShape& s, View y, int64_t result, float value) {
  value *= s.scale;
  StoreOrAdd(y, result, value, s.accumulate);
}

// A team has one result's part: blockIdx.y. Without partials there is one part, and the result is finished.
template <int N>
__global__ void ReduceRowsKernel(const __grid_constant__ ReduceShape s, Teams teams, View x, View y, float* partials) {
  const int64_t result = teams.Row();
  if (result >= s.results) return;
  const int64_t base = s.kept.Offset(static_cast<uint32_t>(result));
  const int64_t first = blockIdx.y * s.per_part, count = Least(s.elements - first, s.per_part);
  float sum = Start(s.reduction);
  teams.ForRow<N>(count, [&](int64_t i) {
    float v[N];
    Load<N>(x, base + s.reduced.Offset(static_cast<uint32_t>(first + i)), v);
#pragma unroll
    for (int k = 0; k < N; ++k) sum = Join(s.reduction, sum, Term(s.reduction, v[k]));
  });
  sum = teams.Reduce(sum, Joining{s.reduction});
  if (teams.Rank() != 0) return;
  if (partials) {
    partials[blockIdx.y * s.results + result] = sum;
  } else {
    Finish(s, y, result, sum);
  }
}

// A block of 32 × kLanes threads has 32·N results' part: blockIdx.y.
template <int N>
__global__ void ReduceColumnsKernel(const __grid_constant__ ReduceShape s, View x, View y, float* partials) {
  __shared__ float of_lane[kLanes][kWarp * N];
  const int64_t result = (blockIdx.x * static_cast<int64_t>(kWarp) + threadIdx.x) * N;
  const int64_t first = blockIdx.y * s.per_part, last = Least(s.elements, first + s.per_part);
  const bool inside = result < s.results;
  const int64_t base = inside ? s.kept.Offset(static_cast<uint32_t>(result)) : 0;
  float sum[N];
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] = Start(s.reduction);
  for (int64_t i = first + threadIdx.y; i < last && inside; i += kLanes) {
    float v[N];
    Load<N>(x, base + s.reduced.Offset(static_cast<uint32_t>(i)), v);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = Join(s.reduction, sum[k], Term(s.reduction, v[k]));
  }
#pragma unroll
  for (int k = 0; k < N; ++k) of_lane[threadIdx.y][threadIdx.x + kWarp * k] = sum[k];
  __syncthreads();
  if (!inside || threadIdx.y != 0) return;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    for (int lane = 1; lane < kLanes; ++lane)
      sum[k] = Join(s.reduction, sum[k], of_lane[lane][threadIdx.x + kWarp * k]);
    if (partials) {
      partials[blockIdx.y * s.results + result + k] = sum[k];
    } else {
      Finish(s, y, result + k, sum[k]);
    }
  }
}

__global__ void JoinPartsKernel(const __grid_constant__ ReduceShape s, const float* partials, View y) {
  const int64_t result = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (result >= s.results) return;
  float sum = partials[result];
  for (int part = 1; part < s.parts; ++part) sum = Join(s.reduction, sum, partials[part * s.results + result]);
  Finish(s, y, result, sum);
}

// What to launch for one shape.
struct Reduction {
  ReduceShape shape{};
  bool packs = false;

  // `dims` of x, and a bit for each reduced axis.
  Reduction(const int64_t* dims, int rank, uint32_t axes, int multiprocessors) {
    std::vector<std::pair<int64_t, bool>> groups;  // extent, reduced
    for (int d = 0; d < rank; ++d) {
      if (dims[d] == 1) continue;
      const bool reduced = axes >> d & 1;
      if (groups.empty() || groups.back().second != reduced) groups.emplace_back(1, reduced);
      groups.back().first *= dims[d];
    }
    if (groups.empty()) groups.emplace_back(1, false);
    shape.rows = groups.back().second;
    packs = Packs(groups.back().first);
    shape.results = shape.elements = 1;
    for (const auto& [extent, reduced] : groups) (reduced ? shape.elements : shape.results) *= extent;
    int64_t stride = shape.results * shape.elements;
    for (const auto& [extent, reduced] : groups) {
      stride /= extent;
      (reduced ? shape.reduced : shape.kept).Add(extent, stride);
    }
    shape.scale = 1;
    // Parts, so that there are several blocks for every multiprocessor, as long as each has enough to do.
    const int64_t blocks = shape.rows
                               ? CeilDivide(shape.results * Teams(shape.results, shape.elements).size, kTeamBlock)
                               : CeilDivide(shape.results, kWarp * (packs ? kPack : 1));
    const int64_t least = shape.rows ? 4096 : 64;  // elements of a part
    const int64_t wanted =
        Least(CeilDivide(4 * Largest(multiprocessors, 1), blocks), CeilDivide(shape.elements, least));
    shape.per_part = CeilDivide(CeilDivide(shape.elements, Largest<int64_t>(wanted, 1)), kPack) * kPack;
    shape.parts = static_cast<int32_t>(CeilDivide(shape.elements, shape.per_part));
  }

  bool Fits() const { return shape.results <= kMostIndices && shape.elements <= kMostIndices; }
  uint64_t WorkspaceBytes() const {
    return shape.parts > 1 ? static_cast<uint64_t>(shape.parts * shape.results) * sizeof(float) : 0;
  }

  cudaError_t Run(View x, View y, float* workspace, cudaStream_t stream) const {
    float* partials = shape.parts > 1 ? workspace : nullptr;
    const auto parts = static_cast<unsigned>(shape.parts);
    cudaError_t code;
    if (shape.rows) {
      const Teams teams(shape.results, Least(shape.elements, shape.per_part));
      code = Launch(packs ? ReduceRowsKernel<kPack> : ReduceRowsKernel<1>, dim3(teams.Grid().x, parts),
                    dim3(kTeamBlock), 0, stream, shape, teams, x, y, partials);
    } else {
      const dim3 grid(static_cast<unsigned>(CeilDivide(shape.results, kWarp * (packs ? kPack : 1))), parts);
      code = Launch(packs ? ReduceColumnsKernel<kPack> : ReduceColumnsKernel<1>, grid, dim3(kWarp, kLanes), 0, stream,
                    shape, x, y, partials);
    }
    if (code != cudaSuccess || shape.parts == 1) return code;
    return Launch(JoinPartsKernel, dim3(static_cast<unsigned>(CeilDivide(shape.results, kTeamBlock))), dim3(kTeamBlock),
                  0, stream, shape, partials, y);
  }
};

struct Reduce : Kernel {
  Reduce(const Request& r, const sy_reduce_attributes& attributes)
      : Kernel(r), reduction(inputs[0].dims, inputs[0].rank, attributes.axes, device->sm_count) {
    reduction.shape.reduction = attributes.reduction;
    reduction.shape.scale = attributes.scale;
    reduction.shape.accumulate = accumulate[0];
    workspace_bytes = reduction.WorkspaceBytes();
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_CUDA(error, reduction.Run(In(b, 0), Out(b, 0), b.Workspace<float>(), context.stream));
    return SY_OK;
  }
  Reduction reduction;
};

constexpr int64_t kChunk = 65536;  // elements of a block

struct Chunk {
  View x;
  int64_t first, count;  // first is a multiple of kPack
};

__global__ void SquaresKernel(const Chunk* chunks, float* partials) {
  const Chunk chunk = chunks[blockIdx.x];
  const int64_t packed = chunk.count / kPack * kPack;
  float sum = 0;
  for (int64_t i = threadIdx.x * static_cast<int64_t>(kPack); i < packed; i += int64_t{kTeamBlock} * kPack) {
    float v[kPack];
    Load<kPack>(chunk.x, chunk.first + i, v);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum += v[k] * v[k];
  }
  if (packed + threadIdx.x < chunk.count) {
    const float v = LoadOne(chunk.x, chunk.first + packed + threadIdx.x);
    sum += v * v;
  }
  sum = BlockReduce(sum, Plus());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void SumKernel(const float* partials, int64_t count, View norm) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTeamBlock) sum += partials[i];
  sum = BlockReduce(sum, Plus());
  if (threadIdx.x == 0) StoreOne(norm, 0, sum);
}

struct SquaredNormBound : Bound {
  DeviceTable chunks;
};

// One launch for all tensors: each block finds its piece in a table that bind uploads.
struct SquaredNorm : Kernel {
  explicit SquaredNorm(const Request& r) : Kernel(r) {
    for (const sy_tensor& x : inputs) chunk_count += CeilDivide(Elements(x), kChunk);
    workspace_bytes = static_cast<uint64_t>(chunk_count) * sizeof(float);
  }
  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    auto made = std::make_unique<SquaredNormBound>();
    static_cast<Bound&>(*made) = **bound;
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t elements = Elements(inputs[i]);
      for (int64_t first = 0; first < elements; first += kChunk)
        chunks.push_back({In(*made, i), first, Least(kChunk, elements - first)});
    }
    SY_TRY(made->chunks.Assign(device, chunks.data(), chunks.size() * sizeof(Chunk), error));
    *bound = std::move(made);
    return SY_OK;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto& own = static_cast<const SquaredNormBound&>(b);
    SY_CUDA(error, Launch(SquaresKernel, dim3(static_cast<unsigned>(chunk_count)), dim3(kTeamBlock), 0, context.stream,
                          own.chunks.data<Chunk>(), b.Workspace<float>()));
    SY_CUDA(error, Launch(SumKernel, dim3(1), dim3(kTeamBlock), 0, context.stream, b.Workspace<float>(), chunk_count,
                          Out(b, 0)));
    return SY_OK;
  }
  int64_t chunk_count = 0;
};

// The multiprocessors that matmul's row sums are cut for: a constant, since their workspace is sized without a device.
constexpr int kRowSumMultiprocessors = 128;

Reduction RowSum(int64_t rows, int64_t columns, bool transposed) {
  const int64_t dims[] = {transposed ? columns : rows, transposed ? rows : columns};
  return Reduction(dims, 2, transposed ? 1u : 2u, kRowSumMultiprocessors);
}

// Whether blocks have parts of columns worth two launches; else a block has all of its own.
bool SumsInParts(int64_t rows, int64_t columns, bool transposed) {
  constexpr int64_t kMany = 1024;
  return transposed && Packs(rows) && columns >= kMany;
}

}  // namespace

uint64_t RowSumBytes(int64_t rows, int64_t columns, bool transposed) {
  if (SumsInParts(rows, columns, transposed)) return ColumnSumBytes(columns, rows);
  return RowSum(rows, columns, transposed).WorkspaceBytes();
}

cudaError_t LaunchRowSum(const void* a, sy_dtype dtype, int64_t rows, int64_t columns, bool transposed, bool accumulate,
                         float* out, void* workspace, cudaStream_t stream) {
  if (SumsInParts(rows, columns, transposed))
    return LaunchColumnSums(a, dtype, columns, rows, accumulate, out, workspace, stream);
  Reduction reduction = RowSum(rows, columns, transposed);
  if (!reduction.Fits()) return cudaErrorInvalidValue;
  reduction.shape.accumulate = accumulate;
  return reduction.Run({static_cast<char*>(const_cast<void*>(a)), dtype}, {reinterpret_cast<char*>(out), SY_F32},
                       static_cast<float*>(workspace), stream);
}

namespace {

KernelPointer PrepareReduce(const Request& r) {
  if (!r.HasCounts(1, 1, 1) || !r.RequireFloat(r.inputs[0], "x") || !r.RequireFloat(r.outputs[0], "y")) return nullptr;
  const auto attributes = r.Attributes<sy_reduce_attributes>();
  if (attributes.reduction < SY_REDUCE_SUM || attributes.reduction > SY_REDUCE_SUM_OF_SQUARES)
    return SY_REFUSE(r, "reduce: reduction %d", attributes.reduction);
  const sy_tensor& x = r.inputs[0];
  if (!r.RequireReduced(x, attributes.axes, r.outputs[0])) return nullptr;
  auto kernel = std::make_unique<Reduce>(r, attributes);
  if (!kernel->reduction.Fits()) return SY_REFUSE(r, "reduce: more than 2³¹ − 1 elements");
  return kernel;
}

KernelPointer PrepareSquaredNorm(const Request& r) {
  if (!r.HasCounts(1, 1 << 20, 1) || !r.RequireFloat(r.outputs[0], "the norm") ||
      !r.RequireElements(r.outputs[0], 1, "the norm"))
    return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "squared_norm: cannot accumulate");
  for (const sy_tensor& x : r.inputs) {
    if (!r.RequireFloat(x, "an input")) return nullptr;
  }
  return std::make_unique<SquaredNorm>(r);
}

const Registration kReduce{"reduce", PrepareReduce, sizeof(sy_reduce_attributes)};
const Registration kSquaredNorm{"squared_norm", PrepareSquaredNorm, 0};

}  // namespace

}  // namespace switchyard
