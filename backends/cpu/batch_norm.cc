// batch_norm (Ioffe and Szegedy, 2015) of the last axis, with its residual and relu, and its gradient. Rows are cut
// into parts whose number depends on the shape alone; what the parts have summed is joined in order, so that results do
// not depend on the thread count.
#include <cmath>

#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kBatchNormParts = 32;  // enough for any thread count to balance, few enough to join quickly

// x (…, C) as rows of channels, and the parts that sums are taken over.
struct BatchNormShape {
  int64_t columns, rows, part_rows, parts;

  explicit BatchNormShape(const sy_tensor& x) : columns(x.dims[x.rank - 1]), rows(Elements(x) / columns) {
    part_rows = std::max(RowGrain(columns), (rows + kBatchNormParts - 1) / kBatchNormParts);
    parts = (rows + part_rows - 1) / part_rows;
  }
  int64_t Begin(int64_t part) const { return part * part_rows; }
  int64_t End(int64_t part) const { return std::min(rows, (part + 1) * part_rows); }
};

class BatchNormKernel : public Kernel {
 protected:
  BatchNormKernel(const Request& request, int64_t vectors, int64_t vectors_per_part)
      : Kernel(request), t_(request.Attributes<sy_batch_norm_attributes>()), shape_(inputs[0]), vectors_(vectors) {
    workspace_bytes =
        static_cast<uint64_t>((vectors + vectors_per_part * shape_.parts) * shape_.columns) * sizeof(float);
  }
  // `vectors` of the channels, then those of the parts.
  float* ChannelVector(const Arguments& a, int64_t i) const { return a.Workspace<float>() + i * shape_.columns; }
  float* PartVector(const Arguments& a, int64_t i) const { return ChannelVector(a, vectors_ + i); }
  // Input i, a vector of the channels, as f32.
  float* Widened(const Arguments& a, size_t i, float* to) const {
    Vector().to_float(inputs[i].dtype, a.inputs[i], to, shape_.columns);
    return to;
  }
  template <typename Body>
  void ForRows(const Body& body) const {
    ParallelRanges(device->threads, shape_.rows, RowGrain(shape_.columns),
                   [&](int64_t begin, int64_t end, int) { body(begin, end); });
  }

  const sy_batch_norm_attributes t_;
  const BatchNormShape shape_;

 private:
  const int64_t vectors_;
};

class BatchNorm : public BatchNormKernel {
 public:
  BatchNorm(const Request& request, bool training)
      : BatchNormKernel(request, 3, training ? 2 : 0), training_(training) {
    // Of the two, training keeps x for the gradient.
    const int32_t same = t_.residual && training ? 5 : 0;
    if (inputs[static_cast<size_t>(same)].dtype == outputs[0].dtype) inplace[0] = same;
    if (training) {
      inplace[3] = 3;
      inplace[4] = 4;
    }
  }

  void Run(const Arguments& a) const override {
    const int64_t columns = shape_.columns;
    float* mean = training_ ? a.Output<float>(1) : Widened(a, 3, ChannelVector(a, 2));
    float* scale = ChannelVector(a, 0);
    if (training_) {
      SumRows(a);
      JoinParts(a);
      std::copy_n(a.Output<float>(2), columns, scale);
    } else {
      Widened(a, 4, scale);
      for (int64_t c = 0; c < columns; ++c) scale[c] = 1 / std::sqrt(scale[c] + t_.eps);
    }
    float* beta = ChannelVector(a, 1);
    Widened(a, 1, beta);
    for (int64_t c = 0; c < columns; ++c) scale[c] *= beta[c];
    Widened(a, 2, beta);
    const BatchNormRows rows = {.columns = columns,
                                .relu = t_.activation == SY_ACTIVATION_RELU,
                                .mean = mean,
                                .scale = scale,
                                .beta = beta,
                                .x = In(a, 0),
                                .residual = t_.residual ? In(a, 5) : Rows{},
                                .y = Out(a, 0)};
    ForRows([&](int64_t begin, int64_t end) { Vector().batch_norm(rows, begin, end); });
  }

