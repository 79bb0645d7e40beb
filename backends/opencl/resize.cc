// resize and its gradient.
#include "backends/opencl/window.h"

namespace switchyard {
namespace {

sy_status Prepare(const Request& r, Kernel& kernel, bool backward) {
  const auto a = r.Attributes<sy_resize_attributes>();
  if (!r.HasCounts(1, 1, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation() ||
      !r.RequireFloat(r.inputs[0], "x") || !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y")) {
    return SY_UNSUPPORTED;
  }
  if (a.mode != SY_RESIZE_NEAREST && a.mode != SY_RESIZE_LINEAR) return SY_REFUSE_OP(r, "unknown mode %d", a.mode);
  const sy_tensor &x = backward ? r.outputs[0] : r.inputs[0], &y = backward ? r.inputs[0] : r.outputs[0];
  Window w;
  if (!SetExtents(r, a.spatial_rank, x, y, &w)) return SY_UNSUPPORTED;
  const int64_t channels = x.dims[x.rank - 1], pixels = x.dims[0] * (backward ? w.Inputs() : w.Outputs());
  if (y.dims[y.rank - 1] != channels) return SY_REFUSE_OP(r, "x and y have different channels");
  kernel.Add("window", backward ? "resize_backward" : "resize", Define("T", x))
      .In(0)
      .Out(0)
      .Struct(w)
      .Uint(pixels)
      .Uint(channels)
      .Int(a.mode)
      .Int(a.align_corners != 0)
      .Groups(RowGroups(*kernel.device(), pixels));
  return SY_OK;
}

sy_status PrepareResize(const Request& r, Kernel& kernel) { return Prepare(r, kernel, false); }
sy_status PrepareResizeBackward(const Request& r, Kernel& kernel) { return Prepare(r, kernel, true); }

const Registration kResize{"resize", PrepareResize, sizeof(sy_resize_attributes)};
const Registration kResizeBackward{"resize_backward", PrepareResizeBackward, sizeof(sy_resize_attributes)};

}  // namespace
}  // namespace switchyard
