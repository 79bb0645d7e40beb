// convolution and its two gradients where the library has none: each is a matrix product whose operands are gathered
// from the images on the way into shared memory ("implicit GEMM": Chetlur et al., "cuDNN", 2014), with f32 arithmetic.
//   forward  y (pixels, filters)       = x (pixels, taps · channels)        · w (taps · channels, filters)
//   data     dx (input pixels, channels) = dy (input pixels, taps · filters) · w (taps · filters, channels)
//   weights  dw (filters, taps · channels) = dy (filters, pixels)            · x (pixels, taps · channels)
#include "backends/cuda/windows.cuh"

namespace switchyard {
namespace {

constexpr int kTile = 64, kDepth = 16;  // a thread has 4 × 4 results

enum class Direction { kForward, kData, kWeights };

struct Shape {
  Triple in, out, kernel, stride, dilation, before;
  int64_t channels, filters;              // of x and of y
  int64_t group_channels, group_filters;  // that meet each other
  int64_t rows, columns, depth;           // of the product, per group
};

__device__ __forceinline__ Triple TapOf(const Shape& s, int64_t tap) {
  const auto index = static_cast<int32_t>(tap);
  return {index / (s.kernel.h * s.kernel.w), index / s.kernel.w % s.kernel.h, index % s.kernel.w};
}

// x at the place that `tap` of the window at output pixel `pixel` reads, 0 beyond the image.
__device__ __forceinline__ float ReadImage(const Shape& s, const View& x, int64_t pixel, int64_t tap, int64_t channel) {
  const Place place = PlaceOf(pixel, s.out, 1);
  const Triple k = TapOf(s, tap);
  const int32_t d = place.at.d * s.stride.d - s.before.d + k.d * s.dilation.d;
  const int32_t h = place.at.h * s.stride.h - s.before.h + k.h * s.dilation.h;
  const int32_t w = place.at.w * s.stride.w - s.before.w + k.w * s.dilation.w;
  if (d < 0 || d >= s.in.d || h < 0 || h >= s.in.h || w < 0 || w >= s.in.w) return 0;
  return LoadOne(x, IndexOf(place.image, d, h, w, channel, s.in, s.channels));
}

// The output position along an axis whose window has input `i` at tap `k`, or -1.
__device__ __forceinline__ int32_t WindowAt(int32_t i, int32_t k, int32_t stride, int32_t dilation, int32_t before,
                                            int32_t out) {
  const int32_t start = i + before - k * dilation;
  return start >= 0 && start % stride == 0 && start / stride < out ? start / stride : -1;
}

// dy at the window that has input pixel `pixel` at `tap`, 0 where there is none.
__device__ __forceinline__ float ReadGradient(const Shape& s, const View& dy, int64_t pixel, int64_t tap,
                                              int64_t filter) {
  const Place place = PlaceOf(pixel, s.in, 1);
  const Triple k = TapOf(s, tap);
  const int32_t d = WindowAt(place.at.d, k.d, s.stride.d, s.dilation.d, s.before.d, s.out.d);
  const int32_t h = WindowAt(place.at.h, k.h, s.stride.h, s.dilation.h, s.before.h, s.out.h);
  const int32_t w = WindowAt(place.at.w, k.w, s.stride.w, s.dilation.w, s.before.w, s.out.w);
  if (d < 0 || h < 0 || w < 0) return 0;
  return LoadOne(dy, IndexOf(place.image, d, h, w, filter, s.out, s.filters));
}

// Element (row, d) of the left and (d, column) of the right operand; a and b are x, w or dy as the direction has them.
template <Direction kDirection>
__device__ __forceinline__ float Left(const Shape& s, const View& a, int64_t group, int64_t row, int64_t d) {
  if (row >= s.rows || d >= s.depth) return 0;
  if constexpr (kDirection == Direction::kForward)
    return ReadImage(s, a, row, d / s.group_channels, group * s.group_channels + d % s.group_channels);
  if constexpr (kDirection == Direction::kData)
    return ReadGradient(s, a, row, d / s.group_filters, group * s.group_filters + d % s.group_filters);
  return LoadOne(a, d * s.filters + group * s.group_filters + row);
}
template <Direction kDirection>
__device__ __forceinline__ float Right(const Shape& s, const View& b, int64_t group, int64_t d, int64_t column) {
  if (column >= s.columns || d >= s.depth) return 0;
  const int64_t taps = s.kernel.Count();
  if constexpr (kDirection == Direction::kForward)
    return LoadOne(b, (group * s.group_filters + column) * taps * s.group_channels + d);
  if constexpr (kDirection == Direction::kData) {
    const int64_t filter = group * s.group_filters + d % s.group_filters;
    return LoadOne(b, (filter * taps + d / s.group_filters) * s.group_channels + column);
  }
  return ReadImage(s, b, d, column / s.group_channels, group * s.group_channels + column % s.group_channels);
}

// blockIdx.x, y: which rows and columns; blockIdx.z: the group.
template <Direction kDirection>
__global__ void __launch_bounds__(kThreads) ConvolutionKernel(Shape s, View a, View b, View bias, View out) {
  __shared__ __align__(16) float left[kDepth][kTile + 4];
  __shared__ __align__(16) float right[kDepth][kTile + 4];
  const int64_t group = blockIdx.z, first_row = blockIdx.x * static_cast<int64_t>(kTile);
  const int64_t first_column = blockIdx.y * static_cast<int64_t>(kTile);
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  float sum[4][4] = {};
  for (int64_t first = 0; first < s.depth; first += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      // Neighbouring threads read neighbouring elements of memory.
      const bool left_by_depth = kDirection != Direction::kWeights, right_by_depth = kDirection == Direction::kForward;
      const int left_depth = left_by_depth ? i % kDepth : i / kTile, row = left_by_depth ? i / kDepth : i % kTile;
      const int right_depth = right_by_depth ? i % kDepth : i / kTile, column = right_by_depth ? i / kDepth : i % kTile;
      left[left_depth][row] = Left<kDirection>(s, a, group, first_row + row, first + left_depth);
      right[right_depth][column] = Right<kDirection>(s, b, group, first + right_depth, first_column + column);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const float4 l = *reinterpret_cast<const float4*>(&left[d][4 * y]);
      const float4 r = *reinterpret_cast<const float4*>(&right[d][4 * x]);
      const float rows[4] = {l.x, l.y, l.z, l.w}, columns[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += rows[i] * columns[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = first_row + 4 * y + i, column = first_column + 4 * x + j;
      if (row >= s.rows || column >= s.columns) continue;
      if constexpr (kDirection == Direction::kForward) {
        const int64_t filter = group * s.group_filters + column;
        StoreOne(out, row * s.filters + filter, sum[i][j] + (bias ? LoadOne(bias, filter) : 0));
      } else if constexpr (kDirection == Direction::kData) {
        StoreOne(out, row * s.channels + group * s.group_channels + column, sum[i][j]);
      } else {
        StoreOne(out, (group * s.group_filters + row) * s.columns + column, sum[i][j]);
      }
    }
  }
}

template <Direction kDirection>
struct DirectConvolution : Kernel {
  DirectConvolution(const Request& r, const Shape& s, int32_t group_count) : Kernel(r), shape(s), groups(group_count) {}
  dim3 Grid() const {
    return dim3(static_cast<unsigned>(CeilDivide(shape.rows, kTile)),
                static_cast<unsigned>(CeilDivide(shape.columns, kTile)), static_cast<unsigned>(groups));
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    // The gradient of the weights has x first and dy second, the product has them the other way round.
    const bool exchanged = kDirection == Direction::kWeights;
    SY_CUDA(error, Launch(ConvolutionKernel<kDirection>, Grid(), dim3(kThreads), 0, context.stream, shape,
                          In(b, exchanged ? 1 : 0), In(b, exchanged ? 0 : 1), inputs.size() == 3 ? In(b, 2) : View(),
                          Out(b, 0)));
    return SY_OK;
  }
  const Shape shape;
  const int32_t groups;
};

template <Direction kDirection>
KernelPointer Prepare(const Request& r, const sy_tensor& x, const sy_tensor& w, const sy_tensor& y) {
  const auto a = r.Attributes<sy_convolution_attributes>();
  if (a.spatial_rank != 2 && a.spatial_rank != 3) return SY_REFUSE(r, "%s: spatial_rank %d", r.op, a.spatial_rank);
  const int rank = a.spatial_rank + 2;
  if (x.rank != rank || w.rank != rank || y.rank != rank)
    return SY_REFUSE(r, "%s: x, w and y must have rank %d", r.op, rank);
  const int64_t channels = x.dims[rank - 1], filters = y.dims[rank - 1];
  if (x.dims[0] != y.dims[0] || w.dims[0] != filters || a.groups < 1 || a.groups > 65535 || filters % a.groups != 0 ||
      w.dims[rank - 1] * a.groups != channels)
    return SY_REFUSE(r, "%s: images, channels and filters do not fit %d groups", r.op, a.groups);
  for (int i = 0; i < a.spatial_rank; ++i) {
    const int64_t reach = int64_t{a.dilation[i]} * (w.dims[1 + i] - 1) + 1;
    const int64_t room = x.dims[1 + i] + a.before[i] + a.after[i] - reach;
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.before[i] < 0 || a.after[i] < 0 || room < 0 ||
        y.dims[1 + i] != room / a.stride[i] + 1 || room + reach > kMostIndices)
      return SY_REFUSE(r, "%s: axis %d of y is not what stride, dilation and padding make of x", r.op, 1 + i);
  }
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& t : *tensors) {
      if (!r.RequireFloat(t, "an operand")) return nullptr;
    }
  }
  if (a.bias && r.inputs.size() == 3 && !r.RequireElements(r.inputs[2], filters, "bias")) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "%s: cannot accumulate", r.op);
  Shape s = {SpatialOf(x),
             SpatialOf(y),
             SpatialOf(w),
             TripleOf(a.stride, a.spatial_rank, 1),
             TripleOf(a.dilation, a.spatial_rank, 1),
             TripleOf(a.before, a.spatial_rank, 0),
             channels,
             filters,
             channels / a.groups,
             filters / a.groups,
             0,
             0,
             0};
  const int64_t pixels = y.dims[0] * s.out.Count(), taps = s.kernel.Count();
  if (kDirection == Direction::kForward) {
    s.rows = pixels, s.columns = s.group_filters, s.depth = taps * s.group_channels;
  } else if (kDirection == Direction::kData) {
    s.rows = x.dims[0] * s.in.Count(), s.columns = s.group_channels, s.depth = taps * s.group_filters;
  } else {
    s.rows = s.group_filters, s.columns = taps * s.group_channels, s.depth = pixels;
  }
  if (taps > kMostIndices || CeilDivide(s.columns, kTile) > 65535) return SY_REFUSE(r, "%s: too many channels", r.op);
  return std::make_unique<DirectConvolution<kDirection>>(r, s, a.groups);
}

