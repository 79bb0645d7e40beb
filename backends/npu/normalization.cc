// layer_norm and its gradient over the last axis, softmax and its gradient: one operator each, on rows (R, C).
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

Operand Rows(const Operand& x) { return x.Reshaped({x.count() / x.dims.back(), x.dims.back()}); }
Operand Column(const Operand& x) { return x.Reshaped({x.count(), 1}); }

sy_status ExpectAll(const Request& r, std::initializer_list<std::pair<const Operand*, Dims>> expected) {
  for (const auto& [operand, dims] : expected) {
    if (const sy_status status = r.ExpectDims("an operand", *operand, dims); status != SY_OK) return status;
  }
  return SY_OK;
}

Dims WithoutLast(const Dims& dims) { return Dims(dims.begin(), dims.end() - 1); }

sy_status BuildLayerNorm(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_layer_norm_attributes>();
  if (a.column_sums) return SY_FAIL(r.error, SY_UNSUPPORTED, "layer_norm: column_sums");
  const size_t count = a.residual ? 4 : 3;
  if (const sy_status status = r.Expect(count, count); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const Operand &gamma = r.inputs[count - 2], &beta = r.inputs[count - 1];
  const Dims x = r.inputs[0].dims, channels = {x.back()}, rows = WithoutLast(x);
  sy_status status = ExpectAll(
      r, {{&gamma, channels}, {&beta, channels}, {&r.outputs[0], x}, {&r.outputs[1], rows}, {&r.outputs[2], rows}});
  if (status == SY_OK && a.residual) status = ExpectAll(r, {{&r.inputs[1], x}, {&r.outputs[3], x}});
  if (status != SY_OK) return status;

  const Operand y = s.Destination(r, 0), mean = s.Destination(r, 1), rstd = s.Destination(r, 2);
  Operand h = s.Wide(r.inputs[0]);
  if (a.residual) {
    const Operand sum = s.Destination(r, 3);
    h = s.Add(h, s.Wide(r.inputs[1]), 1, &sum);
    s.Deliver(r, 3, h);
    if (r.outputs[3].dtype != ACL_FLOAT) {  // as it is kept, so that the norm of the kept sum gives the same bits
      Operand kept = r.outputs[3];
      if (r.accumulate[3]) s.Store(sum, kept = s.Scratch(kept.dtype, x));
      h = s.Wide(kept);
    }
  }
  s.Emit(s.op.LayerNorm, Rows(h), channels, s.Wide(gamma), s.Wide(beta), double{a.eps}, Rows(y), Column(mean),
         Column(rstd));
  s.Deliver(r, 0, y);
  s.Deliver(r, 1, mean);
  return s.Deliver(r, 2, rstd);
}

sy_status BuildLayerNormBackward(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_layer_norm_attributes>();
  if (a.column_sums) return SY_FAIL(r.error, SY_UNSUPPORTED, "layer_norm_backward: column_sums");
  if (const sy_status status = r.Expect(a.residual ? 6 : 5, 3); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const Dims x = r.inputs[0].dims, channels = {x.back()}, rows = WithoutLast(x);
  sy_status status = ExpectAll(r, {{&r.inputs[1], channels},
                                   {&r.inputs[2], rows},
                                   {&r.inputs[3], rows},
                                   {&r.inputs[4], x},
                                   {&r.outputs[0], x},
                                   {&r.outputs[1], channels},
                                   {&r.outputs[2], channels}});
  if (status == SY_OK && a.residual) status = ExpectAll(r, {{&r.inputs[5], x}});
  if (status != SY_OK) return status;

  const Operand dh = s.Destination(r, 0), dgamma = s.Destination(r, 1), dbeta = s.Destination(r, 2);
  const Operand own = a.residual ? s.Scratch(ACL_FLOAT, x) : dh;  // the gradient without dsum
  s.Emit(s.op.LayerNormBackward, Rows(s.Wide(r.inputs[4])), Rows(s.Wide(r.inputs[0])), channels,
         Column(s.Wide(r.inputs[2])), Column(s.Wide(r.inputs[3])), s.Wide(r.inputs[1]), Operand(), Flags{{1, 1, 1}},
         Rows(own), dgamma, dbeta);
  if (a.residual) s.Add(own, s.Wide(r.inputs[5]), 1, &dh);
  s.Deliver(r, 0, dh);
  s.Deliver(r, 1, dgamma);
  return s.Deliver(r, 2, dbeta);
}

sy_status BuildSoftmax(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  if (const sy_status status = r.ExpectDims("y", r.outputs[0], r.inputs[0].dims); status != SY_OK) return status;
  const Operand y = s.Destination(r, 0);
  s.Emit(s.op.Softmax, Rows(s.Wide(r.inputs[0])), int64_t{1}, Rows(y));
  return s.Deliver(r, 0, y);
}

sy_status BuildSoftmaxBackward(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const Dims dims = r.inputs[0].dims;
  if (const sy_status status = ExpectAll(r, {{&r.inputs[1], dims}, {&r.outputs[0], dims}}); status != SY_OK)
    return status;
  const Operand dx = s.Destination(r, 0);
  s.Emit(s.op.SoftmaxBackward, Rows(s.Wide(r.inputs[1])), Rows(s.Wide(r.inputs[0])), int64_t{1}, Rows(dx));
  return s.Deliver(r, 0, dx);
}

const Registration kLayerNorm{"layer_norm", BuildLayerNorm, sizeof(sy_layer_norm_attributes)};
const Registration kLayerNormBackward{"layer_norm_backward", BuildLayerNormBackward, sizeof(sy_layer_norm_attributes)};
const Registration kSoftmax{"softmax", BuildSoftmax, 0};
const Registration kSoftmaxBackward{"softmax_backward", BuildSoftmaxBackward, 0};

}  // namespace
}  // namespace switchyard
