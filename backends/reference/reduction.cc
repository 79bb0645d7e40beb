// reduce over any axes, and the squared norm of many tensors.
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

// x's dims with the reduced axes at extent 1, or without them.
Dims Reduced(const Dims& x, uint32_t axes, bool keep) {
  Dims y;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    const bool reduced = axes >> axis & 1;
    if (!reduced || keep) y.push_back(reduced ? 1 : x[axis]);
  }
  return y;
}

void CheckReduce(Check& check) {
  const auto& attr = check.attributes<sy_reduce_attributes>();
  if (!check.Operands(1, 1) || !check.Floats()) return;
  const Dims x = check.InputDims(0);
  check.Knows(attr.reduction >= SY_REDUCE_SUM && attr.reduction <= SY_REDUCE_SUM_OF_SQUARES, "unknown reduction");
  check.Need(attr.axes >> x.size() == 0, Text("axes name an axis that ", ToText(x), " does not have"));
  const Dims y = check.OutputDims(0), without = Reduced(x, attr.axes, false);
  check.Need(y == Reduced(x, attr.axes, true) || y == without || (without.empty() && y == Dims{1}),
             Text("y must be ", ToText(Reduced(x, attr.axes, true)), ", found ", ToText(check.OutputDims(0))));
}

double Combine(int32_t reduction, double sum, double x) {
  switch (reduction) {
    case SY_REDUCE_MAX:
      return std::isnan(x) || x > sum ? x : sum;
    case SY_REDUCE_MIN:
      return std::isnan(x) || x < sum ? x : sum;
    case SY_REDUCE_SUM_OF_SQUARES:
      return sum + x * x;
    default:
      return sum + x;
  }
}

void RunReduce(Call& call) {
  const auto& attr = call.attributes<sy_reduce_attributes>();
  const Array& x = call.input(0);
  Array& y = call.output(0);
  const Dims kept = Reduced(x.dims, attr.axes, true), from = ContiguousStrides(x.dims);
  Dims to = ContiguousStrides(kept);
  for (size_t axis = 0; axis < to.size(); ++axis) {
    if (attr.axes >> axis & 1) to[axis] = 0;
  }
  const double start = attr.reduction == SY_REDUCE_MAX ? -INFINITY : attr.reduction == SY_REDUCE_MIN ? INFINITY : 0;
  y.values.assign(y.values.size(), start);
  ForEach(x.dims, from, to,
          [&](const Dims&, int64_t in, int64_t out) { y[out] = Combine(attr.reduction, y[out], x[in]); });
  for (double& value : y.values) value *= double{attr.scale};
}

void CheckSquaredNorm(Check& check) {
  check.Need(check.input_count() >= 1, "expected at least one tensor");
  check.Operands(check.input_count(), 1) && check.Floats() && check.OneElement("the norm", check.problem().outputs[0]);
}

void RunSquaredNorm(Call& call) {
  for (size_t i = 0; i < call.input_count(); ++i) {
    for (const double t : call.input(i).values) call.output(0)[0] += t * t;
  }
}

const Operation kReduce{"reduce", sizeof(sy_reduce_attributes), CheckReduce, RunReduce};
const Operation kSquaredNorm{"squared_norm", 0, CheckSquaredNorm, RunSquaredNorm};

}  // namespace
}  // namespace switchyard
