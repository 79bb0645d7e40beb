// layer_norm and its gradient.
#include "backends/opencl/normalization.h"

#include "backends/opencl/reduction.h"

namespace switchyard {
bool ReadShape(const Request& r, const sy_tensor& x, const char* name, RowShape* shape) {
  if (!r.RequireContiguous() || !r.RequireFloat(x, name)) return false;
  if (x.rank < 1) return SY_REFUSE_OP(r, "%s must have at least one axis", name), false;
  shape->dims.assign(x.dims, x.dims + x.rank);
  shape->columns = x.dims[x.rank - 1];
  shape->rows = Elements(x) / shape->columns;
  return true;
}

bool LikeX(const Request& r, const sy_tensor& t, const RowShape& shape, const char* name) {
  return r.RequireDtype(t, r.inputs[0].dtype, name) && r.RequireDims(t, shape.dims, name);
}
bool IsChannels(const Request& r, const sy_tensor& t, const RowShape& shape, const char* name) {
  return r.RequireDtype(t, SY_F32, name) && r.RequireDims(t, {shape.columns}, name);
}
bool IsRows(const Request& r, const sy_tensor& t, const RowShape& shape, const char* name) {
  return r.RequireDtype(t, SY_F32, name) && r.RequireElements(t, shape.rows, name);
}

void SumParts(Kernel& kernel, const Operand& partial, int64_t parts, int64_t width, const Operand& y) {
  Reduction sum{SY_REDUCE_SUM, partial, SY_F32, y, SY_F32};
  sum.reduced = parts;
  sum.inner = width;
  AddReduction(kernel, sum);
}

void Separate(Kernel& kernel, const Request& r, const Operand& sums, int64_t columns) {
  for (size_t o = 1; o <= 2; ++o) {
    Reduction copy{SY_REDUCE_SUM,
                   sums.Plus(static_cast<uint64_t>(static_cast<int64_t>(o - 1) * columns) * sizeof(float)), SY_F32,
                   Out(o), SY_F32};
    copy.inner = columns;
    copy.accumulate = r.accumulate[o];
    AddReduction(kernel, copy);
  }
}

namespace {

sy_status PrepareLayerNorm(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_layer_norm_attributes>();
  if (a.column_sums) return SY_REFUSE_OP(r, "column_sums");
  const bool residual = a.residual != 0;
  const size_t count = residual ? 4 : 3, gamma = residual ? 2 : 1;
  RowShape shape;
  if (!r.HasCounts(count, count, count) || !r.RequireNoAccumulation() || !ReadShape(r, r.inputs[0], "x", &shape) ||
      !IsChannels(r, r.inputs[gamma], shape, "gamma") || !IsChannels(r, r.inputs[gamma + 1], shape, "beta") ||
      !LikeX(r, r.outputs[0], shape, "y") || !IsRows(r, r.outputs[1], shape, "mean") ||
      !IsRows(r, r.outputs[2], shape, "rstd")) {
    return SY_UNSUPPORTED;
  }
  if (residual && (!LikeX(r, r.inputs[1], shape, "residual") || !LikeX(r, r.outputs[3], shape, "sum")))
    return SY_UNSUPPORTED;
  kernel.Add("normalization", "layer_norm", Define("T", r.inputs[0]) + (residual ? " -DRESIDUAL" : ""))
      .In(0)
      .In(residual ? 1 : 0)
      .In(gamma)
      .In(gamma + 1)
      .Out(0)
      .Out(1)
      .Out(2)
      .Out(residual ? 3 : 0)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Float(a.eps)
      .Groups(RowGroups(*kernel.device(), shape.rows));
  return SY_OK;
}

sy_status PrepareLayerNormBackward(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_layer_norm_attributes>();
  if (a.column_sums) return SY_REFUSE_OP(r, "column_sums");
  const bool residual = a.residual != 0;
  const size_t count = residual ? 6 : 5;
  RowShape shape;
  if (!r.HasCounts(count, count, 3) || !ReadShape(r, r.inputs[0], "h", &shape) ||
      !IsChannels(r, r.inputs[1], shape, "gamma") || !IsRows(r, r.inputs[2], shape, "mean") ||
      !IsRows(r, r.inputs[3], shape, "rstd") || !LikeX(r, r.inputs[4], shape, "dy") ||
      !LikeX(r, r.outputs[0], shape, "dh") || !IsChannels(r, r.outputs[1], shape, "dgamma") ||
      !IsChannels(r, r.outputs[2], shape, "dbeta") || (residual && !LikeX(r, r.inputs[5], shape, "dsum"))) {
    return SY_UNSUPPORTED;
  }
  if (r.accumulate[0]) return SY_REFUSE_OP(r, "cannot accumulate into dh");
  const int64_t share = RowShare(*kernel.device(), shape.rows), parts = DivideUp(shape.rows, share);
  const Operand partial = kernel.Scratch(parts * 2 * shape.columns * DtypeBytes(SY_F32));
  const Operand sums = kernel.Scratch(2 * shape.columns * DtypeBytes(SY_F32));
  kernel.Add("normalization", "layer_norm_backward", Define("T", r.inputs[0]) + (residual ? " -DRESIDUAL" : ""))
      .In(0)
      .In(1)
      .In(2)
      .In(3)
      .In(4)
      .In(residual ? 5 : 4)
      .Out(0)
      .Array(partial)
      .Uint(shape.rows)
      .Uint(shape.columns)
      .Uint(share)
      .Groups(parts);
  SumParts(kernel, partial, parts, 2 * shape.columns, sums);
  Separate(kernel, r, sums, shape.columns);
  return SY_OK;
}

const Registration kLayerNorm{"layer_norm", PrepareLayerNorm, sizeof(sy_layer_norm_attributes)};
const Registration kLayerNormBackward{"layer_norm_backward", PrepareLayerNormBackward,
                                      sizeof(sy_layer_norm_attributes)};

}  // namespace
}  // namespace switchyard
