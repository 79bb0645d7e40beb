// softmax, cross_entropy and label_rank: rows of the last axis.
#include "backends/opencl/kernel.h"

namespace switchyard {
namespace {

struct Rows {
  int64_t rows, columns;
};

bool SplitRows(const Request& r, const sy_tensor& x, Rows* rows) {
  if (x.rank < 1) return SY_REFUSE_OP(r, "expected at least one axis"), false;
  rows->columns = x.dims[x.rank - 1];
  rows->rows = Elements(x) / rows->columns;
  return true;
}

// Same extents and dtype as x.
bool Like(const Request& r, const sy_tensor& t, const sy_tensor& x, const char* name) {
  return r.RequireDtype(t, x.dtype, name) && r.RequireDims(t, {x.dims, x.dims + x.rank}, name);
}

// logits, labels or targets: the options and sizes of loss.cl.
bool CheckLogits(const Request& r, bool soft, Rows* rows, std::string* options) {
  const sy_tensor& logits = r.inputs[0];
  if (!r.RequireContiguous() || !r.RequireFloat(logits, "logits")) return false;
  if (logits.rank != 2) return SY_REFUSE_OP(r, "logits must have rank 2"), false;
  SplitRows(r, logits, rows);
  *options = Define("T", logits);
  if (!soft) return r.RequireDtype(r.inputs[1], SY_I32, "labels") && r.RequireDims(r.inputs[1], {rows->rows}, "labels");
  *options += Define("SOFT", int64_t{1});
  return Like(r, r.inputs[1], logits, "targets");
}

bool RowResult(const Request& r, const sy_tensor& t, const Rows& rows, const char* name) {
  return r.RequireDtype(t, SY_F32, name) && r.RequireDims(t, {rows.rows}, name);
}

sy_status PrepareSoftmax(const Request& r, Kernel& kernel) {
  Rows size;
  if (!r.HasCounts(1, 1, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation() ||
      !r.RequireFloat(r.inputs[0], "x") || !SplitRows(r, r.inputs[0], &size) ||
      !Like(r, r.outputs[0], r.inputs[0], "y")) {
    return SY_UNSUPPORTED;
  }
  kernel.inplace[0] = 0;
  kernel.Add("softmax", "softmax", Define("T", r.inputs[0]))
      .In(0)
      .Out(0)
      .Uint(size.rows)
      .Uint(size.columns)
      .Groups(RowGroups(*kernel.device(), size.rows));
  return SY_OK;
}

sy_status PrepareSoftmaxBackward(const Request& r, Kernel& kernel) {
  Rows size;
  if (!r.HasCounts(2, 2, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation() ||
      !r.RequireFloat(r.inputs[0], "y") || !SplitRows(r, r.inputs[0], &size) ||
      !Like(r, r.inputs[1], r.inputs[0], "dy") || !Like(r, r.outputs[0], r.inputs[0], "dx")) {
    return SY_UNSUPPORTED;
  }
  kernel.inplace[0] = 1;
  kernel.Add("softmax", "softmax_backward", Define("T", r.inputs[0]))
      .In(0)
      .In(1)
      .Out(0)
      .Uint(size.rows)
      .Uint(size.columns)
      .Groups(RowGroups(*kernel.device(), size.rows));
  return SY_OK;
}

sy_status PrepareCrossEntropy(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_cross_entropy_attributes>();
  Rows size;
  std::string options;
  if (!r.HasCounts(2, 2, 2) || !r.RequireNoAccumulation() || !CheckLogits(r, a.soft_targets, &size, &options) ||
      !RowResult(r, r.outputs[0], size, "loss") || !RowResult(r, r.outputs[1], size, "logsumexp")) {
    return SY_UNSUPPORTED;
  }
  kernel.Add("loss", "cross_entropy", options)
      .In(0)
      .In(1)
      .Out(0)
      .Out(1)
      .Uint(size.rows)
      .Uint(size.columns)
      .Float(a.label_smoothing)
      .Int(a.ignore_index)
      .Groups(RowGroups(*kernel.device(), size.rows));
  return SY_OK;
}

sy_status PrepareCrossEntropyBackward(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_cross_entropy_attributes>();
  Rows size;
  std::string options;
  if (!r.HasCounts(4, 4, 1) || !r.RequireNoAccumulation() || !CheckLogits(r, a.soft_targets, &size, &options) ||
      !RowResult(r, r.inputs[2], size, "logsumexp") || !RowResult(r, r.inputs[3], size, "dloss") ||
      !Like(r, r.outputs[0], r.inputs[0], "dlogits")) {
    return SY_UNSUPPORTED;
  }
  kernel.Add("loss", "cross_entropy_backward", options)
      .In(0)
      .In(1)
      .In(2)
      .In(3)
      .Out(0)
      .Uint(size.rows)
      .Uint(size.columns)
      .Float(a.label_smoothing)
      .Int(a.ignore_index)
      .Groups(RowGroups(*kernel.device(), size.rows));
  return SY_OK;
}

sy_status PrepareLabelRank(const Request& r, Kernel& kernel) {
  Rows size;
  std::string options;
  if (!r.HasCounts(2, 2, 1) || !r.RequireNoAccumulation() || !CheckLogits(r, false, &size, &options) ||
      !r.RequireDtype(r.outputs[0], SY_I32, "rank") || !r.RequireDims(r.outputs[0], {size.rows}, "rank")) {
    return SY_UNSUPPORTED;
  }
  kernel.Add("loss", "label_rank", options)
      .In(0)
      .In(1)
      .Out(0)
      .Uint(size.rows)
      .Uint(size.columns)
      .Groups(RowGroups(*kernel.device(), size.rows));
  return SY_OK;
}

const Registration kSoftmax{"softmax", PrepareSoftmax, 0};
const Registration kSoftmaxBackward{"softmax_backward", PrepareSoftmaxBackward, 0};
const Registration kCrossEntropy{"cross_entropy", PrepareCrossEntropy, sizeof(sy_cross_entropy_attributes)};
const Registration kCrossEntropyBackward{"cross_entropy_backward", PrepareCrossEntropyBackward,
                                         sizeof(sy_cross_entropy_attributes)};
const Registration kLabelRank{"label_rank", PrepareLabelRank, 0};

}  // namespace
}  // namespace switchyard
