// scatter_add: each work-group owns rows of the table, summed in f32 in the order of the indices.
#include "backends/opencl/reduction.h"

namespace switchyard {
namespace {

sy_status PrepareScatterAdd(const Request& r, Kernel& kernel) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireContiguous() || !r.RequireDtype(r.inputs[0], SY_I32, "indices") ||
      !r.RequireFloat(r.inputs[1], "updates") || !r.RequireFloat(r.outputs[0], "table")) {
    return SY_UNSUPPORTED;
  }
  const sy_tensor& table = r.outputs[0];
  if (table.rank < 1) return SY_REFUSE_OP(r, "the table has no axis");
  const int64_t rows = table.dims[0], columns = Elements(table) / rows, count = Elements(r.inputs[0]);
  if (!r.RequireElements(r.inputs[1], count * columns, "updates")) return SY_UNSUPPORTED;
  const bool direct = table.dtype == SY_F32;  // a half table is summed beside it first
  const Operand sum = direct ? Out(0) : kernel.Scratch(rows * columns * DtypeBytes(SY_F32));
  const int64_t share = RowShare(*kernel.device(), rows);
  kernel.Add("scatter", "scatter_add", Define("T", r.inputs[1]))
      .In(0)
      .In(1)
      .Array(sum)
      .Uint(rows)
      .Uint(count)
      .Uint(columns)
      .Uint(share)
      .Uint(direct && r.accumulate[0])
      .Groups(DivideUp(rows, share));
  if (direct) return SY_OK;
  Reduction convert{SY_REDUCE_SUM, sum, SY_F32, Out(0), table.dtype};
  convert.inner = rows * columns;
  convert.accumulate = r.accumulate[0];
  AddReduction(kernel, convert);
  return SY_OK;
}

const Registration kScatterAdd{"scatter_add", PrepareScatterAdd, 0};

}  // namespace

}  // namespace switchyard
