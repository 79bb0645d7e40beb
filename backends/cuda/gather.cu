// gather rows of a table, and its gradient scatter_add. Both clamp an index to the table. scatter_add needs no atomics:
// a block owns a row of the table, its warps look through all indices, each at some of them, and add what belongs to the
// row in the order of the indices; then the warps' sums are added in order.
#include "backends/cuda/column_sums.cuh"
#include "backends/cuda/element.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

__device__ __forceinline__ int64_t Clamp(int32_t index, int64_t rows) {
  return Largest<int64_t>(0, Least<int64_t>(index, rows - 1));
}

// A block copies kThreads units of y; a row has `width` units.
template <typename Unit>
__global__ void GatherKernel(const Unit* table, const int32_t* indices, int64_t rows, int64_t width, int64_t units,
                             Unit* y) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= units) return;
  y[at] = table[Clamp(indices[at / width], rows) * width + at % width];
}

// blockIdx.x: the row; blockIdx.y: which kWarp of its elements.
__global__ void ScatterAddKernel(const int32_t* indices, int64_t count, View updates, int64_t rows, int64_t width,
                                 bool accumulate, View table) {
  const int64_t row = blockIdx.x, column = blockIdx.y * static_cast<int64_t>(kWarp) + threadIdx.x;
  float sum[1] = {};
  for (int64_t chunk = 0; chunk < count; chunk += kWarp * kLanes) {
    const int64_t first = chunk + threadIdx.y * kWarp, i = first + threadIdx.x;
    unsigned here = __ballot_sync(~0u, i < count && Clamp(indices[i], rows) == row);
    for (; here != 0; here &= here - 1) {
      if (column < width) sum[0] += LoadOne(updates, (first + __ffs(static_cast<int>(here)) - 1) * width + column);
    }
  }
  AddLanes<1>(sum);
  if (column >= width || threadIdx.y != 0) return;
  const int64_t at = row * width + column;
  StoreOrAdd(table, at, sum[0], accumulate);
}

struct Gather : Kernel {
  explicit Gather(const Request& r)
      : Kernel(r), rows(inputs[0].dims[0]), row_bytes(Bytes(inputs[0]) / rows), bytes(Bytes(outputs[0])) {}

  template <typename Unit>
  cudaError_t Start(const Bound& b, const LaunchContext& context) const {
    const int64_t unit = sizeof(Unit), units = bytes / unit;
    return Launch(GatherKernel<Unit>, dim3(static_cast<unsigned>(CeilDivide(units, kThreads))), dim3(kThreads), 0,
                  context.stream, b.Input<Unit>(0), b.Input<int32_t>(1), rows, row_bytes / unit, units,
                  b.Output<Unit>(0));
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    if (row_bytes % sizeof(uint4) == 0) {
      SY_CUDA(error, Start<uint4>(b, context));
    } else if (row_bytes % sizeof(uint32_t) == 0) {
      SY_CUDA(error, Start<uint32_t>(b, context));
    } else if (row_bytes % sizeof(uint16_t) == 0) {
      SY_CUDA(error, Start<uint16_t>(b, context));
    } else {
      SY_CUDA(error, Start<uint8_t>(b, context));
    }
    return SY_OK;
  }
  const int64_t rows, row_bytes, bytes;
};

struct ScatterAdd : Kernel {
  explicit ScatterAdd(const Request& r)
      : Kernel(r), rows(outputs[0].dims[0]), width(Elements(outputs[0]) / rows), count(Elements(inputs[0])) {}
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(CeilDivide(width, kWarp)));
    SY_CUDA(error, Launch(ScatterAddKernel, grid, dim3(kWarp, kLanes), 0, context.stream, b.Input<int32_t>(0), count,
                          In(b, 1), rows, width, accumulate[0] != 0, Out(b, 0)));
    return SY_OK;
  }
  const int64_t rows, width, count;
};

KernelPointer PrepareGather(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireDtype(r.inputs[1], SY_I32, "indices") ||
      !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y"))
    return nullptr;
  if (r.inputs[0].rank < 1) return SY_REFUSE(r, "gather: the table has no axis");
  if (r.Accumulates()) return SY_REFUSE(r, "gather: cannot accumulate");
  const int64_t width = Elements(r.inputs[0]) / r.inputs[0].dims[0];
  if (!r.RequireElements(r.outputs[0], Elements(r.inputs[1]) * width, "y")) return nullptr;
  return std::make_unique<Gather>(r);
}

KernelPointer PrepareScatterAdd(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireDtype(r.inputs[0], SY_I32, "indices") ||
      !r.RequireFloat(r.inputs[1], "updates") || !r.RequireFloat(r.outputs[0], "the table"))
    return nullptr;
  if (r.outputs[0].rank < 1) return SY_REFUSE(r, "scatter_add: the table has no axis");
  const int64_t rows = r.outputs[0].dims[0], width = Elements(r.outputs[0]) / rows;
  if (!r.RequireElements(r.inputs[1], Elements(r.inputs[0]) * width, "updates")) return nullptr;
  if (rows > kMostIndices || CeilDivide(width, kWarp) > 65535)
    return SY_REFUSE(r, "scatter_add: a table of %lld rows of %lld elements", static_cast<long long>(rows),
                     static_cast<long long>(width));
  return std::make_unique<ScatterAdd>(r);
}

const Registration kGather{"gather", PrepareGather, 0};
const Registration kScatterAdd{"scatter_add", PrepareScatterAdd, 0};

}  // namespace
}  // namespace switchyard
