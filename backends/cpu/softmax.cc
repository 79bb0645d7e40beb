// softmax, cross entropy and label ranks: everything that works on one row of scores at a time.
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

// Splits the rows of input 0 over threads, each with `scratch_rows` rows of f32 scratch.
class RowKernel : public Kernel {
 public:
  RowKernel(const Request& request, int64_t scratch_rows)
      : Kernel(request),
        columns_(inputs[0].dims[inputs[0].rank - 1]),
        rows_(Elements(inputs[0]) / columns_),
        scratch_(scratch_rows * columns_) {
    workspace_bytes = static_cast<uint64_t>(device->threads * scratch_) * sizeof(float);
  }

 protected:
  template <typename Body>
  void ForRows(const Arguments& a, const Body& body) const {
    ParallelRanges(device->threads, rows_, RowGrain(columns_), [&](int64_t begin, int64_t end, int thread) {
      body(begin, end, a.Workspace<float>() + thread * scratch_);
    });
  }
  int64_t columns_, rows_, scratch_;
};

class Softmax : public RowKernel {
 public:
  explicit Softmax(const Request& request) : RowKernel(request, 3) {
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }
  void Run(const Arguments& a) const override {
    const SoftmaxRows rows = {.columns = columns_, .x = In(a, 0), .y = Out(a, 0), .dy = {}, .dx = {}};
    ForRows(a, [&](int64_t begin, int64_t end, float* scratch) { Vector().softmax(rows, begin, end, scratch); });
  }
};

class SoftmaxBackward : public RowKernel {
 public:
  explicit SoftmaxBackward(const Request& request) : RowKernel(request, 3) {
    if (inputs[1].dtype == outputs[0].dtype) inplace[0] = 1;
  }
  void Run(const Arguments& a) const override {
    const SoftmaxRows rows = {.columns = columns_, .x = {}, .y = In(a, 0), .dy = In(a, 1), .dx = Out(a, 0)};
    ForRows(a,
            [&](int64_t begin, int64_t end, float* scratch) { Vector().softmax_backward(rows, begin, end, scratch); });
  }
};

class CrossEntropy : public RowKernel {
 public:
  CrossEntropy(const Request& request, const sy_cross_entropy_attributes& attributes, bool backward)
      : RowKernel(request, 2), attributes_(attributes), backward_(backward) {
    if (backward && inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }
  void Run(const Arguments& a) const override {
    CrossEntropyRows rows = {};
    rows.columns = columns_;
    rows.smoothing = attributes_.label_smoothing;
    rows.ignore_index = attributes_.ignore_index;
    rows.logits = In(a, 0);
    if (attributes_.soft_targets) {
      rows.targets = In(a, 1);
    } else {
      rows.labels = a.Input<int32_t>(1);
    }
    if (backward_) {
      rows.logsumexp = In(a, 2);
      rows.dloss = In(a, 3);
      rows.dlogits = Out(a, 0);
    } else {
      rows.loss = Out(a, 0);
      rows.logsumexp = Out(a, 1);
    }
    const auto compute = backward_ ? Vector().cross_entropy_backward : Vector().cross_entropy;
    ForRows(a, [&](int64_t begin, int64_t end, float* scratch) { compute(rows, begin, end, scratch); });
  }

 private:
  sy_cross_entropy_attributes attributes_;
  bool backward_;
};

class LabelRank : public RowKernel {
 public:
  explicit LabelRank(const Request& request) : RowKernel(request, 1) {}
  void Run(const Arguments& a) const override {
    const auto* labels = a.Input<int32_t>(1);
    auto* ranks = a.Output<int32_t>(0);
    ForRows(a, [&](int64_t begin, int64_t end, float* row) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t label = labels[r];
        if (label < 0 || label >= columns_) {
          ranks[r] = static_cast<int32_t>(columns_);
          continue;
        }
        Vector().to_float(inputs[0].dtype, a.inputs[0] + r * columns_ * DtypeBytes(inputs[0].dtype), row, columns_);
        int32_t rank = 0;
        for (int64_t c = 0; c < columns_; ++c) {
          const bool below = row[c] < row[label] || (row[c] == row[label] && c > label);
          rank += c != label && !below;  // what is not a number is below nothing and above nothing
        }
        ranks[r] = rank;
      }
    });
  }
};

