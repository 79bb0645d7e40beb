// resize and resize_backward: weighted sums of rows of channels, and their transpose, which is gathered too, so that
// nothing is added to by two threads. Positions and weights are computed in f64 at prepare.
#include "backends/cpu/window.h"

namespace switchyard {
namespace {

// The one or two places along an axis that each output reads.
AxisTerms ResizeSources(const sy_resize_attributes& t, int64_t in, int64_t out) {
  AxisTerms sources(static_cast<size_t>(out));
  const auto size = static_cast<double>(in);
  for (int64_t o = 0; o < out; ++o) {
    auto& terms = sources[static_cast<size_t>(o)];
    if (t.mode == SY_RESIZE_NEAREST) {
      terms.push_back({o * in / out, 1, 0});
      continue;
    }
    const auto place = static_cast<double>(o), count = static_cast<double>(out);
    const double x = t.align_corners ? (out > 1 ? place * (size - 1) / (count - 1) : 0)
                                     : std::max(0.0, (place + 0.5) * size / count - 0.5);
    const int64_t low = std::min(static_cast<int64_t>(x), in - 1);
    const double part = low + 1 < in ? x - static_cast<double>(low) : 0;
    terms.push_back({low, 1 - part, 0});
    if (part > 0) terms.push_back({low + 1, part, 0});
  }
  return sources;
}

class Resize : public Kernel {
 public:
  Resize(const Request& request, const sy_resize_attributes& t, bool backward) : Kernel(request) {
    const sy_tensor &x = backward ? outputs[0] : inputs[0], &y = backward ? inputs[0] : outputs[0];
    for (int i = 1; i <= t.spatial_rank; ++i) {
      const AxisTerms sources = ResizeSources(t, x.dims[i], y.dims[i]);
      if (backward)
        map_.AddAxis(WindowMap::Inverted(sources, x.dims[i]), y.dims[i], 1);
      else
        map_.AddAxis(sources, x.dims[i], 1);
    }
    workspace_bytes = map_.TermBytes(device->threads);
  }

  void Run(const Arguments& a) const override {
    WindowRow row = {};
    row.columns = inputs[0].dims[inputs[0].rank - 1];
    row.from = In(a, 0);
    row.to = Out(a, 0);
    map_.ForEachRow(device->threads, inputs[0].dims[0], row, a.Workspace<WindowTerm>(), Vector().window_sum);
  }

 private:
  WindowMap map_;
};

KernelPointer PrepareResizing(const Request& r, bool backward) {
  const auto t = r.Attributes<sy_resize_attributes>();
  if (!r.HasCounts(1, 1, 1) || !r.RequireNoAccumulation() || !r.RequireFloat(r.inputs[0], "the input") ||
      !r.RequireFloat(r.outputs[0], "the result"))
    return nullptr;
  const sy_tensor &in = r.inputs[0], &out = r.outputs[0];
  if (t.mode != SY_RESIZE_NEAREST && t.mode != SY_RESIZE_LINEAR)
    return SY_REFUSE(r, "%s: mode %d, known are nearest and linear", r.op, t.mode);
  if ((t.spatial_rank != 2 && t.spatial_rank != 3) || in.rank != t.spatial_rank + 2 || out.rank != in.rank)
    return SY_REFUSE(r, "%s: spatial_rank %d with operands of rank %d and %d; 2 takes (N, H, W, C), 3 (N, D, H, W, C)",
                     r.op, t.spatial_rank, in.rank, out.rank);
  if (in.dims[0] != out.dims[0] || in.dims[in.rank - 1] != out.dims[in.rank - 1])
    return SY_REFUSE(r, "%s: the operands differ in images or channels", r.op);
  return std::make_unique<Resize>(r, t, backward);
}
KernelPointer PrepareResize(const Request& r) { return PrepareResizing(r, false); }
KernelPointer PrepareResizeBackward(const Request& r) { return PrepareResizing(r, true); }

const Registration kResize{"resize", PrepareResize, sizeof(sy_resize_attributes)};
const Registration kResizeBackward{"resize_backward", PrepareResizeBackward, sizeof(sy_resize_attributes)};

}  // namespace
}  // namespace switchyard
