// pool and pool_backward, maximum and average, of images and volumes. The gradient is gathered: every place of the
// image looks at the windows that it lies in, so that nothing is added to by two threads and each result is rounded
// once. Of a maximum, a first pass notes for every window and channel which tap it took.
#include "backends/cpu/window.h"

namespace switchyard {
namespace {

constexpr int64_t kMostTaps = 1 << 16;  // a tap is noted in 16 bits

// The windows along an axis: taps outside the image are left out, weights are those of an average.
AxisTerms PoolWindows(const sy_pool_attributes& t, int axis, int64_t in, int64_t out) {
  AxisTerms windows(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) {
    auto& terms = windows[static_cast<size_t>(o)];
    for (int64_t k = 0; k < t.kernel[axis]; ++k) {
      const int64_t at = o * t.stride[axis] - t.before[axis] + k;
      if (at >= 0 && at < in) terms.push_back({at, 0, k});
    }
    const double inside = static_cast<double>(t.count_include_pad ? t.kernel[axis] : terms.size());
    for (AxisTerm& term : terms) term.weight = 1 / inside;
  }
  return windows;
}

class Pool : public Kernel {
 public:
  explicit Pool(const Request& request, const sy_pool_attributes& t) : Kernel(request), average_(t.average) {
    for (int i = 0; i < t.spatial_rank; ++i)
      map_.AddAxis(PoolWindows(t, i, inputs[0].dims[i + 1], outputs[0].dims[i + 1]), inputs[0].dims[i + 1],
                   t.kernel[i]);
    workspace_bytes = map_.TermBytes(device->threads);
  }

  void Run(const Arguments& a) const override {
    WindowRow row = {};
    row.columns = inputs[0].dims[inputs[0].rank - 1];
    row.from = In(a, 0);
    row.to = Out(a, 0);
    map_.ForEachRow(device->threads, inputs[0].dims[0], row, a.Workspace<WindowTerm>(),
                    average_ ? Vector().window_sum : Vector().window_largest);
  }

 private:
  bool average_;
  WindowMap map_;
};

class PoolBackward : public Kernel {
 public:
  explicit PoolBackward(const Request& request, const sy_pool_attributes& t) : Kernel(request), average_(t.average) {
    const sy_tensor &x = inputs[0], &dy = inputs[1];
    for (int i = 0; i < t.spatial_rank; ++i) {
      const AxisTerms windows = PoolWindows(t, i, x.dims[i + 1], dy.dims[i + 1]);
      gradient_.AddAxis(WindowMap::Inverted(windows, x.dims[i + 1]), dy.dims[i + 1], t.kernel[i]);
      windows_.AddAxis(windows, x.dims[i + 1], t.kernel[i]);
    }
    workspace_bytes = taps_ = std::max(windows_.TermBytes(device->threads), gradient_.TermBytes(device->threads));
    if (!average_) workspace_bytes += static_cast<uint64_t>(Elements(dy)) * sizeof(uint16_t);
  }

  void Run(const Arguments& a) const override {
    auto* terms = a.Workspace<WindowTerm>();
    WindowRow row = {};
    row.columns = inputs[0].dims[inputs[0].rank - 1];
    if (!average_) {
      row.from = In(a, 0);
      row.taps = a.Workspace<uint16_t>(taps_);
      windows_.ForEachRow(device->threads, inputs[0].dims[0], row, terms, Vector().window_largest);
    }
    row.from = In(a, 1);
    row.to = Out(a, 0);
    gradient_.ForEachRow(device->threads, inputs[0].dims[0], row, terms,
                         average_ ? Vector().window_sum : Vector().window_chosen);
  }

 private:
  bool average_;
  WindowMap windows_, gradient_;
  uint64_t taps_ = 0;  // bytes into the workspace
};

bool CheckPool(const Request& r, const sy_tensor& x, const sy_tensor& y) {
  const auto t = r.Attributes<sy_pool_attributes>();
  const auto refuse = [&](const char* why, int axis) {
    SY_REFUSE(r, "%s: %s along spatial axis %d of x %s and y %s", r.op, why, axis,
              DimsText(x.dims, static_cast<size_t>(x.rank)).c_str(),
              DimsText(y.dims, static_cast<size_t>(y.rank)).c_str());
    return false;
  };
  if (!r.RequireNoAccumulation()) return false;
  for (const auto* tensors : {&r.inputs, &r.outputs})
    for (const sy_tensor& tensor : *tensors)
      if (!r.RequireFloat(tensor, "an operand")) return false;
  if ((t.spatial_rank != 2 && t.spatial_rank != 3) || x.rank != t.spatial_rank + 2 || y.rank != x.rank) {
    SY_REFUSE(r, "%s: spatial_rank %d with x of rank %d and y of rank %d; 2 takes (N, H, W, C), 3 (N, D, H, W, C)",
              r.op, t.spatial_rank, x.rank, y.rank);
    return false;
  }
  if (x.dims[0] != y.dims[0] || x.dims[x.rank - 1] != y.dims[x.rank - 1]) {
    SY_REFUSE(r, "%s: x and y differ in images or channels", r.op);
    return false;
  }
  int64_t taps = 1;
  for (int i = 0; i < t.spatial_rank; ++i) {
    if (t.kernel[i] < 1 || t.stride[i] < 1) return refuse("an empty window or no stride", i);
    if (t.before[i] < 0 || t.after[i] < 0 || t.before[i] >= t.kernel[i] || t.after[i] >= t.kernel[i])
      return refuse("padding that is negative or not smaller than the window", i);
    const int64_t room = x.dims[i + 1] + t.before[i] + t.after[i] - t.kernel[i];
    if (room < 0 || y.dims[i + 1] != room / t.stride[i] + 1) return refuse("another number of windows", i);
    taps *= t.kernel[i];
  }
  if (taps > kMostTaps) {
    SY_REFUSE(r, "%s: a window of %lld places, the most are %lld", r.op, static_cast<long long>(taps),
              static_cast<long long>(kMostTaps));
    return false;
  }
  return true;
}

KernelPointer PreparePool(const Request& r) {
  if (!r.HasCounts(1, 1, 1) || !CheckPool(r, r.inputs[0], r.outputs[0])) return nullptr;
  return std::make_unique<Pool>(r, r.Attributes<sy_pool_attributes>());
}

KernelPointer PreparePoolBackward(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !CheckPool(r, r.inputs[0], r.inputs[1]) ||
      !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dx"))
    return nullptr;
  return std::make_unique<PoolBackward>(r, r.Attributes<sy_pool_attributes>());
}

const Registration kPool{"pool", PreparePool, sizeof(sy_pool_attributes)};
const Registration kPoolBackward{"pool_backward", PreparePoolBackward, sizeof(sy_pool_attributes)};

}  // namespace
}  // namespace switchyard
