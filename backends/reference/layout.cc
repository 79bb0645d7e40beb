// transpose, slice, pad, roll, concat and flip: y is x seen through other strides, so each is one choice of strides and
// a starting offset, of flip one for each sample. Any dtype goes in and out; differing ones are converted.
#include "backends/reference/operation.h"

namespace switchyard {
namespace {

void CheckTranspose(Check& check) {
  const auto& attr = check.attributes<sy_axes_attributes>();
  if (!check.Operands(1, 1)) return;
  const Dims x = check.InputDims(0);
  Dims y;
  uint32_t seen = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const int32_t axis = attr.values[i];
    if (!check.Need(axis >= 0 && axis < static_cast<int32_t>(x.size()) && !(seen >> axis & 1),
                    Text("axes must be a permutation of 0 … ", x.size() - 1))) {
      return;
    }
    seen |= 1u << axis;
    y.push_back(x[static_cast<size_t>(axis)]);
  }
  check.Output("y", 0, y);
}

void RunTranspose(Call& call) {
  const auto& attr = call.attributes<sy_axes_attributes>();
  const Array& x = call.input(0);
  Array& y = call.output(0);
  const Dims own = ContiguousStrides(x.dims);
  Dims from;
  for (size_t i = 0; i < own.size(); ++i) from.push_back(own[static_cast<size_t>(attr.values[i])]);
  ForEach(y.dims, from, ContiguousStrides(y.dims), [&](const Dims&, int64_t in, int64_t out) { y[out] = x[in]; });
}

void CheckSlice(Check& check) {
  const auto& attr = check.attributes<sy_slice_attributes>();
  if (!check.Operands(1, 1)) return;
  const Dims x = check.InputDims(0), y = check.OutputDims(0);
  check.Need(x.size() == y.size(), Text("x and y must have the same rank, found ", ToText(x), " and ", ToText(y)));
  for (size_t i = 0; check.ok() && i < x.size(); ++i) {
    int64_t reach = 0, last = 0;
    const bool overflow =
        __builtin_mul_overflow(y[i] - 1, attr.step[i], &reach) || __builtin_add_overflow(attr.start[i], reach, &last);
    check.Need(!overflow && attr.start[i] >= 0 && attr.start[i] < x[i] && last >= 0 && last < x[i],
               Text("axis ", i, " takes ", y[i], " elements from ", attr.start[i], " by ", attr.step[i], " of ", x[i]));
  }
}

void RunSlice(Call& call) {
  const auto& attr = call.attributes<sy_slice_attributes>();
  const Array& x = call.input(0);
  Array& y = call.output(0);
  Dims from = ContiguousStrides(x.dims);
  int64_t start = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    start += attr.start[i] * from[i];
    from[i] *= attr.step[i];
  }
  ForEach(y.dims, from, ContiguousStrides(y.dims),
          [&](const Dims&, int64_t in, int64_t out) { y[out] = x[start + in]; });
}

void CheckPad(Check& check) {
  const auto& attr = check.attributes<sy_pad_attributes>();
  if (!check.Operands(1, 1)) return;
  Dims y = check.InputDims(0);
  for (size_t i = 0; i < y.size(); ++i) {
    if (!check.Need(
            attr.before[i] >= 0 && attr.after[i] >= 0 && attr.before[i] <= INT32_MAX && attr.after[i] <= INT32_MAX,
            Text("before and after must not be negative, found ", attr.before[i], " and ", attr.after[i]))) {
      return;
    }
    y[i] += attr.before[i] + attr.after[i];
  }
  check.Output("y", 0, y);
}

void RunPad(Call& call) {
  const auto& attr = call.attributes<sy_pad_attributes>();
  const Array& x = call.input(0);
  Array& y = call.output(0);
  const Dims to = ContiguousStrides(y.dims);
  int64_t start = 0;
  for (size_t i = 0; i < to.size(); ++i) start += attr.before[i] * to[i];
  y.values.assign(y.values.size(), double{attr.value});
  ForEach(x.dims, ContiguousStrides(x.dims), to, [&](const Dims&, int64_t in, int64_t out) { y[start + out] = x[in]; });
}

