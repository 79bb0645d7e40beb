// batch_norm, on rows (R, C). What aclnnBatchNorm saves in training differs from product to product (the variance, or
// the reciprocal of the deviation), and it overwrites its running statistics; so the statistics are sums, and the
// operator and its gradient run in their inference form, whose inputs mean the same everywhere.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

Operand RowsOf(const Operand& x) { return x.Reshaped({x.count() / x.dims.back(), x.dims.back()}); }

sy_status ExpectActivation(const Request& r, int32_t activation) {
  if (activation == SY_ACTIVATION_NONE || activation == SY_ACTIVATION_RELU) return SY_OK;
  return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: expected no activation or ReLU, found activation %d", r.op.c_str(),
                 activation);
}

// y = act((x − mean)/√(variance + eps)·gamma + beta + residual), delivered; inputs 1, 2 and 5 of the request are gamma,
// beta and the residual.
void Normalize(Sequence& s, const Request& r, const Operand& x, const Operand& mean, const Operand& variance) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const Operand y = s.Destination(r, 0), rows = RowsOf(y);
  s.Emit(s.op.BatchNorm, x, s.Wide(r.inputs[1]), s.Wide(r.inputs[2]), mean, variance, false, double{a.momentum},
         double{a.eps}, rows, Operand(), Operand());
  if (a.residual) s.Add(rows, RowsOf(s.Wide(r.inputs[5])), 1, &rows);
  if (a.activation != SY_ACTIVATION_NONE) Activate(s, a.activation, rows, &rows);
  s.Deliver(r, 0, y);
}

sy_status CheckForward(const Request& r, size_t outputs) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  sy_status status = ExpectActivation(r, a.activation);
  if (status == SY_OK) status = r.Expect(a.residual ? 6 : 5, outputs);
  if (status == SY_OK) status = r.ExpectFloats();
  if (status == SY_OK) status = r.ExpectDims("y", r.outputs[0], r.inputs[0].dims);
  for (size_t i = 1; i < 5 && status == SY_OK; ++i) {
    status = r.ExpectDims("gamma, beta and statistics", r.inputs[i], {r.inputs[0].dims.back()});
    if (status == SY_OK && outputs > 1) status = r.ExpectDims("statistics", r.outputs[i], {r.inputs[0].dims.back()});
  }
  if (status == SY_OK && a.residual) status = r.ExpectDims("residual", r.inputs[5], r.inputs[0].dims);
  return status;
}

sy_status BuildBatchNorm(Sequence& s, Request& r) {
  if (const sy_status status = CheckForward(r, 5); status != SY_OK) return status;
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const Operand x = RowsOf(s.Wide(r.inputs[0]));
  const double count = static_cast<double>(x.dims[0]);
  const Operand mean = s.Destination(r, 1), rstd = s.Destination(r, 2);
  s.Scaled(s.Sum(x, {0}, false), 1 / count, &mean);
  const Operand variance = s.Scratch(ACL_FLOAT, mean.dims);
  {
    const Sequence::Scope scope(s);
    const Operand off = s.Sub(x, mean);
    s.Scaled(s.Sum(s.Mul(off, off), {0}, false), 1 / count, &variance);
  }
  s.Unary(s.op.Rsqrt, s.Plus(variance, a.eps), &rstd);
  Normalize(s, r, x, mean, variance);
  s.Deliver(r, 1, mean);
  s.Deliver(r, 2, rstd);
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  const Operand* const statistics[] = {&mean, &variance};
  for (size_t i = 3; i < 5; ++i) {
    const Operand next = s.Destination(r, i);
    s.Deliver(r, i,
              s.Add(s.Scaled(s.Wide(r.inputs[i]), 1 - double{a.momentum}), *statistics[i - 3],
                    double{a.momentum} * (i == 4 ? unbiased : 1), &next));
    if (next.SamePlaceAs(r.outputs[i])) r.inplace[i] = static_cast<int32_t>(i);
  }
  return SY_OK;
}

sy_status BuildBatchNormInference(Sequence& s, Request& r) {
  if (const sy_status status = CheckForward(r, 1); status != SY_OK) return status;
  Normalize(s, r, RowsOf(s.Wide(r.inputs[0])), s.Wide(r.inputs[3]), s.Wide(r.inputs[4]));
  return SY_OK;
}

// The operator gives dgamma, dbeta and g·rstd·gamma; what the statistics add to dx is taken off it.
sy_status BuildBatchNormBackward(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const bool activation = a.activation != SY_ACTIVATION_NONE;
  const Dims x_dims = r.inputs.empty() ? Dims{1} : r.inputs[0].dims, channels = {x_dims.back()};
  sy_status status = ExpectActivation(r, a.activation);
  if (status == SY_OK) status = r.Expect(activation ? 6 : 5, a.residual ? 4 : 3);
  if (status == SY_OK) status = r.ExpectFloats();
  for (size_t i = 1; i < r.inputs.size() && status == SY_OK; ++i) {
    status = r.ExpectDims("gamma, mean, rstd, dy and y", r.inputs[i], i < 4 ? channels : x_dims);
  }
  for (size_t o = 0; o < r.outputs.size() && status == SY_OK; ++o) {
    status = r.ExpectDims("dx, dgamma, dbeta and dresidual", r.outputs[o], o == 1 || o == 2 ? channels : x_dims);
  }
  if (status != SY_OK) return status;

  Operand g = s.Wide(r.inputs[4]);
  if (activation) {
    const Operand to = a.residual ? s.Destination(r, 3) : s.Scratch(ACL_FLOAT, x_dims);
    g = ActivateGradient(s, a.activation, g, s.Wide(r.inputs[5]), &to);
  }
  if (a.residual) s.Deliver(r, 3, g);
  const Operand x = RowsOf(s.Wide(r.inputs[0])), gamma = s.Wide(r.inputs[1]), mean = s.Wide(r.inputs[2]),
                rstd = s.Wide(r.inputs[3]);
  const Operand dx = s.Destination(r, 0), dgamma = s.Destination(r, 1), dbeta = s.Destination(r, 2);
  const Operand scaled = s.Scratch(ACL_FLOAT, x.dims);
  s.Emit(s.op.BatchNormBackward, RowsOf(g), x, gamma, mean, s.Unary(s.op.Reciprocal, s.Mul(rstd, rstd)), Operand(),
         Operand(), false, 0.0, Flags{{1, 1, 1}}, scaled, dgamma, dbeta);
  const Operand share = s.Scaled(s.Mul(rstd, gamma), 1 / static_cast<double>(x.dims[0]));
  const Operand slope = s.Mul(s.Mul(share, rstd), dgamma), level = s.Mul(share, dbeta);
  const Operand of_statistics = s.Add(s.Mul(s.Sub(x, mean), slope), level), rows = RowsOf(dx);
  s.Sub(scaled, of_statistics, &rows);
  s.Deliver(r, 0, dx);
  s.Deliver(r, 1, dgamma);
  return s.Deliver(r, 2, dbeta);
}

const Registration kBatchNorm{"batch_norm", BuildBatchNorm, sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormInference{"batch_norm_inference", BuildBatchNormInference,
                                       sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormBackward{"batch_norm_backward", BuildBatchNormBackward, sizeof(sy_batch_norm_attributes)};

}  // namespace
}  // namespace switchyard
