// Maximum and average pooling, channels last. A thread has neighbouring channels of one position. The gradient is
// gathered: every element of dx looks at the windows that cover it, so that nothing is added to by two threads; which
// element of a window is its maximum is found once, before.
#include <cmath>

#include "backends/cuda/windows.cuh"

namespace switchyard {
namespace {

struct PoolShape {
  Triple in, out, kernel, stride, before;
  int64_t channels;
  bool average, count_include_pad;
};

// The part of window `o` along one axis that lies inside the image.
struct Range {
  int32_t first, last;
};
__device__ __forceinline__ Range Inside(int32_t o, int32_t stride, int32_t before, int32_t kernel, int32_t in) {
  const int32_t start = o * stride - before;
  return {Largest(start, 0), Least(start + kernel, in)};
}

__device__ __forceinline__ int32_t NumberIn(const PoolShape& s, const Triple& window, const Triple& at) {
  const int32_t d = at.d - (window.d * s.stride.d - s.before.d), h = at.h - (window.h * s.stride.h - s.before.h);
  return (d * s.kernel.h + h) * s.kernel.w + at.w - (window.w * s.stride.w - s.before.w);
}

// Visits the elements of window (d, h, w) in row-major order: f(index into x of its first channel, its number in the
// window, elements outside of the image counted).
template <typename F>
__device__ __forceinline__ int ForWindow(const PoolShape& s, const Place& place, const Triple& o, F f) {
  const Range d = Inside(o.d, s.stride.d, s.before.d, s.kernel.d, s.in.d);
  const Range h = Inside(o.h, s.stride.h, s.before.h, s.kernel.h, s.in.h);
  const Range w = Inside(o.w, s.stride.w, s.before.w, s.kernel.w, s.in.w);
  for (int32_t i = d.first; i < d.last; ++i) {
    for (int32_t j = h.first; j < h.last; ++j) {
      for (int32_t k = w.first; k < w.last; ++k)
        f(IndexOf(place.image, i, j, k, place.channel, s.in, s.channels), NumberIn(s, o, {i, j, k}));
    }
  }
  return (d.last - d.first) * (h.last - h.first) * (w.last - w.first);
}

template <int N>
__global__ void PoolKernel(PoolShape s, int64_t elements, View x, View y) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.out, s.channels);
  float result[N];
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] = s.average ? 0 : -INFINITY;
  const int inside = ForWindow(s, place, place.at, [&](int64_t from, int32_t) {
    float v[N];
    Load<N>(x, from, v);
#pragma unroll
    for (int k = 0; k < N; ++k)
      result[k] = s.average ? result[k] + v[k] : v[k] > result[k] || v[k] != v[k] ? v[k] : result[k];
  });
  const float scale = s.average ? 1 / static_cast<float>(s.count_include_pad ? s.kernel.Count() : inside) : 1;
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] *= scale;
  Store<N>(y, at, result);
}

// Windows that cover position i: o·stride − before ≤ i < o·stride − before + kernel.
__device__ __forceinline__ Range Covering(int32_t i, int32_t stride, int32_t before, int32_t kernel, int32_t out) {
  const int32_t reach = i + before - kernel;  // windows that start here or earlier have ended
  return {reach < 0 ? 0 : reach / stride + 1, Least((i + before) / stride + 1, out)};
}

// Numbers of elements of windows, one for each channel: N neighbouring ones are moved at once.
template <int N>
struct alignas(N * sizeof(uint16_t)) Numbers {
  uint16_t of[N];
};

// The number of each window's first maximum, or of its first element that is no number, by channels.
template <int N>
__global__ void PoolMaximumKernel(PoolShape s, int64_t elements, View x, Numbers<N>* maximum) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.out, s.channels);
  float best[N];
  Numbers<N> found;
  bool any = false;
  ForWindow(s, place, place.at, [&](int64_t from, int32_t number) {
    float v[N];
    Load<N>(x, from, v);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (any && !(v[k] > best[k] || (v[k] != v[k] && best[k] == best[k]))) continue;
      best[k] = v[k];
      found.of[k] = static_cast<uint16_t>(number);
    }
    any = true;
  });
  maximum[at / N] = found;
}

// `maximum`: where the maximum takes the gradient; null for the average.
template <int N>
__global__ void PoolBackwardKernel(PoolShape s, int64_t elements, const Numbers<N>* maximum, View dy, View dx) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.in, s.channels);
  const Range d = Covering(place.at.d, s.stride.d, s.before.d, s.kernel.d, s.out.d);
  const Range h = Covering(place.at.h, s.stride.h, s.before.h, s.kernel.h, s.out.h);
  const Range w = Covering(place.at.w, s.stride.w, s.before.w, s.kernel.w, s.out.w);
  float sum[N] = {};
  for (int32_t i = d.first; i < d.last; ++i) {
    for (int32_t j = h.first; j < h.last; ++j) {
      for (int32_t l = w.first; l < w.last; ++l) {
        const int64_t window = IndexOf(place.image, i, j, l, place.channel, s.out, s.channels);
        float g[N];
        Load<N>(dy, window, g);
        if (maximum) {
          const Numbers<N> found = maximum[window / N];
          const int32_t number = NumberIn(s, {i, j, l}, place.at);
#pragma unroll
          for (int k = 0; k < N; ++k) sum[k] += found.of[k] == number ? g[k] : 0;
        } else {
          const int inside = ForWindow(s, place, {i, j, l}, [](int64_t, int32_t) {});
          const float share = 1 / static_cast<float>(s.count_include_pad ? s.kernel.Count() : inside);
#pragma unroll
          for (int k = 0; k < N; ++k) sum[k] += g[k] * share;
        }
      }
    }
  }
  Store<N>(dx, at, sum);
}

