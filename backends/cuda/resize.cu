// Nearest and (bi-, tri-)linear resizing as torch.nn.functional.interpolate given a size. An output is a weighted sum
// of up to eight inputs; the gradient is gathered: an input looks at all outputs that may have read it.
#include <cmath>

#include "backends/cuda/packed.cuh"
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
__global__ void __launch_bounds__(kThreads, 3) ResizeKernel(ResizeShape s, int64_t elements, View x, View y) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.out, s.channels);
  const Sources d = SourcesOf(s, s.in.d, s.out.d, place.at.d), h = SourcesOf(s, s.in.h, s.out.h, place.at.h),
                w = SourcesOf(s, s.in.w, s.out.w, place.at.w);
  float sum[N] = {};
  for (int i = 0; i < 2; ++i) {
    const float weight_d = i ? d.high_weight : d.low_weight;
    if (weight_d == 0) continue;
    decltype(LoadRaw<N>(x, 0)) raw[4] = {};
    float weight[4];
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
      const bool j = corner & 2, l = corner & 1;
      weight[corner] = weight_d * (j ? h.high_weight : h.low_weight) * (l ? w.high_weight : w.low_weight);
      if (weight[corner] == 0) continue;
      raw[corner] = LoadRaw<N>(x, IndexOf(place.image, i ? d.high : d.low, j ? h.high : h.low, l ? w.high : w.low,
                                          place.channel, s.in, s.channels));
    }
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
      float v[N];
      Unpack(raw[corner], x.dtype, v);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += weight[corner] * v[k];
    }
  }
  Store<N>(y, at, sum);
}

// Outputs along an axis that read input i: those from where its right neighbour is reached to where it is left behind.
struct Extent {
  int32_t first, last;
};
__device__ __forceinline__ Extent Readers(const ResizeShape& s, int32_t i, int32_t in, int32_t out) {
  if (in == 1) return {0, out};
  const float scale = static_cast<float>(out) / static_cast<float>(in);
  Extent e = {Largest(static_cast<int32_t>(static_cast<float>(i - 2) * scale) - 2, 0),
              Least(static_cast<int32_t>(static_cast<float>(i + 3) * scale) + 3, out)};  // with room for rounding
  while (e.first < e.last && SourcesOf(s, in, out, e.first).high < i) ++e.first;
  while (e.first < e.last && SourcesOf(s, in, out, e.last - 1).low > i) --e.last;
  return e;
}

// Readers along the last axis whose gradients are loaded together: all that there are where the extent doubles.
constexpr int kReadersAtOnce = 4;

template <int N>
__global__ void __launch_bounds__(kThreads, 2) ResizeBackwardKernel(ResizeShape s, int64_t elements, View dy, View dx) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (at >= elements) return;
  const Place place = PlaceOf(at, s.in, s.channels);
  const Extent d = Readers(s, place.at.d, s.in.d, s.out.d), h = Readers(s, place.at.h, s.in.h, s.out.h),
               w = Readers(s, place.at.w, s.in.w, s.out.w);
  float sum[N] = {};
  for (int32_t first = w.first; first < w.last; first += kReadersAtOnce) {
    float weight_w[kReadersAtOnce];
#pragma unroll
    for (int l = 0; l < kReadersAtOnce; ++l)
      weight_w[l] = first + l < w.last ? SourcesOf(s, s.in.w, s.out.w, first + l).WeightOf(place.at.w) : 0;
    for (int32_t i = d.first; i < d.last; ++i) {
      const float weight_d = SourcesOf(s, s.in.d, s.out.d, i).WeightOf(place.at.d);
      for (int32_t j = h.first; j < h.last && weight_d != 0; ++j) {
        const float weight_h = weight_d * SourcesOf(s, s.in.h, s.out.h, j).WeightOf(place.at.h);
        if (weight_h == 0) continue;
        const int64_t row = IndexOf(place.image, i, j, first, place.channel, s.out, s.channels);
        decltype(LoadRaw<N>(dy, 0)) raw[kReadersAtOnce] = {};
#pragma unroll
        for (int l = 0; l < kReadersAtOnce; ++l) {
          if (weight_w[l] != 0) raw[l] = LoadRaw<N>(dy, row + l * s.channels);
        }
#pragma unroll
        for (int l = 0; l < kReadersAtOnce; ++l) {
          float g[N];
          Unpack(raw[l], dy.dtype, g);
#pragma unroll
          for (int k = 0; k < N; ++k) sum[k] += weight_h * weight_w[l] * g[k];
        }
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