 private:
  void SumRows(const Arguments& a) const {
    ParallelPieces(device->threads, shape_.parts, [&](int64_t part, int) {
      Vector().batch_norm_statistics(In(a, 0), shape_.columns, shape_.Begin(part), shape_.End(part),
                                     PartVector(a, 2 * part), PartVector(a, 2 * part + 1));
    });
  }
  // mean, rstd and the running statistics of the parts' means and sums of squares.
  void JoinParts(const Arguments& a) const {
    const double rows = static_cast<double>(shape_.rows), keep = 1 - double{t_.momentum};
    for (int64_t c = 0; c < shape_.columns; ++c) {
      double mean = 0, squares = 0, before = 0;
      for (int64_t part = 0; part < shape_.parts; ++part) {
        const double count = static_cast<double>(shape_.End(part) - shape_.Begin(part)), all = before + count;
        const double difference = PartVector(a, 2 * part)[c] - mean;
        mean += difference * count / all;
        squares += PartVector(a, 2 * part + 1)[c] + difference * difference * before * count / all;
        before = all;
      }
      const double variance = squares / rows, unbiased = shape_.rows > 1 ? squares / (rows - 1) : variance;
      a.Output<float>(1)[c] = static_cast<float>(mean);
      a.Output<float>(2)[c] = static_cast<float>(1 / std::sqrt(variance + double{t_.eps}));
      const auto next = [&](size_t i, double value) {
        a.Output<float>(i)[c] = static_cast<float>(keep * a.Input<float>(i)[c] + double{t_.momentum} * value);
      };
      next(3, mean);
      next(4, unbiased);
    }
  }

  const bool training_;
};

// With x̂ = (x − mean)·rstd: dx = rstd·gamma·(g − mean(g) − x̂·mean(g·x̂)); dgamma = Σ g·x̂; dbeta = Σ g.
class BatchNormBackward : public BatchNormKernel {
 public:
  explicit BatchNormBackward(const Request& request) : BatchNormKernel(request, 3, 2) {
    const auto same = [&](size_t o, int32_t i) {
      return inputs[static_cast<size_t>(i)].dtype == outputs[o].dtype ? i : -1;
    };
    inplace[0] = same(0, t_.residual ? 0 : 4);
    if (t_.residual) inplace[3] = same(3, 4);
  }

  void Run(const Arguments& a) const override {
    const int64_t columns = shape_.columns;
    const float rows = static_cast<float>(shape_.rows), *rstd = a.Input<float>(3);
    float *scale = ChannelVector(a, 0), *mean_g = ChannelVector(a, 1), *slope = ChannelVector(a, 2);
    const BatchNormGradientRows given = {.columns = columns,
                                         .mean = a.Input<float>(2),
                                         .scale = scale,
                                         .mean_g = mean_g,
                                         .slope = slope,
                                         .x = In(a, 0),
                                         .dy = In(a, 4),
                                         .y = t_.activation == SY_ACTIVATION_RELU ? In(a, 5) : Rows{},
                                         .dx = Out(a, 0),
                                         .dresidual = t_.residual ? Out(a, 3) : Rows{}};
    ParallelPieces(device->threads, shape_.parts, [&](int64_t part, int) {
      float* sums = PartVector(a, 2 * part);
      std::fill_n(sums, 2 * columns, 0.0f);
      Vector().batch_norm_sums(given, shape_.Begin(part), shape_.End(part), sums, sums + columns);
    });
    float* sums = PartVector(a, 0);
    for (int64_t part = 1; part < shape_.parts; ++part)
      Vector().reduce_into(SY_REDUCE_SUM, sums, PartVector(a, 2 * part), 2 * columns);
    Widened(a, 1, scale);
    for (int64_t c = 0; c < columns; ++c) {
      const float dgamma = sums[c] * rstd[c], dbeta = sums[columns + c];
      scale[c] *= rstd[c];
      mean_g[c] = dbeta / rows;
      slope[c] = dgamma * rstd[c] / rows;
      float &out = a.Output<float>(1)[c], &out_beta = a.Output<float>(2)[c];
      out = accumulate[1] ? out + dgamma : dgamma;
      out_beta = accumulate[2] ? out_beta + dbeta : dbeta;
    }
    ForRows([&](int64_t begin, int64_t end) { Vector().batch_norm_backward(given, begin, end); });
  }
};

