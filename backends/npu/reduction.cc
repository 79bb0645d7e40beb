// reduce and squared_norm.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

sy_status BuildReduce(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_reduce_attributes>();
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const Operand& input = r.inputs[0];
  if (a.reduction < SY_REDUCE_SUM || a.reduction > SY_REDUCE_SUM_OF_SQUARES)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "reduce: unknown reduction %d", a.reduction);
  if (a.axes >> input.dims.size() != 0)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "reduce: axes %#x of a tensor of rank %zu", a.axes, input.dims.size());
  Dims axes, kept = input.dims, dropped;
  for (size_t i = 0; i < input.dims.size(); ++i) {
    if (a.axes >> i & 1) {
      axes.push_back(static_cast<int64_t>(i));
      kept[i] = 1;
    } else {
      dropped.push_back(input.dims[i]);
    }
  }
  if (r.outputs[0].dims != kept) {
    if (const sy_status status = r.ExpectDims("y", r.outputs[0], dropped); status != SY_OK) return status;
  }
  const Operand y = s.Destination(r, 0).Reshaped(kept);
  Operand x = s.Wide(input);
  if (a.reduction == SY_REDUCE_SUM_OF_SQUARES) x = s.Mul(x, x);
  const Operand reduced = a.scale == 1 ? y : s.Scratch(ACL_FLOAT, kept);
  if (axes.empty()) {
    s.Store(x, reduced);
  } else if (a.reduction == SY_REDUCE_MAX) {
    s.Emit(s.op.Amax, x, axes, true, reduced);
  } else if (a.reduction == SY_REDUCE_MIN) {
    s.Emit(s.op.Amin, x, axes, true, reduced);
  } else {
    s.Emit(s.op.ReduceSum, x, axes, true, ACL_FLOAT, reduced);
  }
  if (a.scale != 1) s.Scaled(reduced, a.scale, &y);
  return s.Deliver(r, 0, y.Reshaped(r.outputs[0].dims));
}

sy_status BuildSquaredNorm(Sequence& s, Request& r) {
  if (r.inputs.empty()) return Refuse(r.error, SY_UNSUPPORTED, "squared_norm: expected at least one tensor");
  if (const sy_status status = r.Expect(r.inputs.size(), 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  if (const sy_status status = r.ExpectDims("the norm", r.outputs[0].Reshaped({r.outputs[0].count()}), {1});
      status != SY_OK) {
    return status;
  }
  const Operand sums = s.Scratch(ACL_FLOAT, {static_cast<int64_t>(r.inputs.size()), 16});  // one to a line of 64 bytes
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const Sequence::Scope scope(s);
    const Operand x = s.Wide(r.inputs[i]).Reshaped({r.inputs[i].count()});
    const Operand sum = sums.Part(0, static_cast<int64_t>(i), 1).Part(1, 0, 1);
    s.Emit(s.op.InplaceCopy, sum, s.Sum(s.Mul(x, x), {0}, true));
  }
  const Operand total = s.Sum(sums.Part(1, 0, 1), {0, 1}, true);
  return s.Deliver(r, 0, total.Reshaped(r.outputs[0].dims));
}

const Registration kReduce{"reduce", BuildReduce, sizeof(sy_reduce_attributes)};
const Registration kSquaredNorm{"squared_norm", BuildSquaredNorm, 0};

}  // namespace

}  // namespace switchyard
