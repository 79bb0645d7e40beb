// Nearest and (bi-, tri-)linear resizing as torch.nn.functional.interpolate given a size. An output is a weighted sum
// of up to eight inputs; the gradient is gathered: an input looks at all outputs that may have read it.
#include <cmath>

#include "backends/cuda/windows.cuh"

namespace switchyard {
namespace {

struct ResizeShape {
  Triple in, out;  // of x and y
  int64_t channels;
  bool nearest, align_corners;
};

// The one or two positions along an axis that output `o` reads, with their weights.
struct Sources {
  int32_t low, high;
  float low_weight, high_weight;
  __device__ __forceinline__ float WeightOf(int32_t i) const {
    return (i == low ? low_weight : 0) + (i == high ? high_weight : 0);
  }
};

__device__ __forceinline__ Sources SourcesOf(const ResizeShape& s, int32_t in, int32_t out, int32_t o) {
  if (s.nearest) {
    const auto low = static_cast<int32_t>(int64_t{o} * in / out);
    return {low, low, 1, 0};
  }
  const float x =
      s.align_corners
          ? (out > 1 ? static_cast<float>(o) * static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0)
          : fmaxf(0, (static_cast<float>(o) + 0.5f) * static_cast<float>(in) / static_cast<float>(out) - 0.5f);
  const int32_t low = Least(static_cast<int32_t>(x), in - 1);
  const float part = x - static_cast<float>(low);
  return {low, Least(low + 1, in - 1), 1 - part, part};
}

template <int N>
__global__ void ResizeKernel(ResizeShape s, int64_t elements, View x, View y) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.out, s.channels);
  const Sources d = SourcesOf(s, s.in.d, s.out.d, place.at.d), h = SourcesOf(s, s.in.h, s.out.h, place.at.h),
                w = SourcesOf(s, s.in.w, s.out.w, place.at.w);
  float sum[N] = {};
  for (int corner = 0; corner < 8; ++corner) {
    const bool i = corner & 4, j = corner & 2, l = corner & 1;
    const float weight =
        (i ? d.high_weight : d.low_weight) * (j ? h.high_weight : h.low_weight) * (l ? w.high_weight : w.low_weight);
    if (weight == 0) continue;
    float v[N];
    Load<N>(x,
            IndexOf(place.image, i ? d.high : d.low, j ? h.high : h.low, l ? w.high : w.low, place.channel, s.in,
                    s.channels),
            v);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += weight * v[k];
  }
  Store<N>(y, at, sum);
}

// Outputs along an axis that may read input i, with room for rounding; SourcesOf says which do.
struct Extent {
  int32_t first, last;
};
__device__ __forceinline__ Extent Readers(int32_t i, int32_t in, int32_t out) {
  const float scale = static_cast<float>(out) / static_cast<float>(in);
  if (in == 1) return {0, out};
  return {Largest(static_cast<int32_t>(static_cast<float>(i - 2) * scale) - 2, 0),
          Least(static_cast<int32_t>(static_cast<float>(i + 3) * scale) + 3, out)};
}

template <int N>
__global__ void ResizeBackwardKernel(ResizeShape s, int64_t elements, View dy, View dx) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.in, s.channels);
  const Extent d = Readers(place.at.d, s.in.d, s.out.d), h = Readers(place.at.h, s.in.h, s.out.h),
              w = Readers(place.at.w, s.in.w, s.out.w);
  float sum[N] = {};
  for (int32_t i = d.first; i < d.last; ++i) {
    const float weight_d = SourcesOf(s, s.in.d, s.out.d, i).WeightOf(place.at.d);
    for (int32_t j = h.first; j < h.last && weight_d != 0; ++j) {
      const float weight_h = weight_d * SourcesOf(s, s.in.h, s.out.h, j).WeightOf(place.at.h);
      for (int32_t l = w.first; l < w.last && weight_h != 0; ++l) {
        const float weight = weight_h * SourcesOf(s, s.in.w, s.out.w, l).WeightOf(place.at.w);
        if (weight == 0) continue;
        float g[N];
        Load<N>(dy, IndexOf(place.image, i, j, l, place.channel, s.out, s.channels), g);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += weight * g[k];
      }
    }
  }
  Store<N>(dx, at, sum);
}

struct ResizeBase : Kernel {
  ResizeBase(const Request& r, const sy_tensor& x, const sy_tensor& y) : Kernel(r), elements(Elements(outputs[0])) {
    const auto a = r.Attributes<sy_resize_attributes>();
    shape = {SpatialOf(x), SpatialOf(y), x.dims[x.rank - 1], a.mode == SY_RESIZE_NEAREST, a.align_corners != 0};
    packs = Packs(shape.channels);
    grid = dim3(static_cast<unsigned>(CeilDivide(elements, int64_t{kThreads} * (packs ? kPack : 1))));
  }
  ResizeShape shape;
  const int64_t elements;
  bool packs;
  dim3 grid;
};

struct Resize : ResizeBase {
  explicit Resize(const Request& r) : ResizeBase(r, r.inputs[0], r.outputs[0]) {}
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, packs, ResizeKernel, grid, dim3(kThreads), 0, context.stream, shape, elements, In(b, 0),
                     Out(b, 0));
    return SY_OK;
  }
};

struct ResizeBackward : ResizeBase {
  explicit ResizeBackward(const Request& r) : ResizeBase(r, r.outputs[0], r.inputs[0]) {}
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, packs, ResizeBackwardKernel, grid, dim3(kThreads), 0, context.stream, shape, elements,
                     In(b, 0), Out(b, 0));
    return SY_OK;
  }
};

bool CheckShapes(const Request& r) {
  const auto a = r.Attributes<sy_resize_attributes>();
  if (a.mode != SY_RESIZE_NEAREST && a.mode != SY_RESIZE_LINEAR)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: mode %d", r.op, a.mode), false;
  return r.HasCounts(1, 1, 1) && CheckImages(r, a.spatial_rank, r.inputs[0], r.outputs[0]);
}

KernelPointer PrepareResize(const Request& r) {
  if (!CheckShapes(r)) return nullptr;
  return std::make_unique<Resize>(r);
}

KernelPointer PrepareResizeBackward(const Request& r) {
  if (!CheckShapes(r)) return nullptr;
  return std::make_unique<ResizeBackward>(r);
}

const Registration kResize{"resize", PrepareResize, sizeof(sy_resize_attributes)};
const Registration kResizeBackward{"resize_backward", PrepareResizeBackward, sizeof(sy_resize_attributes)};

}  // namespace
}  // namespace switchyard
