// flip: samples that are marked have their elements along one axis in reverse order. Bits move; dtypes do not matter.
// What lies behind the axis (a pixel's channels) is moved in units of up to 16 bytes; where that is a byte and rows are
// words, a thread gathers four bytes and writes a word.
#include "backends/cuda/element.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

struct FlippedRows {
  Divider per_sample;   // rows of a sample …
  Divider groups;       // … of so many groups of units that a thread writes at once
  Divider run;          // units of what lies behind the axis
  uint32_t extent = 0;  // of the axis
};

template <typename Unit, int kGroup>
struct alignas(sizeof(Unit) * kGroup) UnitGroup {
  Unit units[kGroup];
};

template <typename Unit, int kGroup>
__global__ void FlipKernel(const __grid_constant__ FlippedRows rows, int64_t count, const Unit* x, const uint8_t* flips,
                           UnitGroup<Unit, kGroup>* y) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= count) return;
  const uint32_t row = rows.groups.Quotient(static_cast<uint32_t>(at));
  const uint32_t first = (static_cast<uint32_t>(at) - row * rows.groups.divisor) * kGroup;
  const Unit* const from = x + static_cast<int64_t>(row) * rows.extent * rows.run.divisor;
  const bool flipped = flips[rows.per_sample.Quotient(row)] != 0;
  UnitGroup<Unit, kGroup> group;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) {
    const uint32_t unit = first + k, place = rows.run.Quotient(unit);
    const uint32_t mirrored =
        unit + (rows.extent - 1 - 2 * place) * rows.run.divisor;  // modulo 2³², as place may be large
    group.units[k] = from[flipped ? mirrored : unit];
  }
  y[at] = group;
}

struct Flip : Kernel {
  Flip(const Request& r, int axis) : Kernel(r), extent(inputs[0].dims[axis]), run_bytes(DtypeBytes(inputs[0].dtype)) {
    for (int d = 1; d < axis; ++d) rows_per_sample *= inputs[0].dims[d];
    for (int d = axis + 1; d < inputs[0].rank; ++d) run_bytes *= inputs[0].dims[d];
  }

  template <typename Unit, int kGroup>
  cudaError_t Start(const Bound& b, const LaunchContext& context) const {
    const int64_t run = run_bytes / static_cast<int64_t>(sizeof(Unit)), groups = extent * run / kGroup;
    const int64_t count = inputs[0].dims[0] * rows_per_sample * groups;
    const FlippedRows rows = {Divider(rows_per_sample), Divider(groups), Divider(run), static_cast<uint32_t>(extent)};
    return Launch(FlipKernel<Unit, kGroup>, dim3(static_cast<unsigned>(CeilDivide(count, kThreads))), dim3(kThreads), 0,
                  context.stream, rows, count, b.Input<Unit>(0), b.Input<uint8_t>(1),
                  b.Output<UnitGroup<Unit, kGroup>>(0));
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    if (run_bytes % 16 == 0) {
      SY_CUDA(error, (Start<uint4, 1>(b, context)));
    } else if (run_bytes % 4 == 0) {
      SY_CUDA(error, (Start<uint32_t, 1>(b, context)));
    } else if (run_bytes % 2 == 0) {
      SY_CUDA(error, (Start<uint16_t, 1>(b, context)));
    } else if (extent * run_bytes % 4 == 0) {
      SY_CUDA(error, (Start<uint8_t, 4>(b, context)));
    } else {
      SY_CUDA(error, (Start<uint8_t, 1>(b, context)));
    }
    return SY_OK;
  }
  const int64_t extent;
  int64_t rows_per_sample = 1, run_bytes;
};

KernelPointer PrepareFlip(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireDtype(r.inputs[1], SY_U8, "flips") ||
      !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y"))
    return nullptr;
  const sy_tensor& x = r.inputs[0];
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (axis < 1 || axis >= x.rank) return SY_REFUSE(r, "flip: axis %d of rank %d", axis, x.rank);
  if (r.Accumulates()) return SY_REFUSE(r, "flip: cannot accumulate");
  if (!SameDims(x, r.outputs[0])) return SY_REFUSE(r, "flip: the output's dims differ from the input's");
  if (!r.RequireElements(r.inputs[1], x.dims[0], "flips")) return nullptr;
  if (Bytes(x) > kMostIndices) return SY_REFUSE(r, "flip: more than 2³¹ − 1 bytes");
  return std::make_unique<Flip>(r, axis);
}

const Registration kFlip{"flip", PrepareFlip, sizeof(sy_axes_attributes)};

}  // namespace
}  // namespace switchyard
