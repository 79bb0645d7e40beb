// cross_entropy with labels or soft targets, its gradient, and the rank of the label among the classes (top-k). A team
// of threads has one row of logits.
#include "backends/cuda/team.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

// What a row is compared with: y = onehot(label)·(1 − s) + s/C, or targets·(1 − s) + s/C.
struct Target {
  View soft;  // (N, C); absent where labels are given
  const int32_t* labels;
  int32_t ignore_index;
  float smoothing;

  __device__ __forceinline__ bool Ignored(int64_t row) const {
    return !soft && (labels[row] < 0 || labels[row] == ignore_index);
  }
  template <int N>
  __device__ __forceinline__ void Row(int64_t row, int64_t first, int64_t c, float (&y)[N]) const {
    if (soft) {
      Load<N>(soft, row * c + first, y);
    } else {
      const int64_t label = labels[row];
#pragma unroll
      for (int k = 0; k < N; ++k) y[k] = label >= c ? NAN : label == first + k ? 1 : 0;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) y[k] = y[k] * (1 - smoothing) + smoothing / static_cast<float>(c);
  }
};

template <int N>
__global__ void CrossEntropyKernel(Teams teams, int64_t c, View logits, Target target, View loss, View logsumexp) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  float largest = -INFINITY, sum = 0, dot = 0;
  teams.ForRow<N>(c, [&](int64_t i) {
    float x[N];
    Load<N>(logits, row * c + i, x);
#pragma unroll
    for (int k = 0; k < N; ++k) largest = Greater()(x[k], largest);
  });
  largest = teams.Reduce(largest, Greater());
  teams.ForRow<N>(c, [&](int64_t i) {
    float x[N];
    Load<N>(logits, row * c + i, x);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += expf(x[k] - largest);
  });
  const float relative = logf(teams.Sum(sum));  // to the largest, so that large logits do not cancel
  const bool ignored = target.Ignored(row);
  teams.ForRow<N>(c, [&](int64_t i) {
    float x[N], y[N];
    Load<N>(logits, row * c + i, x);
    target.Row<N>(row, i, c, y);
#pragma unroll
    for (int k = 0; k < N; ++k) dot += y[k] != 0 ? y[k] * (x[k] - largest - relative) : 0;  // 0·∞ counts nothing
  });
  dot = teams.Sum(dot);
  if (teams.Rank() != 0) return;
  StoreOne(loss, row, ignored ? 0 : -dot);
  StoreOne(logsumexp, row, largest + relative);
}

// dlogits = dloss·(softmax(logits)·Σy − y)
template <int N>
__global__ void CrossEntropyBackwardKernel(Teams teams, int64_t c, View logits, Target target, View logsumexp,
                                           View dloss, View dlogits) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  const bool ignored = target.Ignored(row);
  float total = 0;
  teams.ForRow<N>(c, [&](int64_t i) {
    float y[N];
    target.Row<N>(row, i, c, y);
#pragma unroll
    for (int k = 0; k < N; ++k) total += y[k];
  });
  total = teams.Sum(total);
  const float lse = LoadOne(logsumexp, row), scale = LoadOne(dloss, row);
  teams.ForRow<N>(c, [&](int64_t i) {
    float x[N], y[N];
    Load<N>(logits, row * c + i, x);
    target.Row<N>(row, i, c, y);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = ignored ? 0 : scale * (expf(x[k] - lse) * total - y[k]);
    Store<N>(dlogits, row * c + i, x);
  });
}

// How many classes score higher than the label's, ties won by the lower index; not-a-number never counts for the label.
__global__ void LabelRankKernel(Teams teams, int64_t c, View logits, const int32_t* labels, int32_t* rank) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  const int64_t label = labels[row];
  const bool known = label >= 0 && label < c;
  const float own = known ? LoadOne(logits, row * c + label) : 0;
  float above = 0;  // exact up to 2²⁴ classes
  teams.ForRow<1>(c, [&](int64_t i) {
    const float x = LoadOne(logits, row * c + i);
    const bool below = x < own || (x == own && i > label);
    above += i != label && !below ? 1 : 0;
  });
  above = teams.Sum(above);
  if (teams.Rank() == 0) rank[row] = known ? static_cast<int32_t>(above) : static_cast<int32_t>(c);
}