void CheckRoll(Check& check) { check.Operands(1, 1) && check.Output("y", 0, check.InputDims(0)); }

void RunRoll(Call& call) {
  const auto& attr = call.attributes<sy_axes_attributes>();
  const Array& x = call.input(0);
  const Dims strides = ContiguousStrides(x.dims);
  ForEach(x.dims, strides, strides, [&](const Dims& index, int64_t in, int64_t) {
    int64_t out = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      const int64_t n = x.dims[i], moved = (index[i] + attr.values[i]) % n;
      out += (moved < 0 ? moved + n : moved) * strides[i];
    }
    call.output(0)[out] = x[in];
  });
}

void CheckConcat(Check& check) {
  const int32_t axis = check.attributes<sy_axes_attributes>().values[0];
  if (!check.Need(check.input_count() >= 1, "expected at least one tensor") || !check.Operands(check.input_count(), 1))
    return;
  Dims y = check.InputDims(0);
  if (!check.Need(axis >= 0 && axis < static_cast<int32_t>(y.size()), Text("no axis ", axis, " in ", ToText(y))))
    return;
  for (size_t i = 1; i < check.input_count(); ++i) {
    Dims x = check.InputDims(i), expected = check.InputDims(0);
    if (!check.Need(x.size() == expected.size(), Text("input ", i, " must have rank ", expected.size()))) return;
    expected[static_cast<size_t>(axis)] = x[static_cast<size_t>(axis)];
    check.Input("every input", i, expected);
    y[static_cast<size_t>(axis)] += x[static_cast<size_t>(axis)];
  }
  check.Output("y", 0, y);
}

void RunConcat(Call& call) {
  const auto axis = static_cast<size_t>(call.attributes<sy_axes_attributes>().values[0]);
  Array& y = call.output(0);
  const Dims to = ContiguousStrides(y.dims);
  int64_t start = 0;
  for (size_t i = 0; i < call.input_count(); ++i) {
    const Array& x = call.input(i);
    ForEach(x.dims, ContiguousStrides(x.dims), to,
            [&](const Dims&, int64_t in, int64_t out) { y[start + out] = x[in]; });
    start += x.dims[axis] * to[axis];
  }
}

void CheckFlip(Check& check) {
  if (!check.Operands(2, 1)) return;
  const int32_t axis = check.attributes<sy_axes_attributes>().values[0];
  const Dims x = check.InputDims(0);
  check.Need(axis >= 1 && axis < static_cast<int32_t>(x.size()),
             Text("no axis ", axis, " behind the first of ", ToText(x))) &&
      check.Need(check.InputType(1) == SY_U8, "flips must be u8") && check.Input("flips", 1, {x[0]}) &&
      check.Output("y", 0, x);
}

void RunFlip(Call& call) {
  const auto axis = static_cast<size_t>(call.attributes<sy_axes_attributes>().values[0]);
  const Array& x = call.input(0);
  const Dims strides = ContiguousStrides(x.dims);
  ForEach(x.dims, strides, strides, [&](const Dims& index, int64_t in, int64_t out) {
    const int64_t last = x.dims[axis] - 1, place = index[axis];
    const bool flips = call.input(1)[index[0]] != 0;
    call.output(0)[out + (flips ? last - 2 * place : 0) * strides[axis]] = x[in];
  });
}

const Operation kTranspose{"transpose", sizeof(sy_axes_attributes), CheckTranspose, RunTranspose};
const Operation kSlice{"slice", sizeof(sy_slice_attributes), CheckSlice, RunSlice};
const Operation kPad{"pad", sizeof(sy_pad_attributes), CheckPad, RunPad};
const Operation kRoll{"roll", sizeof(sy_axes_attributes), CheckRoll, RunRoll};
const Operation kConcat{"concat", sizeof(sy_axes_attributes), CheckConcat, RunConcat};
const Operation kFlip{"flip", sizeof(sy_axes_attributes), CheckFlip, RunFlip};

}  // namespace
}  // namespace switchyard
