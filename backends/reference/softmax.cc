// softmax over the last axis, shifted by the row's maximum.
#include <algorithm>
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

void CheckSoftmax(Check& check) {
  if (!check.Operands(1, 1) || !check.Floats()) return;
  check.Need(!check.InputDims(0).empty(), "x must have rank 1 or more") && check.Output("y", 0, check.InputDims(0));
}

void RunSoftmax(Call& call) {
  const Array& x = call.input(0);
  Array& y = call.output(0);
  const int64_t c = x.dims.back();
  for (int64_t row = 0; row < x.size(); row += c) {
    const double largest =
        *std::max_element(&x.values[static_cast<size_t>(row)], &x.values[static_cast<size_t>(row)] + c);
    double sum = 0;
    for (int64_t i = row; i < row + c; ++i) sum += y[i] = std::exp(x[i] - largest);
    for (int64_t i = row; i < row + c; ++i) y[i] /= sum;
  }
}

void CheckSoftmaxBackward(Check& check) {
  if (!check.Operands(2, 1) || !check.Floats()) return;
  const Dims y = check.InputDims(0);
  check.Need(!y.empty(), "y must have rank 1 or more") && check.Input("dy", 1, y) && check.Output("dx", 0, y);
}

// dx = y·(dy − Σ y·dy)
void RunSoftmaxBackward(Call& call) {
  const Array &y = call.input(0), &dy = call.input(1);
  const int64_t c = y.dims.back();
  for (int64_t row = 0; row < y.size(); row += c) {
    double sum = 0;
    for (int64_t i = row; i < row + c; ++i) sum += y[i] * dy[i];
    for (int64_t i = row; i < row + c; ++i) call.output(0)[i] = y[i] * (dy[i] - sum);
  }
}

const Operation kSoftmax{"softmax", 0, CheckSoftmax, RunSoftmax};
const Operation kSoftmaxBackward{"softmax_backward", 0, CheckSoftmaxBackward, RunSoftmaxBackward};

}  // namespace
}  // namespace switchyard
