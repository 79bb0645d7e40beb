// pool and its gradient, which looks at every window that covers a pixel, so that no two work-items write to one place.
#include <algorithm>

#include "backends/opencl/window.h"

namespace switchyard {
namespace {

bool Check(const Request& r, const sy_pool_attributes& a, const sy_tensor& x, const sy_tensor& y, Window* w) {
  if (!r.RequireContiguous() || !r.RequireNoAccumulation() || !r.RequireFloat(x, "x") ||
      !r.RequireDtype(y, x.dtype, "y") || !SetExtents(r, a.spatial_rank, x, y, w)) {
    return false;
  }
  if (x.dims[x.rank - 1] != y.dims[y.rank - 1]) return SY_REFUSE_OP(r, "x and y have different channels"), false;
  SetAxes(a.spatial_rank, a.kernel, w->kernel);
  SetAxes(a.spatial_rank, a.stride, w->stride);
  SetAxes(a.spatial_rank, a.before, w->before);
  for (int i = 0; i < a.spatial_rank; ++i) {
    if (a.before[i] >= a.kernel[i] || a.after[i] >= a.kernel[i]) {
      return SY_REFUSE_OP(r, "padding must be smaller than the window"), false;
    }
  }
  return CheckExtents(r, a.spatial_rank, *w, a.after);
}

void Finish(Launch& launch, const Kernel& kernel, const sy_pool_attributes& a, const Window& w, int64_t pixels,
            int64_t channels) {
  launch.Struct(w).Uint(pixels).Uint(channels).Uint(a.average != 0).Uint(a.count_include_pad != 0);
  launch.Groups(RowGroups(*kernel.device(), pixels));
}

}  // namespace

bool SetExtents(const Request& r, int32_t spatial_rank, const sy_tensor& x, const sy_tensor& y, Window* window) {
  if (spatial_rank != 2 && spatial_rank != 3)
    return SY_REFUSE_OP(r, "spatial_rank must be 2 or 3, found %d", spatial_rank), false;
  if (x.rank != spatial_rank + 2 || y.rank != spatial_rank + 2 || x.dims[0] != y.dims[0]) {
    return SY_REFUSE_OP(r, "x and y must have rank %d and equally many images", spatial_rank + 2), false;
  }
  for (int i = 0; i < spatial_rank; ++i) {
    window->in[3 - spatial_rank + i] = static_cast<int32_t>(x.dims[1 + i]);
    window->out[3 - spatial_rank + i] = static_cast<int32_t>(y.dims[1 + i]);
  }
  return true;
}

bool CheckExtents(const Request& r, int32_t spatial_rank, const Window& w, const int32_t* after) {
  for (int i = 0; i < spatial_rank; ++i) {
    const int axis = 3 - spatial_rank + i;
    if (w.stride[axis] < 1 || w.dilation[axis] < 1 || w.kernel[axis] < 1 || w.before[axis] < 0 || after[i] < 0) {
      return SY_REFUSE_OP(r, "stride, dilation and kernel must be positive, padding not negative"), false;
    }
    const int64_t room =
        int64_t{w.in[axis]} + w.before[axis] + after[i] - int64_t{w.dilation[axis]} * (w.kernel[axis] - 1) - 1;
    if (room < 0 || w.out[axis] != room / w.stride[axis] + 1) {
      return SY_REFUSE_OP(r, "axis %d of the output has %d positions, which do not follow from the window", i,
                          w.out[axis]),
             false;
    }
  }
  return true;
}

namespace {

sy_status PreparePool(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_pool_attributes>();
  Window w;
  if (!r.HasCounts(1, 1, 1) || !Check(r, a, r.inputs[0], r.outputs[0], &w)) return SY_UNSUPPORTED;
  const sy_tensor& x = r.inputs[0];
  Launch& launch = kernel.Add("window", "pool", Define("T", x)).In(0).Out(0);
  Finish(launch, kernel, a, w, x.dims[0] * w.Outputs(), x.dims[x.rank - 1]);
  return SY_OK;
}

sy_status PreparePoolBackward(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_pool_attributes>();
  Window w;
  if (!r.HasCounts(2, 2, 1) || !Check(r, a, r.inputs[0], r.inputs[1], &w)) return SY_UNSUPPORTED;
  const sy_tensor& x = r.inputs[0];
  if (!r.RequireDtype(r.outputs[0], x.dtype, "dx") || !r.RequireDims(r.outputs[0], {x.dims, x.dims + x.rank}, "dx")) {
    return SY_UNSUPPORTED;
  }
  Launch& launch = kernel.Add("window", "pool_backward", Define("T", x)).In(0).In(1).Out(0);
  Finish(launch, kernel, a, w, x.dims[0] * w.Inputs(), x.dims[x.rank - 1]);
  return SY_OK;
}

const Registration kPool{"pool", PreparePool, sizeof(sy_pool_attributes)};
const Registration kPoolBackward{"pool_backward", PreparePoolBackward, sizeof(sy_pool_attributes)};

}  // namespace

}  // namespace switchyard
