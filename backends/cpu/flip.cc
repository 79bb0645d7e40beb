// flip: samples that are marked have their elements along one axis in reverse order. Bits move; dtypes do not matter.
#include <algorithm>
#include <cstring>

#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

// `count` runs of kBytes, or of `bytes` where that is 0, in reverse order.
template <int64_t kBytes>
void Reverse(const char* x, int64_t count, int64_t bytes, char* y) {
  const int64_t each = kBytes != 0 ? kBytes : bytes;
  for (int64_t i = 0; i < count; ++i) std::memcpy(y + i * each, x + (count - 1 - i) * each, static_cast<size_t>(each));
}

using ReverseFunction = void (*)(const char* x, int64_t count, int64_t bytes, char* y);
ReverseFunction ReverseOf(int64_t bytes) {
  switch (bytes) {
    case 1:
      return Reverse<1>;
    case 3:
      return Reverse<3>;
    case 4:
      return Reverse<4>;
    default:
      return Reverse<0>;
  }
}

class Flip : public Kernel {
 public:
  Flip(const Request& request, int axis)
      : Kernel(request), extent_(inputs[0].dims[axis]), run_bytes_(DtypeBytes(inputs[0].dtype)) {
    for (int d = 1; d < axis; ++d) rows_ *= inputs[0].dims[d];
    for (int d = axis + 1; d < inputs[0].rank; ++d) run_bytes_ *= inputs[0].dims[d];
    reverse_ = ReverseOf(run_bytes_);
  }
  void Run(const Arguments& a) const override {
    const int64_t row_bytes = extent_ * run_bytes_;
    ParallelRanges(device->threads, inputs[0].dims[0] * rows_, RowGrain(row_bytes),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t row = begin; row < end; ++row) {
                       const char* const x = a.inputs[0] + row * row_bytes;
                       char* const y = a.outputs[0] + row * row_bytes;
                       if (a.inputs[1][row / rows_] != 0) {
                         reverse_(x, extent_, run_bytes_, y);
                       } else {
                         std::memcpy(y, x, static_cast<size_t>(row_bytes));
                       }
                     }
                   });
  }

 private:
  const int64_t extent_;
  int64_t rows_ = 1, run_bytes_;  // rows of a sample; bytes of what lies behind the axis
  ReverseFunction reverse_;
};

KernelPointer PrepareFlip(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireDtype(r.inputs[1], SY_U8, "flips") ||
      !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y"))
    return nullptr;
  const sy_tensor& x = r.inputs[0];
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (axis < 1 || axis >= x.rank) return SY_REFUSE(r, "flip: axis %d of rank %d", axis, x.rank);
  if (r.Accumulates() || !SameDims(x, r.outputs[0])) return SY_REFUSE(r, "flip: dims differ, or accumulating");
  if (!r.RequireElements(r.inputs[1], x.dims[0], "flips")) return nullptr;
  return std::make_unique<Flip>(r, axis);
}

const Registration kFlip{"flip", PrepareFlip, sizeof(sy_axes_attributes)};

}  // namespace
}  // namespace switchyard