struct PoolBase : Kernel {
  PoolBase(const Request& r, const sy_tensor& x, const sy_tensor& y) : Kernel(r), elements(Elements(outputs[0])) {
    const auto a = r.Attributes<sy_pool_attributes>();
    shape = {SpatialOf(x),
             SpatialOf(y),
             TripleOf(a.kernel, a.spatial_rank, 1),
             TripleOf(a.stride, a.spatial_rank, 1),
             TripleOf(a.before, a.spatial_rank, 0),
             x.dims[x.rank - 1],
             a.average != 0,
             a.count_include_pad != 0};
    packs = Packs(shape.channels);
    grid = GridOf(elements);
  }
  dim3 GridOf(int64_t count) const {
    return dim3(static_cast<unsigned>(CeilDivide(count, int64_t{kThreads} * (packs ? kPack : 1))));
  }
  PoolShape shape;
  const int64_t elements;
  bool packs;
  dim3 grid;
};

struct Pool : PoolBase {
  explicit Pool(const Request& r) : PoolBase(r, r.inputs[0], r.outputs[0]) {}
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, packs, PoolKernel, grid, dim3(kThreads), 0, context.stream, shape, elements, In(b, 0),
                     Out(b, 0));
    return SY_OK;
  }
};

struct PoolBackward : PoolBase {
  explicit PoolBackward(const Request& r) : PoolBase(r, r.inputs[0], r.inputs[1]), windows(Elements(inputs[1])) {
    if (!shape.average) workspace_bytes = static_cast<uint64_t>(windows) * sizeof(uint16_t);
  }
  template <int N>
  sy_status RunIn(const Bound& b, const LaunchContext& context, sy_error* error) const {
    auto* const maximum = shape.average ? nullptr : b.Workspace<Numbers<N>>();
    if (maximum != nullptr)
      SY_CUDA(error, Launch(PoolMaximumKernel<N>, GridOf(windows), dim3(kThreads), 0, context.stream, shape, windows,
                            In(b, 0), maximum));
    SY_CUDA(error, Launch(PoolBackwardKernel<N>, grid, dim3(kThreads), 0, context.stream, shape, elements,
                          static_cast<const Numbers<N>*>(maximum), In(b, 1), Out(b, 0)));
    return SY_OK;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    return packs ? RunIn<kPack>(b, context, error) : RunIn<1>(b, context, error);
  }
  const int64_t windows;  // elements of dy
};

// Windows as ops.h sizes them, each with at least one element inside of the image.
bool CheckWindows(const Request& r, const sy_tensor& x, const sy_tensor& y) {
  const auto a = r.Attributes<sy_pool_attributes>();
  if (!CheckImages(r, a.spatial_rank, x, y)) return false;
  for (int i = 0; i < a.spatial_rank; ++i) {
    const int64_t room = x.dims[1 + i] + a.before[i] + a.after[i] - a.kernel[i];
    const bool valid = a.kernel[i] > 0 && a.stride[i] > 0 && a.before[i] >= 0 && a.after[i] >= 0 &&
                       a.before[i] < a.kernel[i] && a.after[i] < a.kernel[i] && room >= 0 &&
                       y.dims[1 + i] == room / a.stride[i] + 1 &&
                       x.dims[1 + i] + a.before[i] + a.after[i] <= kMostIndices;
    if (!valid) {
      return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: kernel %d, stride %d, padding %d and %d do not fit axis %d", r.op,
                     a.kernel[i], a.stride[i], a.before[i], a.after[i], 1 + i),
             false;
    }
  }
  return true;
}

KernelPointer PreparePool(const Request& r) {
  if (!r.HasCounts(1, 1, 1) || !CheckWindows(r, r.inputs[0], r.outputs[0])) return nullptr;
  return std::make_unique<Pool>(r);
}

KernelPointer PreparePoolBackward(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !CheckWindows(r, r.inputs[0], r.inputs[1]) || !r.RequireFloat(r.outputs[0], "dx") ||
      !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dx"))
    return nullptr;
  const auto a = r.Attributes<sy_pool_attributes>();
  if (!a.average && TripleOf(a.kernel, a.spatial_rank, 1).Count() > 65536)
    return SY_REFUSE(r, "%s: the maximum of more than 65536 elements", r.op);
  return std::make_unique<PoolBackward>(r);
}

const Registration kPool{"pool", PreparePool, sizeof(sy_pool_attributes)};
const Registration kPoolBackward{"pool_backward", PreparePoolBackward, sizeof(sy_pool_attributes)};

}  // namespace
}  // namespace switchyard
