// flip: the axis gathered from its end, where the sample is marked, and as it is elsewhere.
#include <numeric>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

sy_status BuildFlip(Sequence& s, Request& r) {
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  const Operand &x = r.inputs[0], &flips = r.inputs[1], &output = r.outputs[0];
  if (axis < 1 || axis >= static_cast<int32_t>(x.dims.size()))
    return SY_FAIL(r.error, SY_UNSUPPORTED, "flip: axis %d of a tensor of rank %zu", axis, x.dims.size());
  if (flips.dtype != ACL_UINT8) return Refuse(r.error, SY_UNSUPPORTED, "flip: flips must be u8");
  if (const sy_status status = r.ExpectDims("flips", flips, {x.dims[0]}); status != SY_OK) return status;
  if (const sy_status status = r.ExpectDims("y", output, x.dims); status != SY_OK) return status;
  std::vector<int32_t> from_the_end(static_cast<size_t>(x.dims[static_cast<size_t>(axis)]));
  std::iota(from_the_end.rbegin(), from_the_end.rend(), 0);
  const Operand reversed = s.Scratch(x.dtype, x.dims);
  s.Emit(s.op.IndexSelect, x, int64_t{axis}, s.Constant(from_the_end), reversed);
  Dims of_samples(x.dims.size(), 1);
  of_samples[0] = x.dims[0];
  const bool direct = output.dtype == x.dtype && r.accumulate[0] == 0;
  const Operand y = direct ? output : s.Scratch(x.dtype, x.dims);
  s.Emit(s.op.SWhere, flips.Reshaped(of_samples), reversed, x, y);
  if (!direct) s.Store(y, output, r.accumulate[0] != 0);
  return SY_OK;
}

const Registration kFlip{"flip", BuildFlip, sizeof(sy_axes_attributes)};

}  // namespace
}  // namespace switchyard
