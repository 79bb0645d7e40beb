// layer_norm and its gradient. Rows are split over threads; dγ and dβ are summed per part of fixed size and the parts
// in order.
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

class LayerNorm : public Kernel {
 public:
  LayerNorm(const Request& request, const sy_layer_norm_attributes& attributes)
      : Kernel(request),
        attributes_(attributes),
        columns_(inputs[0].dims[inputs[0].rank - 1]),
        rows_(Elements(inputs[0]) / columns_) {
    workspace_bytes = static_cast<uint64_t>(device->threads * 3 * columns_) * sizeof(float);
    const auto same = [&](size_t o, size_t i) { return inputs[i].dtype == outputs[o].dtype; };
    inplace[0] = same(0, 0) ? 0 : -1;
    if (attributes.residual) inplace[3] = same(3, 1) ? 1 : -1;
  }

  void Run(const Arguments& a) const override {
    const size_t gamma = attributes_.residual ? 2 : 1;
    const LayerNormRows rows = {.columns = columns_,
                                .eps = attributes_.eps,
                                .x = In(a, 0),
                                .residual = attributes_.residual ? In(a, 1) : Rows{},
                                .gamma = In(a, gamma),
                                .beta = In(a, gamma + 1),
                                .y = Out(a, 0),
                                .mean = Out(a, 1),
                                .rstd = Out(a, 2),
                                .sum = attributes_.residual ? Out(a, 3) : Rows{}};
    ParallelRanges(device->threads, rows_, RowGrain(columns_), [&](int64_t begin, int64_t end, int thread) {
      Vector().layer_norm(rows, begin, end, a.Workspace<float>() + thread * 3 * columns_);
    });
  }

 private:
  sy_layer_norm_attributes attributes_;
  int64_t columns_, rows_;
};

class LayerNormBackward : public Kernel {
 public:
  LayerNormBackward(const Request& request, const sy_layer_norm_attributes& attributes)
      : Kernel(request),
        residual_(attributes.residual),
        columns_(inputs[0].dims[inputs[0].rank - 1]),
        rows_(Elements(inputs[0]) / columns_),
        part_rows_(std::max<int64_t>(RowGrain(columns_), (rows_ + kParts - 1) / kParts)),
        parts_((rows_ + part_rows_ - 1) / part_rows_) {
    workspace_bytes = static_cast<uint64_t>((device->threads * 4 + parts_ * 2) * columns_) * sizeof(float);
    for (const int32_t i : {4, 0})
      if ((i == 0 || residual_) && inputs[i].dtype == outputs[0].dtype) inplace[0] = i;
  }

  void Run(const Arguments& a) const override {
    const LayerNormGradientRows rows = {.columns = columns_,
                                        .h = In(a, 0),
                                        .gamma = In(a, 1),
                                        .mean = In(a, 2),
                                        .rstd = In(a, 3),
                                        .dy = In(a, 4),
                                        .dsum = residual_ ? In(a, 5) : Rows{},
                                        .dh = Out(a, 0)};
    float* sums = a.Workspace<float>();
    float* scratch = sums + parts_ * 2 * columns_;
    ParallelPieces(device->threads, parts_, [&](int64_t part, int thread) {
      float* dgamma = sums + part * 2 * columns_;
      std::fill(dgamma, dgamma + 2 * columns_, 0.0f);
      Vector().layer_norm_backward(rows, part * part_rows_, std::min(rows_, (part + 1) * part_rows_), dgamma,
                                   dgamma + columns_, scratch + thread * 4 * columns_);
    });
    for (int64_t part = 1; part < parts_; ++part)
      Vector().reduce_into(SY_REDUCE_SUM, sums, sums + part * 2 * columns_, 2 * columns_);
    for (size_t o : {1, 2}) {
      const float* sum = sums + static_cast<int64_t>(o - 1) * columns_;
      if (accumulate[o]) {
        Vector().reduce_into(SY_REDUCE_SUM, a.Output<float>(o), sum, columns_);
      } else {
        std::copy(sum, sum + columns_, a.Output<float>(o));
      }
    }
  }

 private:
  static constexpr int64_t kParts = 32;  // enough for any thread count to balance, few enough to add up quickly
  bool residual_;
  int64_t columns_, rows_, part_rows_, parts_;
};

