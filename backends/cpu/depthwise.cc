// dw (C, kernel, 1) of a depthwise convolution: for every tap and channel a sum of products over the places. Rows of
// places are cut into parts whose number depends on the shapes alone; each has its sums as (taps, C), joined in order.
#include "backends/cpu/convolution.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

class DepthwiseWeights : public Kernel {
 public:
  explicit DepthwiseWeights(const Request& request)
      : Kernel(request), t_(request.Attributes<sy_convolution_attributes>()), channels_(outputs[0].dims[0]) {
    const int rank = t_.spatial_rank;
    for (int i = 0; i < rank; ++i) {  // images are volumes of depth 1
      const int axis = 3 - rank + i;
      axes_[axis] = {inputs[0].dims[i + 1], inputs[1].dims[i + 1], outputs[0].dims[i + 1],
                     t_.stride[i],          t_.dilation[i],        t_.before[i]};
    }
    taps_ = axes_[0].kernel * axes_[1].kernel * axes_[2].kernel;
    rows_ = inputs[1].dims[0] * axes_[0].out * axes_[1].out;
    parts_ = std::min(kParts, rows_);
    workspace_bytes = static_cast<uint64_t>(parts_ * taps_ * channels_) * sizeof(float);
  }

  void Run(const Arguments& a) const override {
    const int64_t sums = taps_ * channels_;
    float* partial = a.Workspace<float>();
    ParallelPieces(device->threads, parts_, [&](int64_t part, int) {
      float* own = partial + part * sums;
      std::fill_n(own, sums, 0.0f);
      for (int64_t row = rows_ * part / parts_; row < rows_ * (part + 1) / parts_; ++row) AddRow(a, row, own);
    });
    for (int64_t part = 1; part < parts_; ++part)
      Vector().reduce_into(SY_REDUCE_SUM, partial, partial + part * sums, sums);
    for (int64_t c = 0; c < channels_; ++c) WriteChannel(a, c, partial);
  }

 private:
  static constexpr int64_t kParts = 32;  // enough for any thread count to balance
  struct Axis {
    int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, before = 0;
    int64_t Begin(int64_t tap) const { return tap * dilation - before; }  // what the first place reads
  };

  // One row of places of dy, all taps.
  void AddRow(const Arguments& a, int64_t row, float* sums) const {
    const auto& [deep, high, wide] = axes_;
    const int64_t h = row % high.out, d = row / high.out % deep.out, n = row / high.out / deep.out;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      const int64_t kw = tap % wide.kernel, kh = tap / wide.kernel % high.kernel, kd = tap / wide.kernel / high.kernel;
      const int64_t z = d * deep.stride + deep.Begin(kd), y = h * high.stride + high.Begin(kh), x = wide.Begin(kw);
      if (z < 0 || z >= deep.in || y < 0 || y >= high.in) continue;
      // Places [first, last) of the row read inside the image.
      const int64_t first = x < 0 ? (-x + wide.stride - 1) / wide.stride : 0;
      const int64_t last = x < wide.in ? std::min(wide.out, (wide.in - 1 - x) / wide.stride + 1) : 0;
      if (first >= last) continue;
      const int64_t from = ((n * deep.in + z) * high.in + y) * wide.in + x + first * wide.stride;
      Vector().add_products(At(In(a, 0), from * channels_), wide.stride * channels_,
                            At(In(a, 1), (row * wide.out + first) * channels_), channels_, last - first, channels_,
                            sums + tap * channels_);
    }
  }
  static Rows At(Rows x, int64_t element) { return {x.data + element * DtypeBytes(x.dtype), x.dtype}; }

  void WriteChannel(const Arguments& a, int64_t c, const float* sums) const {
    constexpr int64_t kBlock = 256;
    float block[kBlock], old[kBlock];
    for (int64_t first = 0; first < taps_; first += kBlock) {
      const int64_t n = std::min(kBlock, taps_ - first);
      const Rows out = At(Out(a, 0), c * taps_ + first);
      for (int64_t tap = 0; tap < n; ++tap) block[tap] = sums[(first + tap) * channels_ + c];
      if (accumulate[0]) {
        Vector().to_float(out.dtype, out.data, old, n);
        Vector().reduce_into(SY_REDUCE_SUM, block, old, n);
      }
      Vector().from_float(out.dtype, block, out.data, n);
    }
  }

  const sy_convolution_attributes t_;
  const int64_t channels_;
  Axis axes_[3];
  int64_t taps_ = 1, rows_ = 1, parts_ = 1;
};

}  // namespace

KernelPointer MakeDepthwiseWeights(const Request& request) { return std::make_unique<DepthwiseWeights>(request); }

}  // namespace switchyard
