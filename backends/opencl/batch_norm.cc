// batch_norm over all axes but the last, with the activation and the residual that the graph fuses into it.
#include "backends/opencl/normalization.h"
#include "backends/opencl/reduction.h"

namespace switchyard {
namespace {

constexpr int64_t kRectifies = 1, kAdds = 2, kInference = 4;  // RECTIFIES and so on of batch_norm.cl

// Reads what the three ops have in common: x, and which fused fields are asked for.
bool ReadFused(const Request& r, const sy_batch_norm_attributes& a, RowShape* shape, int64_t* fused) {
  if (a.activation != SY_ACTIVATION_NONE && a.activation != SY_ACTIVATION_RELU)
    return SY_REFUSE_OP(r, "expected no activation or ReLU, found activation %d", a.activation), false;
  if (!ReadShape(r, r.inputs[0], "x", shape)) return false;
  *fused = (a.activation == SY_ACTIVATION_RELU ? kRectifies : 0) + (a.residual ? kAdds : 0);
  return true;
}

sy_status PrepareBatchNorm(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const size_t count = a.residual ? 6 : 5;
  RowShape shape;
  int64_t fused;
  if (!r.HasCounts(count, count, 5) || !r.RequireNoAccumulation() || !ReadFused(r, a, &shape, &fused))
    return SY_UNSUPPORTED;
  for (size_t i = 1; i < 5; ++i) {
    if (!IsChannels(r, r.inputs[i], shape, "gamma, beta and statistics") ||
        !IsChannels(r, r.outputs[i], shape, "statistics")) {
      return SY_UNSUPPORTED;
    }
  }
  if (!LikeX(r, r.outputs[0], shape, "y") || (a.residual && !LikeX(r, r.inputs[5], shape, "residual")))
    return SY_UNSUPPORTED;
  kernel.inplace[3] = 3;
  kernel.inplace[4] = 4;
  const sy_device& device = *kernel.device();
  const int64_t share = RowShare(device, shape.rows), parts = DivideUp(shape.rows, share);
  const Operand partial = kernel.Scratch(parts * shape.columns * DtypeBytes(SY_F32));
  const Operand squares = kernel.Scratch(shape.columns * DtypeBytes(SY_F32));
  Reduction mean{SY_REDUCE_SUM, In(0), r.inputs[0].dtype, Out(1), SY_F32};
  mean.reduced = shape.rows;
  mean.inner = shape.columns;
  mean.scale = 1.0 / static_cast<double>(shape.rows);
  AddReduction(kernel, mean);
  kernel.Add("batch_norm", "squares_about_mean", Define("T", r.inputs[0]))
      .In(0)
      .Out(1)
      .Array(partial)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Uint(share)
      .Groups(parts);
  SumParts(kernel, partial, parts, shape.columns, squares);
  kernel.Add("batch_norm", "batch_statistics", Define("T", r.inputs[0]))
      .Array(squares)
      .Out(1)
      .In(3)
      .In(4)
      .Out(2)
      .Out(3)
      .Out(4)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Float(a.eps)
      .Float(a.momentum)
      .Groups(1);
  kernel.Add("batch_norm", "batch_norm", Define("T", r.inputs[0]))
      .In(0)
      .In(1)
      .In(2)
      .Out(1)
      .Out(2)
      .In(a.residual ? 5 : 0)
      .Out(0)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Float(a.eps)
      .Uint(fused)
      .Groups(RowGroups(device, shape.rows));
  return SY_OK;
}

sy_status PrepareBatchNormInference(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const size_t count = a.residual ? 6 : 5;
  RowShape shape;
  int64_t fused;
  if (!r.HasCounts(count, count, 1) || !r.RequireNoAccumulation() || !ReadFused(r, a, &shape, &fused))
    return SY_UNSUPPORTED;
  for (size_t i = 1; i < 5; ++i) {
    if (!IsChannels(r, r.inputs[i], shape, "gamma, beta and statistics")) return SY_UNSUPPORTED;
  }
  if (!LikeX(r, r.outputs[0], shape, "y") || (a.residual && !LikeX(r, r.inputs[5], shape, "residual")))
    return SY_UNSUPPORTED;
  kernel.inplace[0] = 0;
  Launch& launch = kernel.Add("batch_norm", "batch_norm", Define("T", r.inputs[0]));
  for (size_t i = 0; i < 5; ++i) launch.In(i);
  launch.In(a.residual ? 5 : 0)
      .Out(0)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Float(a.eps)
      .Uint(fused + kInference)
      .Groups(RowGroups(*kernel.device(), shape.rows));
  return SY_OK;
}

sy_status PrepareBatchNormBackward(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const bool activation = a.activation != SY_ACTIVATION_NONE;
  const size_t count = activation ? 6 : 5;
  RowShape shape;
  int64_t fused;
  if (!r.HasCounts(count, count, a.residual ? 4 : 3) || !ReadFused(r, a, &shape, &fused) ||
      !IsChannels(r, r.inputs[1], shape, "gamma") || !IsChannels(r, r.inputs[2], shape, "mean") ||
      !IsChannels(r, r.inputs[3], shape, "rstd") || !LikeX(r, r.inputs[4], shape, "dy") ||
      !LikeX(r, r.outputs[0], shape, "dx") || !IsChannels(r, r.outputs[1], shape, "dgamma") ||
      !IsChannels(r, r.outputs[2], shape, "dbeta") || (activation && !LikeX(r, r.inputs[5], shape, "y")) ||
      (a.residual && !LikeX(r, r.outputs[3], shape, "dresidual"))) {
    return SY_UNSUPPORTED;
  }
  if (r.accumulate[0] || (a.residual && r.accumulate[3]))
    return SY_REFUSE_OP(r, "cannot accumulate into dx or dresidual");
  const sy_device& device = *kernel.device();
  const int64_t share = RowShare(device, shape.rows), parts = DivideUp(shape.rows, share);
  const Operand partial = kernel.Scratch(parts * 2 * shape.columns * DtypeBytes(SY_F32));
  const Operand sums = kernel.Scratch(2 * shape.columns * DtypeBytes(SY_F32));
  kernel.Add("batch_norm", "batch_norm_sums", Define("T", r.inputs[0]))
      .In(0)
      .In(2)
      .In(3)
      .In(4)
      .In(activation ? 5 : 4)
      .Array(partial)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Uint(share)
      .Uint(fused)
      .Groups(parts);
  SumParts(kernel, partial, parts, 2 * shape.columns, sums);
  kernel.Add("batch_norm", "batch_norm_backward", Define("T", r.inputs[0]))
      .In(0)
      .In(1)
      .In(2)
      .In(3)
      .In(4)
      .In(activation ? 5 : 4)
      .Array(sums)
      .Out(0)
      .Out(a.residual ? 3 : 0)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Uint(fused)
      .Groups(RowGroups(device, shape.rows));
  Separate(kernel, r, sums, shape.columns);
  return SY_OK;
}

const Registration kBatchNorm{"batch_norm", PrepareBatchNorm, sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormInference{"batch_norm_inference", PrepareBatchNormInference,
                                       sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormBackward{"batch_norm_backward", PrepareBatchNormBackward,
                                      sizeof(sy_batch_norm_attributes)};

}  // namespace
}  // namespace switchyard
