// transpose, slice, pad, roll and concat: copies between strided views. Any dtype, moved bit for bit where both sides
// agree.
#include <algorithm>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

sy_status BuildTranspose(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_axes_attributes>();
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  const Operand& x = r.inputs[0];
  std::vector<int> axes(a.values, a.values + x.dims.size());
  uint32_t seen = 0;
  for (const int axis : axes) {
    if (axis < 0 || axis >= static_cast<int>(axes.size()) || (seen >> axis & 1))
      return Refuse(r.error, SY_UNSUPPORTED, "transpose: axes must be a permutation");
    seen |= 1u << axis;
  }
  const Operand view = x.Permuted(axes);
  if (const sy_status status = r.ExpectDims("y", r.outputs[0], view.dims); status != SY_OK) return status;
  s.Store(view, r.outputs[0], r.accumulate[0] != 0);
  return SY_OK;
}

sy_status BuildSlice(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_slice_attributes>();
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  Operand view = r.inputs[0];
  const Dims& y = r.outputs[0].dims;
  if (y.size() != view.dims.size()) return Refuse(r.error, SY_UNSUPPORTED, "slice: x and y must have one rank");
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t extent = view.dims[i], step = a.step[i];
    if (step < 1 && y[i] > 1)
      return SY_FAIL(r.error, SY_UNSUPPORTED, "slice: step %lld; a view goes forwards", static_cast<long long>(step));
    if (a.start[i] < 0 || a.start[i] >= extent || (y[i] - 1) > (extent - 1 - a.start[i]) / std::max<int64_t>(step, 1)) {
      return Refuse(
          r.error, SY_UNSUPPORTED,
          Text("slice: axis ", i, " takes ", y[i], " elements from ", a.start[i], " by ", step, " of ", extent));
    }
    view = view.Part(i, a.start[i], y[i], step);
  }
  s.Store(view, r.outputs[0], r.accumulate[0] != 0);
  return SY_OK;
}

sy_status BuildPad(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_pad_attributes>();
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  const Operand &x = r.inputs[0], &output = r.outputs[0];
  Dims expected = x.dims;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (a.before[i] < 0 || a.after[i] < 0 || a.before[i] > INT32_MAX || a.after[i] > INT32_MAX)
      return Refuse(r.error, SY_UNSUPPORTED, "pad: before and after must be 0 … 2³¹ − 1");
    expected[i] += a.before[i] + a.after[i];
  }
  if (const sy_status status = r.ExpectDims("y", output, expected); status != SY_OK) return status;
  const Operand y = r.accumulate[0] ? s.Scratch(output.dtype, output.dims) : output;
  s.Emit(s.op.InplaceFillScalar, y, Scalar{a.value});
  Operand middle = y;
  for (size_t i = 0; i < expected.size(); ++i) middle = middle.Part(i, a.before[i], x.dims[i]);
  s.Store(x, middle);
  if (r.accumulate[0]) s.Store(y, output, true);
  return SY_OK;
}

// Axis by axis: the end of the axis comes to its front, the rest behind it.
sy_status BuildRoll(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_axes_attributes>();
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  const Operand& output = r.outputs[0];
  if (const sy_status status = r.ExpectDims("y", output, r.inputs[0].dims); status != SY_OK) return status;
  Operand x = r.inputs[0];
  for (size_t i = 0; i < x.dims.size(); ++i) {
    const int64_t n = x.dims[i], shift = (a.values[i] % n + n) % n;
    if (shift == 0) continue;
    const Operand rolled = s.Scratch(x.dtype, x.dims);
    s.Emit(s.op.InplaceCopy, rolled.Part(i, 0, shift), x.Part(i, n - shift, shift));
    s.Emit(s.op.InplaceCopy, rolled.Part(i, shift, n - shift), x.Part(i, 0, n - shift));
    x = rolled;
  }
  s.Store(x, output, r.accumulate[0] != 0);
  return SY_OK;
}

sy_status BuildConcat(Sequence& s, Request& r) {
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (r.inputs.empty()) return Refuse(r.error, SY_UNSUPPORTED, "concat: expected at least one tensor");
  if (const sy_status status = r.Expect(r.inputs.size(), 1); status != SY_OK) return status;
  Dims expected = r.inputs[0].dims;
  if (axis < 0 || axis >= static_cast<int32_t>(expected.size()))
    return SY_FAIL(r.error, SY_UNSUPPORTED, "concat: axis %d of a tensor of rank %zu", axis, expected.size());
  const auto along = static_cast<size_t>(axis);
  expected[along] = 0;
  for (const Operand& x : r.inputs) {
    Dims wanted = r.inputs[0].dims;
    if (x.dims.size() == wanted.size()) wanted[along] = x.dims[along];
    if (const sy_status status = r.ExpectDims("every input", x, wanted); status != SY_OK) return status;
    expected[along] += x.dims[along];
  }
  if (const sy_status status = r.ExpectDims("y", r.outputs[0], expected); status != SY_OK) return status;
  int64_t begin = 0;
  for (const Operand& x : r.inputs) {
    s.Store(x, r.outputs[0].Part(along, begin, x.dims[along]), r.accumulate[0] != 0);
    begin += x.dims[along];
  }
  return SY_OK;
}

const Registration kTranspose{"transpose", BuildTranspose, sizeof(sy_axes_attributes)};
const Registration kSlice{"slice", BuildSlice, sizeof(sy_slice_attributes)};
const Registration kPad{"pad", BuildPad, sizeof(sy_pad_attributes)};
const Registration kRoll{"roll", BuildRoll, sizeof(sy_axes_attributes)};
const Registration kConcat{"concat", BuildConcat, sizeof(sy_axes_attributes)};

}  // namespace

// Between the nodes of a region, where a view is an operand like any other.
sy_status BuildReshape(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  if (r.inputs[0].count() != r.outputs[0].count() || r.inputs[0].dtype != r.outputs[0].dtype)
    return Refuse(r.error, SY_UNSUPPORTED, "reshape: x and y must have the same elements");
  s.Emit(s.op.InplaceCopy, r.outputs[0], r.inputs[0].Reshaped(r.outputs[0].dims));
  return SY_OK;
}

}  // namespace switchyard
