// gather and scatter_add of rows. scatter_add is deterministic: each thread owns a range of table rows and adds in the
// order of the indices.
#include <algorithm>

#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

class Gather : public Kernel {
 public:
  explicit Gather(const Request& request)
      : Kernel(request), rows_(inputs[0].dims[0]), row_bytes_(Bytes(inputs[0]) / rows_), count_(Elements(inputs[1])) {}
  void Run(const Arguments& a) const override {
    const auto* indices = a.Input<int32_t>(1);
    ParallelRanges(device->threads, count_, std::max<int64_t>(1, 4 * kParallelElements / row_bytes_),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       const int64_t row = std::clamp<int64_t>(indices[i], 0, rows_ - 1);
                       std::memcpy(a.outputs[0] + i * row_bytes_, a.inputs[0] + row * row_bytes_,
                                   static_cast<size_t>(row_bytes_));
                     }
                   });
  }

 private:
  int64_t rows_, row_bytes_, count_;
};

class ScatterAdd : public Kernel {
 public:
  explicit ScatterAdd(const Request& request)
      : Kernel(request), rows_(outputs[0].dims[0]), width_(Elements(outputs[0]) / rows_), count_(Elements(inputs[0])) {
    // A half table is summed in f32 first.
    if (outputs[0].dtype != SY_F32) workspace_bytes = static_cast<uint64_t>(rows_ * width_) * sizeof(float);
  }
  void Run(const Arguments& a) const override {
    const auto* indices = a.Input<int32_t>(0);
    const bool f32 = outputs[0].dtype == SY_F32;
    float* table = f32 ? a.Output<float>(0) : a.Workspace<float>();
    ParallelRanges(device->threads, rows_, std::max<int64_t>(1, kParallelElements / width_),
                   [&](int64_t begin, int64_t end, int) {
                     const int64_t first = begin * width_, n = (end - begin) * width_;
                     char* out = a.outputs[0] + first * DtypeBytes(outputs[0].dtype);
                     if (!accumulate[0]) {
                       std::fill_n(table + first, n, 0.0f);
                     } else if (!f32) {
                       Vector().to_float(outputs[0].dtype, out, table + first, n);
                     }
                     for (int64_t i = 0; i < count_; ++i) {
                       const int64_t row = std::clamp<int64_t>(indices[i], 0, rows_ - 1);
                       if (row < begin || row >= end) continue;
                       const int64_t bytes = DtypeBytes(inputs[1].dtype);
                       Vector().add_columns({a.inputs[1] + i * width_ * bytes, inputs[1].dtype}, 1, width_, width_,
                                            table + row * width_);
                     }
                     if (!f32) Vector().from_float(outputs[0].dtype, table + first, out, n);
                   });
  }

 private:
  int64_t rows_, width_, count_;
};

KernelPointer PrepareGather(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireDtype(r.inputs[1], SY_I32, "indices") ||
      !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y"))
    return nullptr;
  if (r.Accumulates() || r.inputs[0].rank < 1) return SY_REFUSE(r, "gather: no table axis, or accumulating");
  const int64_t width = Elements(r.inputs[0]) / r.inputs[0].dims[0];
  if (!r.RequireElements(r.outputs[0], Elements(r.inputs[1]) * width, "y")) return nullptr;
  return std::make_unique<Gather>(r);
}

KernelPointer PrepareScatterAdd(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireDtype(r.inputs[0], SY_I32, "indices") ||
      !r.RequireFloat(r.inputs[1], "updates") || !r.RequireFloat(r.outputs[0], "table"))
    return nullptr;
  if (r.outputs[0].rank < 1) return SY_REFUSE(r, "scatter_add: the table has no axis");
  const int64_t width = Elements(r.outputs[0]) / r.outputs[0].dims[0];
  if (!r.RequireElements(r.inputs[1], Elements(r.inputs[0]) * width, "updates")) return nullptr;
  return std::make_unique<ScatterAdd>(r);
}

const Registration kGather{"gather", PrepareGather, 0};
const Registration kScatterAdd{"scatter_add", PrepareScatterAdd, 0};

}  // namespace
}  // namespace switchyard
