// cross_entropy with integer labels or soft targets and label smoothing, and the rank of the label among the classes
// (top-k).
#include <algorithm>
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

bool CheckLogits(Check& check, size_t inputs, size_t outputs, bool soft_targets) {
  if (!check.Operands(inputs, outputs) || !check.Rank("logits", 0, 2)) return false;
  const Dims logits = check.InputDims(0);
  return soft_targets ? check.Floats() && check.Input("targets", 1, logits)
                      : check.FloatsExcept({1}) && check.Input("labels", 1, {logits[0]});
}

// The target distribution y of one row. An ignored row has none; a label beyond the classes makes the loss NaN rather
// than a plausible number.
struct Target {
  const Call& call;
  int64_t row, classes;
  const sy_cross_entropy_attributes& attr = call.attributes<sy_cross_entropy_attributes>();

  bool Ignored() const {
    if (attr.soft_targets) return false;
    const double label = call.input(1)[row];
    return label < 0 || label == attr.ignore_index;
  }
  double operator()(int64_t i) const {
    const double s = attr.label_smoothing;
    double y;
    if (attr.soft_targets) {
      y = call.input(1)[row * classes + i];
    } else if (call.input(1)[row] >= static_cast<double>(classes)) {
      y = NAN;
    } else {
      y = call.input(1)[row] == static_cast<double>(i) ? 1 : 0;
    }
    return y * (1 - s) + s / static_cast<double>(classes);
  }
};

void CheckCrossEntropy(Check& check) {
  if (!CheckLogits(check, 2, 2, check.attributes<sy_cross_entropy_attributes>().soft_targets)) return;
  const Dims rows = {check.InputDims(0)[0]};
  check.Output("loss", 0, rows) && check.Output("logsumexp", 1, rows);
}

void RunCrossEntropy(Call& call) {
  const Array& logits = call.input(0);
  const int64_t c = logits.dims[1];
  for (int64_t row = 0; row < logits.dims[0]; ++row) {
    const double* x = &logits.values[static_cast<size_t>(row * c)];
    const double largest = *std::max_element(x, x + c);
    double sum = 0;
    for (int64_t i = 0; i < c; ++i) sum += std::exp(x[i] - largest);
    const double logsumexp = call.output(1)[row] = largest + std::log(sum);
    const Target y{call, row, c};
    if (y.Ignored()) continue;
    for (int64_t i = 0; i < c; ++i) {
      if (y(i) != 0) call.output(0)[row] -= y(i) * (x[i] - logsumexp);
    }
  }
}

void CheckCrossEntropyBackward(Check& check) {
  if (!CheckLogits(check, 4, 1, check.attributes<sy_cross_entropy_attributes>().soft_targets)) return;
  const Dims logits = check.InputDims(0), rows = {logits[0]};
  check.Input("logsumexp", 2, rows) && check.Input("dloss", 3, rows) && check.Output("dlogits", 0, logits);
}

void RunCrossEntropyBackward(Call& call) {
  const Array &logits = call.input(0), &logsumexp = call.input(2), &dloss = call.input(3);
  const int64_t c = logits.dims[1];
  for (int64_t row = 0; row < logits.dims[0]; ++row) {
    const Target y{call, row, c};
    if (y.Ignored()) continue;
    double total = 0;
    for (int64_t i = 0; i < c; ++i) total += y(i);
    for (int64_t i = 0; i < c; ++i) {
      const double p = std::exp(logits[row * c + i] - logsumexp[row]);
      call.output(0)[row * c + i] = dloss[row] * (p * total - y(i));
    }
  }
}

void CheckLabelRank(Check& check) {
  if (!check.Operands(2, 1) || !check.Rank("logits", 0, 2)) return;
  const auto integer = [](sy_dtype dtype) { return dtype == SY_I32 || dtype == SY_I64; };
  check.Need(IsFloat(check.InputType(0)), "logits must be a float");
  check.Need(integer(check.InputType(1)) && integer(check.problem().outputs[0].dtype), "labels and rank must be i32");
  const Dims rows = {check.InputDims(0)[0]};
  check.Input("labels", 1, rows) && check.Output("rank", 0, rows);
}

// A NaN among the logits never counts for the label.
void RunLabelRank(Call& call) {
  const Array& logits = call.input(0);
  const int64_t c = logits.dims[1];
  for (int64_t row = 0; row < logits.dims[0]; ++row) {
    const auto label = static_cast<int64_t>(call.input(1)[row]);
    if (label < 0 || label >= c) {
      call.output(0)[row] = static_cast<double>(c);
      continue;
    }
    const double own = logits[row * c + label];
    for (int64_t i = 0; i < c; ++i) {
      const double x = logits[row * c + i];
      const bool below = x < own || (x == own && i > label);
      if (i != label && !below) call.output(0)[row] += 1;
    }
  }
}

const Operation kCrossEntropy{"cross_entropy", sizeof(sy_cross_entropy_attributes), CheckCrossEntropy, RunCrossEntropy};
const Operation kCrossEntropyBackward{"cross_entropy_backward", sizeof(sy_cross_entropy_attributes),
                                      CheckCrossEntropyBackward, RunCrossEntropyBackward};
const Operation kLabelRank{"label_rank", 0, CheckLabelRank, RunLabelRank};

}  // namespace
}  // namespace switchyard