KernelPointer PrepareLayerNorm(const Request& r) {
  const auto attributes = r.Attributes<sy_layer_norm_attributes>();
  if (attributes.column_sums) return SY_REFUSE(r, "%s: column_sums", r.op);
  const size_t extra = attributes.residual ? 1 : 0;
  if (!r.HasCounts(3 + extra, 3 + extra, 3 + extra)) return nullptr;
  if (r.inputs[0].rank < 1) return SY_REFUSE(r, "layer_norm: x has no axis");
  if (r.Accumulates()) return SY_REFUSE(r, "layer_norm: cannot accumulate");
  const int64_t columns = r.inputs[0].dims[r.inputs[0].rank - 1], elements = Elements(r.inputs[0]);
  for (const sy_tensor& t : r.inputs)
    if (!r.RequireFloat(t, "an input")) return nullptr;
  if (!r.RequireFloat(r.outputs[0], "y") || !r.RequireDimsOf(r.outputs[0], r.inputs[0], "y") ||
      !r.RequireElements(r.inputs[1 + extra], columns, "gamma") ||
      !r.RequireElements(r.inputs[2 + extra], columns, "beta") || !r.RequireDtype(r.outputs[1], SY_F32, "mean") ||
      !r.RequireElements(r.outputs[1], elements / columns, "mean") || !r.RequireDtype(r.outputs[2], SY_F32, "rstd") ||
      !r.RequireElements(r.outputs[2], elements / columns, "rstd"))
    return nullptr;
  if (extra && (!r.RequireDimsOf(r.inputs[1], r.inputs[0], "residual") || !r.RequireFloat(r.outputs[3], "sum") ||
                !r.RequireDimsOf(r.outputs[3], r.inputs[0], "sum")))
    return nullptr;
  return std::make_unique<LayerNorm>(r, attributes);
}

KernelPointer PrepareLayerNormBackward(const Request& r) {
  const auto attributes = r.Attributes<sy_layer_norm_attributes>();
  if (attributes.column_sums) return SY_REFUSE(r, "%s: column_sums", r.op);
  const size_t extra = attributes.residual ? 1 : 0;
  if (!r.HasCounts(5 + extra, 5 + extra, 3)) return nullptr;
  if (r.inputs[0].rank < 1) return SY_REFUSE(r, "layer_norm_backward: h has no axis");
  if (r.accumulate[0]) return SY_REFUSE(r, "layer_norm_backward: dh cannot accumulate");
  const int64_t columns = r.inputs[0].dims[r.inputs[0].rank - 1], elements = Elements(r.inputs[0]);
  for (const sy_tensor& t : r.inputs)
    if (!r.RequireFloat(t, "an input")) return nullptr;
  if (!r.RequireFloat(r.outputs[0], "dh") || !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dh") ||
      !r.RequireElements(r.inputs[1], columns, "gamma") || !r.RequireDtype(r.inputs[2], SY_F32, "mean") ||
      !r.RequireElements(r.inputs[2], elements / columns, "mean") || !r.RequireDtype(r.inputs[3], SY_F32, "rstd") ||
      !r.RequireElements(r.inputs[3], elements / columns, "rstd") || !r.RequireDimsOf(r.inputs[4], r.inputs[0], "dy") ||
      !r.RequireDtype(r.outputs[1], SY_F32, "dgamma") || !r.RequireElements(r.outputs[1], columns, "dgamma") ||
      !r.RequireDtype(r.outputs[2], SY_F32, "dbeta") || !r.RequireElements(r.outputs[2], columns, "dbeta"))
    return nullptr;
  if (extra && !r.RequireDimsOf(r.inputs[5], r.inputs[0], "dsum")) return nullptr;
  return std::make_unique<LayerNormBackward>(r, attributes);
}

const Registration kLayerNorm{"layer_norm", PrepareLayerNorm, sizeof(sy_layer_norm_attributes)};
const Registration kLayerNormBackward{"layer_norm_backward", PrepareLayerNormBackward,
                                      sizeof(sy_layer_norm_attributes)};

}  // namespace
}  // namespace switchyard