KernelPointer PrepareDirectConvolution(const Request& r) {
  const size_t inputs = r.Attributes<sy_convolution_attributes>().bias ? 3 : 2;
  if (!r.HasCounts(inputs, inputs, 1)) return nullptr;
  return Prepare<Direction::kForward>(r, r.inputs[0], r.inputs[1], r.outputs[0]);
}

KernelPointer PrepareDirectConvolutionBackwardData(const Request& r) {
  if (!r.HasCounts(2, 2, 1)) return nullptr;
  return Prepare<Direction::kData>(r, r.outputs[0], r.inputs[1], r.inputs[0]);
}

// cuDNN writes the gradient of halves in halves alone. A cast behind it takes far less than this kernel does.
KernelPointer PrepareDirectConvolutionBackwardWeights(const Request& r) {
  if (!r.HasCounts(2, 2, 1)) return nullptr;
  const auto a = r.Attributes<sy_convolution_attributes>();
  const bool of_cudnn = r.device->cudnn != nullptr && (a.spatial_rank == 2 || a.groups == 1);
  if (of_cudnn && r.inputs[0].dtype != SY_F32 && r.outputs[0].dtype == SY_F32)
    return SY_REFUSE(r, "%s: sums over halves in f32, where cuDNN gives them in halves", r.op);
  return Prepare<Direction::kWeights>(r, r.inputs[0], r.outputs[0], r.inputs[1]);
}

const Registration kConvolution{"convolution", PrepareDirectConvolution, sizeof(sy_convolution_attributes)};
const Registration kConvolutionBackwardData{"convolution_backward_data", PrepareDirectConvolutionBackwardData,
                                            sizeof(sy_convolution_attributes)};
const Registration kConvolutionBackwardWeights{"convolution_backward_weights", PrepareDirectConvolutionBackwardWeights,
                                               sizeof(sy_convolution_attributes)};

}  // namespace
}  // namespace switchyard