struct Loss : Kernel {
  explicit Loss(const Request& r)
      : Kernel(r),
        attributes(r.Attributes<sy_cross_entropy_attributes>()),
        c(inputs[0].dims[1]),
        teams(inputs[0].dims[0], c) {}
  Target TargetOf(const Bound& b) const {
    return {attributes.soft_targets ? In(b, 1) : View(), b.Input<int32_t>(1), attributes.ignore_index,
            attributes.label_smoothing};
  }
  const sy_cross_entropy_attributes attributes;
  const int64_t c;
  const Teams teams;
};

struct CrossEntropy : Loss {
  using Loss::Loss;
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, Packs(c), CrossEntropyKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, c,
                     In(b, 0), TargetOf(b), Out(b, 0), Out(b, 1));
    return SY_OK;
  }
};

struct CrossEntropyBackward : Loss {
  using Loss::Loss;
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, Packs(c), CrossEntropyBackwardKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream,
                     teams, c, In(b, 0), TargetOf(b), In(b, 2), In(b, 3), Out(b, 0));
    return SY_OK;
  }
};

struct LabelRank : Loss {
  using Loss::Loss;
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_CUDA(error, Launch(LabelRankKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, c, In(b, 0),
                          b.Input<int32_t>(1), b.Output<int32_t>(0)));
    return SY_OK;
  }
};

// logits (N, C) and labels (N) or targets (N, C).
bool CheckLogits(const Request& r, bool soft_targets) {
  const sy_tensor& logits = r.inputs[0];
  if (!r.RequireFloat(logits, "logits")) return false;
  if (logits.rank != 2)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: logits of rank %d, expected 2", r.op, logits.rank), false;
  if (r.Accumulates()) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: cannot accumulate", r.op), false;
  if (soft_targets) return r.RequireFloat(r.inputs[1], "targets") && r.RequireDimsOf(r.inputs[1], logits, "targets");
  return r.RequireDtype(r.inputs[1], SY_I32, "labels") && r.RequireElements(r.inputs[1], logits.dims[0], "labels");
}

KernelPointer PrepareCrossEntropy(const Request& r) {
  if (!r.HasCounts(2, 2, 2) || !CheckLogits(r, r.Attributes<sy_cross_entropy_attributes>().soft_targets))
    return nullptr;
  for (const sy_tensor& y : r.outputs) {
    if (!r.RequireFloat(y, "loss and logsumexp") || !r.RequireElements(y, r.inputs[0].dims[0], "loss and logsumexp"))
      return nullptr;
  }
  return std::make_unique<CrossEntropy>(r);
}

KernelPointer PrepareCrossEntropyBackward(const Request& r) {
  if (!r.HasCounts(4, 4, 1) || !CheckLogits(r, r.Attributes<sy_cross_entropy_attributes>().soft_targets))
    return nullptr;
  for (size_t i = 2; i < 4; ++i) {
    if (!r.RequireFloat(r.inputs[i], "logsumexp and dloss") ||
        !r.RequireElements(r.inputs[i], r.inputs[0].dims[0], "logsumexp and dloss"))
      return nullptr;
  }
  if (!r.RequireFloat(r.outputs[0], "dlogits") || !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dlogits"))
    return nullptr;
  return std::make_unique<CrossEntropyBackward>(r);
}

KernelPointer PrepareLabelRank(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !CheckLogits(r, false) || !r.RequireDtype(r.outputs[0], SY_I32, "rank") ||
      !r.RequireElements(r.outputs[0], r.inputs[0].dims[0], "rank"))
    return nullptr;
  return std::make_unique<LabelRank>(r);
}

const Registration kCrossEntropy{"cross_entropy", PrepareCrossEntropy, sizeof(sy_cross_entropy_attributes)};
const Registration kCrossEntropyBackward{"cross_entropy_backward", PrepareCrossEntropyBackward,
                                         sizeof(sy_cross_entropy_attributes)};
const Registration kLabelRank{"label_rank", PrepareLabelRank, 0};

}  // namespace
}  // namespace switchyard
