// cross_entropy, its gradient and label_rank. A label becomes a row of booleans by comparing it with 0 … C−1, so that
// no operator ever indexes by a label that may lie outside the classes.
#include <cmath>
#include <limits>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

struct Labels {
  Operand number;  // f32 (N, 1)
  Operand hot;     // bool (N, C)
};

Labels FromIntegers(Sequence& s, const Operand& labels, int64_t classes) {
  const Operand column = labels.Reshaped({labels.count(), 1});
  return {s.Wide(column), s.Holds(s.op.EqTensor, column, s.Indices(classes).Reshaped({1, classes}))};
}

// NaN where the label lies beyond the classes, 0 where it is negative or ignored, else `value` (N, 1) or (N, C).
Operand Guard(Sequence& s, const Labels& labels, const sy_cross_entropy_attributes& a, int64_t classes, Operand value) {
  const Operand zero = s.Constant(0);
  const auto limit = static_cast<float>(classes), ignored = static_cast<float>(a.ignore_index);
  value = s.Where(s.Holds(s.op.LeTensor, s.Constant(limit), labels.number),
                  s.Constant(std::numeric_limits<float>::quiet_NaN()), value);
  value = s.Where(s.Holds(s.op.LeTensor, zero, labels.number), value, zero);
  return s.Where(s.Holds(s.op.EqTensor, labels.number, s.Constant(ignored)), zero, value);
}

sy_status CheckLoss(const Request& r, size_t inputs, size_t outputs) {
  const auto a = r.Attributes<sy_cross_entropy_attributes>();
  if (const sy_status status = r.Expect(inputs, outputs); status != SY_OK) return status;
  const sy_status dtypes = a.soft_targets ? r.ExpectFloats() : r.ExpectFloats({1});
  if (dtypes != SY_OK) return dtypes;
  const Dims& logits = r.inputs[0].dims;
  if (logits.size() != 2) return Refuse(r.error, SY_UNSUPPORTED, r.op + ": logits must be (N, C)");
  return r.ExpectDims(a.soft_targets ? "targets" : "labels", r.inputs[1], a.soft_targets ? logits : Dims{logits[0]});
}

// targets·(1−s) + s/C
Operand Smoothed(Sequence& s, const Operand& targets, const sy_cross_entropy_attributes& a, int64_t classes) {
  const Operand y = s.Wide(targets);
  if (a.label_smoothing == 0) return y;
  return s.Plus(s.Scaled(y, 1 - a.label_smoothing), a.label_smoothing / static_cast<double>(classes));
}

sy_status BuildCrossEntropy(Sequence& s, Request& r) {
  if (const sy_status status = CheckLoss(r, 2, 2); status != SY_OK) return status;
  const auto a = r.Attributes<sy_cross_entropy_attributes>();
  const int64_t n = r.inputs[0].dims[0], classes = r.inputs[0].dims[1];
  for (const Operand& output : r.outputs) {
    if (const sy_status status = r.ExpectDims("loss and logsumexp", output, {n}); status != SY_OK) return status;
  }
  const Operand logsumexp = s.Destination(r, 1), logits = s.Wide(r.inputs[0]), zero = s.Constant(0);
  // Relative to the largest, so that large logits do not cancel.
  const Operand largest = s.Scratch(ACL_FLOAT, {n, 1}), relative = s.Scratch(ACL_FLOAT, {n, 1});
  s.Emit(s.op.Amax, logits, Dims{1}, true, largest);
  const Operand x = s.Sub(logits, largest);
  s.Emit(s.op.LogSumExp, x, Dims{1}, true, relative);
  const Operand log_p = s.Sub(x, relative), sums = logsumexp.Reshaped({n, 1});
  s.Add(largest, relative, 1, &sums);
  Operand loss;
  if (a.soft_targets) {
    const Operand y = Smoothed(s, r.inputs[1], a, classes);
    // A class that has no share counts nothing, also where its logit is −∞.
    const Operand terms = s.Where(s.Holds(s.op.EqTensor, y, zero), zero, s.Mul(y, log_p));
    loss = s.Scaled(s.Sum(terms, {1}, true), -1);
  } else {
    const Labels labels = FromIntegers(s, r.inputs[1], classes);
    loss = s.Scaled(s.Sum(s.Where(labels.hot, log_p, zero), {1}, true), a.label_smoothing - 1.0);
    if (a.label_smoothing != 0)
      loss = s.Add(loss, s.Sum(log_p, {1}, true), -a.label_smoothing / static_cast<double>(classes));
    loss = Guard(s, labels, a, classes, loss);
  }
  s.Deliver(r, 0, loss.Reshaped({n}));
  return s.Deliver(r, 1, logsumexp);
}

