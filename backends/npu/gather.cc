// gather and scatter_add: rows of a table by clamped indices.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

Dims RowsOf(const Operand& indices, const Dims& table) {
  Dims dims = indices.dims;
  dims.insert(dims.end(), table.begin() + 1, table.end());
  return dims;
}

// i32 (I), each inside 0 … rows − 1.
Operand Clamped(Sequence& s, const Operand& indices, int64_t rows) {
  const Operand clamped = s.Scratch(ACL_INT32, {indices.count()});
  s.Emit(s.op.Clamp, indices.Reshaped({indices.count()}), Scalar{0, ACL_INT32},
         Scalar{static_cast<double>(rows) - 1, ACL_INT32}, clamped);
  return clamped;
}

sy_status BuildGather(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  const Operand &table = r.inputs[0], &indices = r.inputs[1], &output = r.outputs[0];
  if (indices.dtype != ACL_INT32) return Refuse(r.error, SY_UNSUPPORTED, "gather: indices must be i32");
  if (const sy_status status = r.ExpectDims("y", output, RowsOf(indices, table.dims)); status != SY_OK) return status;
  const int64_t rows = table.dims[0], width = table.count() / rows, picked = indices.count();
  const bool direct = output.dtype == table.dtype && r.accumulate[0] == 0;
  const Operand y = direct ? output : s.Scratch(table.dtype, output.dims);
  s.Emit(s.op.IndexSelect, table.Reshaped({rows, width}), int64_t{0}, Clamped(s, indices, rows),
         y.Reshaped({picked, width}));
  if (!direct) s.Store(y, output, r.accumulate[0] != 0);
  return SY_OK;
}

sy_status BuildScatterAdd(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats({0}); status != SY_OK) return status;
  const Operand &indices = r.inputs[0], &updates = r.inputs[1];
  const Dims table = r.outputs[0].dims;
  if (const sy_status status = r.ExpectDims("updates", updates, RowsOf(indices, table)); status != SY_OK) return status;
  const int64_t rows = table[0], width = Count(table) / rows, picked = indices.count();
  const Operand result = s.Destination(r, 0), zeros = s.Scratch(ACL_FLOAT, {rows, width});
  s.Emit(s.op.InplaceFillScalar, zeros, Scalar{0});
  s.Emit(s.op.IndexAdd, zeros, int64_t{0}, Clamped(s, indices, rows), s.Wide(updates).Reshaped({picked, width}),
         Scalar{1}, result.Reshaped({rows, width}));
  return s.Deliver(r, 0, result);
}

const Registration kGather{"gather", BuildGather, 0};
const Registration kScatterAdd{"scatter_add", BuildScatterAdd, 0};

}  // namespace
}  // namespace switchyard