bool AllFloat(const Request& r) {
  for (const sy_tensor& t : r.inputs)
    if (!r.RequireFloat(t, "an input")) return false;
  for (const sy_tensor& t : r.outputs)
    if (!r.RequireFloat(t, "an output")) return false;
  return true;
}

bool HasRows(const Request& r) {
  if (r.Accumulates()) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: cannot accumulate", r.op), false;
  if (r.inputs[0].rank < 1) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: input 0 has no axis", r.op), false;
  return true;
}

KernelPointer PrepareLoss(const Request& r, bool backward) {
  const auto attributes = r.Attributes<sy_cross_entropy_attributes>();
  if (!r.HasCounts(backward ? 4 : 2, backward ? 4 : 2, backward ? 1 : 2) || !HasRows(r)) return nullptr;
  const int64_t rows = Elements(r.inputs[0]) / r.inputs[0].dims[r.inputs[0].rank - 1];
  if (!r.RequireFloat(r.inputs[0], "logits")) return nullptr;
  if (attributes.soft_targets
          ? !r.RequireFloat(r.inputs[1], "targets") || !r.RequireDimsOf(r.inputs[1], r.inputs[0], "targets")
          : !r.RequireDtype(r.inputs[1], SY_I32, "labels") || !r.RequireElements(r.inputs[1], rows, "labels"))
    return nullptr;
  const auto statistics = [&](const sy_tensor& t, const char* name) {
    return r.RequireDtype(t, SY_F32, name) && r.RequireElements(t, rows, name);
  };
  if (backward) {
    if (!statistics(r.inputs[2], "logsumexp") || !statistics(r.inputs[3], "dloss") ||
        !r.RequireFloat(r.outputs[0], "dlogits") || !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dlogits"))
      return nullptr;
  } else if (!statistics(r.outputs[0], "loss") || !statistics(r.outputs[1], "logsumexp")) {
    return nullptr;
  }
  return std::make_unique<CrossEntropy>(r, attributes, backward);
}

KernelPointer PrepareSoftmax(const Request& r) {
  if (!r.HasCounts(1, 1, 1) || !HasRows(r) || !AllFloat(r) || !r.RequireDimsOf(r.outputs[0], r.inputs[0], "y"))
    return nullptr;
  return std::make_unique<Softmax>(r);
}

KernelPointer PrepareSoftmaxBackward(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !HasRows(r) || !AllFloat(r) || !r.RequireDimsOf(r.inputs[1], r.inputs[0], "dy") ||
      !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dx"))
    return nullptr;
  return std::make_unique<SoftmaxBackward>(r);
}

KernelPointer PrepareCrossEntropy(const Request& r) { return PrepareLoss(r, false); }
KernelPointer PrepareCrossEntropyBackward(const Request& r) { return PrepareLoss(r, true); }

KernelPointer PrepareLabelRank(const Request& r) {
  if (!r.HasCounts(2, 2, 1) || !HasRows(r) || !r.RequireFloat(r.inputs[0], "logits") ||
      !r.RequireDtype(r.inputs[1], SY_I32, "labels") || !r.RequireDtype(r.outputs[0], SY_I32, "rank"))
    return nullptr;
  const int64_t rows = Elements(r.inputs[0]) / r.inputs[0].dims[r.inputs[0].rank - 1];
  if (!r.RequireElements(r.inputs[1], rows, "labels") || !r.RequireElements(r.outputs[0], rows, "rank")) return nullptr;
  return std::make_unique<LabelRank>(r);
}

const Registration kSoftmax{"softmax", PrepareSoftmax, 0};
const Registration kSoftmaxBackward{"softmax_backward", PrepareSoftmaxBackward, 0};
const Registration kCrossEntropy{"cross_entropy", PrepareCrossEntropy, sizeof(sy_cross_entropy_attributes)};
const Registration kCrossEntropyBackward{"cross_entropy_backward", PrepareCrossEntropyBackward,
                                         sizeof(sy_cross_entropy_attributes)};
const Registration kLabelRank{"label_rank", PrepareLabelRank, 0};

}  // namespace
}  // namespace switchyard