// x (…, C), vectors of the channels at inputs [1, vectors], and what else there is of x's dims: `like`.
bool CheckBatchNorm(const Request& r, const char* const* names, std::initializer_list<size_t> like) {
  const auto t = r.Attributes<sy_batch_norm_attributes>();
  if (t.activation != SY_ACTIVATION_NONE && t.activation != SY_ACTIVATION_RELU) {
    SY_REFUSE(r, "%s: activation %d, known are none and relu", r.op, t.activation);
    return false;
  }
  const sy_tensor& x = r.inputs[0];
  if (x.rank < 1) {
    SY_REFUSE(r, "%s: x has no axis", r.op);
    return false;
  }
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const bool is_like = i == 0 || std::find(like.begin(), like.end(), i) != like.end();
    if (!r.RequireFloat(r.inputs[i], names[i]) ||
        !(is_like ? r.RequireDimsOf(r.inputs[i], x, names[i])
                  : r.RequireElements(r.inputs[i], x.dims[x.rank - 1], names[i])))
      return false;
  }
  return r.RequireFloat(r.outputs[0], "the result") && r.RequireDimsOf(r.outputs[0], x, "the result");
}

bool CheckChannelStatistic(const Request& r, const sy_tensor& statistic, const char* name) {
  const sy_tensor& x = r.inputs[0];
  return r.RequireDtype(statistic, SY_F32, name) && r.RequireElements(statistic, x.dims[x.rank - 1], name);
}

KernelPointer PrepareBatchNormForward(const Request& r, bool training) {
  const size_t count = r.Attributes<sy_batch_norm_attributes>().residual ? 6 : 5;
  const char* const names[] = {"x", "gamma", "beta", "running_mean", "running_var", "residual"};
  if (!r.HasCounts(count, count, training ? 5 : 1) || !r.RequireNoAccumulation() || !CheckBatchNorm(r, names, {5}))
    return nullptr;
  for (const size_t i : {3, 4}) {
    if (training &&
        !(CheckChannelStatistic(r, r.inputs[i], names[i]) && CheckChannelStatistic(r, r.outputs[i], names[i])))
      return nullptr;
  }
  if (training && !(CheckChannelStatistic(r, r.outputs[1], "mean") && CheckChannelStatistic(r, r.outputs[2], "rstd")))
    return nullptr;
  return std::make_unique<BatchNorm>(r, training);
}
KernelPointer PrepareBatchNorm(const Request& r) { return PrepareBatchNormForward(r, true); }
KernelPointer PrepareBatchNormInference(const Request& r) { return PrepareBatchNormForward(r, false); }

KernelPointer PrepareBatchNormBackward(const Request& r) {
  const auto t = r.Attributes<sy_batch_norm_attributes>();
  const size_t count = t.activation != SY_ACTIVATION_NONE ? 6 : 5;
  const char* const names[] = {"x", "gamma", "mean", "rstd", "dy", "y"};
  if (!r.HasCounts(count, count, t.residual ? 4 : 3) || !CheckBatchNorm(r, names, {4, 5})) return nullptr;
  if (!CheckChannelStatistic(r, r.inputs[2], "mean") || !CheckChannelStatistic(r, r.inputs[3], "rstd") ||
      !CheckChannelStatistic(r, r.outputs[1], "dgamma") || !CheckChannelStatistic(r, r.outputs[2], "dbeta"))
    return nullptr;
  if (t.residual &&
      !(r.RequireFloat(r.outputs[3], "dresidual") && r.RequireDimsOf(r.outputs[3], r.inputs[0], "dresidual")))
    return nullptr;
  if (r.accumulate[0] || (t.residual && r.accumulate[3]))
    return SY_REFUSE(r, "batch_norm_backward: dx and dresidual cannot accumulate");
  return std::make_unique<BatchNormBackward>(r);
}

const Registration kBatchNorm{"batch_norm", PrepareBatchNorm, sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormInference{"batch_norm_inference", PrepareBatchNormInference,
                                       sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormBackward{"batch_norm_backward", PrepareBatchNormBackward,
                                      sizeof(sy_batch_norm_attributes)};

}  // namespace
}  // namespace switchyard