sy_status BuildCrossEntropyBackward(Sequence& s, Request& r) {
  if (const sy_status status = CheckLoss(r, 4, 1); status != SY_OK) return status;
  const auto a = r.Attributes<sy_cross_entropy_attributes>();
  const Dims logits = r.inputs[0].dims;
  const int64_t n = logits[0], classes = logits[1];
  for (const size_t i : {2, 3}) {
    if (const sy_status status = r.ExpectDims("logsumexp and dloss", r.inputs[i], {n}); status != SY_OK) return status;
  }
  if (const sy_status status = r.ExpectDims("dlogits", r.outputs[0], logits); status != SY_OK) return status;
  const Operand column = s.Wide(r.inputs[2]).Reshaped({n, 1}), dloss = s.Wide(r.inputs[3]).Reshaped({n, 1});
  const Operand p = s.Unary(s.op.Exp, s.Sub(s.Wide(r.inputs[0]), column));
  if (a.soft_targets) {
    const Operand y = Smoothed(s, r.inputs[1], a, classes);
    return s.Deliver(r, 0, s.Mul(s.Sub(s.Mul(p, s.Sum(y, {1}, true)), y), dloss));
  }
  const Labels labels = FromIntegers(s, r.inputs[1], classes);
  const float share = a.label_smoothing / static_cast<float>(classes);
  const Operand y = s.Where(labels.hot, s.Constant(1 - a.label_smoothing + share), s.Constant(share));
  return s.Deliver(r, 0, Guard(s, labels, a, classes, s.Mul(s.Sub(p, y), dloss)));
}

// rank = C − 1 − Σ below, where below is x < own, or x = own at a higher index; a NaN is never below.
sy_status BuildLabelRank(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  const Operand &logits = r.inputs[0], &given = r.inputs[1], &rank = r.outputs[0];
  const bool floats = logits.dtype == ACL_FLOAT || logits.dtype == ACL_BF16 || logits.dtype == ACL_FLOAT16;
  if (!floats || given.dtype != ACL_INT32 || rank.dtype != ACL_INT32 || r.accumulate[0] != 0)
    return Refuse(r.error, SY_UNSUPPORTED,
                  "label_rank: expected float logits, i32 labels and an i32 rank to overwrite");
  if (logits.dims.size() != 2) return Refuse(r.error, SY_UNSUPPORTED, "label_rank: logits must be (N, C)");
  const int64_t n = logits.dims[0], classes = logits.dims[1];
  for (const Operand* each : {&given, &rank}) {
    if (const sy_status status = r.ExpectDims("labels and rank", *each, {n}); status != SY_OK) return status;
  }
  const Operand x = s.Wide(logits), zero = s.Constant(0), one = s.Constant(1);
  const Labels labels = FromIntegers(s, given, classes);
  const Operand own = s.Sum(s.Where(labels.hot, x, zero), {1}, true);
  const Operand later = s.Binary(s.op.LtTensor, labels.number, s.Wide(s.Indices(classes).Reshaped({1, classes})));
  const Operand tie = s.Where(s.Holds(s.op.EqTensor, x, own), later, zero);
  const Operand below = s.Where(s.Holds(s.op.LtTensor, x, own), one, tie);
  Operand result = s.Plus(s.Scaled(s.Sum(below, {1}, true), -1), static_cast<double>(classes) - 1);
  const Operand most = s.Constant(static_cast<float>(classes));
  result = s.Where(s.Holds(s.op.LeTensor, most, labels.number), most, result);
  result = s.Where(s.Holds(s.op.LeTensor, zero, labels.number), result, most);
  s.Store(result.Reshaped({n}), rank);
  return SY_OK;
}

const Registration kCrossEntropy{"cross_entropy", BuildCrossEntropy, sizeof(sy_cross_entropy_attributes)};
const Registration kCrossEntropyBackward{"cross_entropy_backward", BuildCrossEntropyBackward,
                                         sizeof(sy_cross_entropy_attributes)};
const Registration kLabelRank{"label_rank", BuildLabelRank, 0};

}  // namespace
}  // namespace switchyard
