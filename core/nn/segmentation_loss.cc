#include "core/nn/segmentation_loss.h"

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"

namespace switchyard::nn {
namespace {

constexpr float kSmallestUnion = 1e-5f;

// 0, 1, …, classes − 1.
Value ClassNumbers(Graph& graph, int64_t classes) {
  std::vector<Value> numbers;
  for (int64_t c = 0; c < classes; ++c) numbers.push_back(ops::Full(graph, {1}, static_cast<float>(c)));
  return classes == 1 ? numbers[0] : ops::Concat(numbers, 0);
}

// −log σ of what is right: softplus(x) − x·t, which neither overflows nor loses its slope at 0.
Value BinaryCrossEntropy(const Value& x, const Value& t) {
  const Value size = ops::Unary(SY_PW_ABS, x);
  const Value tail = ops::Unary(SY_PW_LOG, ops::AddScalar(ops::Unary(SY_PW_EXP, ops::Unary(SY_PW_NEG, size)), 1));
  return ops::Add(ops::Sub(ops::Scale(ops::Add(x, size), 0.5f), ops::Mul(x, t)), tail);
}

}  // namespace

SegmentationTerms TermsOfSegmentation(const Value& logits, const Value& labels, const SegmentationLossOptions& o,
                                      Where where) {
  Shape places = logits.shape();
  const int64_t classes = places.empty() ? 0 : places.back();
  if (!places.empty()) places.pop_back();
  if (classes < 1 || labels.shape() != places || labels.dtype() != DType::kI32 || (classes == 1 && !o.sigmoid))
    ThrowBuildError("segmentation_loss", "logits (..., C) need labels i32 (...), and a softmax at least two classes",
                    {logits, labels}, where);
  Graph& graph = logits.graph();
  // One class as a vector: reductions over an innermost axis of extent 1 are slow.
  const Shape flat = classes == 1 ? Shape{-1} : Shape{-1, classes}, beside = classes == 1 ? Shape{-1} : Shape{-1, 1};
  const Value x = ops::Cast(ops::Reshape(logits, flat), DType::kF32);
  const Value label = ops::Reshape(ops::Cast(labels, DType::kF32), beside), zero = ops::Full(graph, {1}, 0);
  const Value counts = ops::Binary(SY_PW_LESS_EQUAL, zero, label);
  const Value t = classes == 1 ? ops::Binary(SY_PW_LESS, zero, label)
                               : ops::Binary(SY_PW_EQUAL, label, ClassNumbers(graph, classes));
  const Value p = ops::Mul(o.sigmoid ? ops::Unary(SY_PW_SIGMOID, x) : ops::Softmax(x), counts);
  const Value entropy =
      o.sigmoid ? ops::Mul(BinaryCrossEntropy(x, t), counts) : ops::CrossEntropy(x, ops::Reshape(labels, {-1}));
  return {entropy, counts, ops::Mul(p, t), ops::Add(p, t)};
}

Value SegmentationLoss(const Value& logits, const Value& labels, const SegmentationLossOptions& o, Where where) {
  const SegmentationTerms of_places = TermsOfSegmentation(logits, labels, o, where);
  Graph& graph = logits.graph();
  const int64_t classes = logits.shape().back();
  const auto by_class = [&](const Value& y) { return ops::Reduce(y, SY_REDUCE_SUM, 1); };
  const float terms = o.sigmoid ? static_cast<float>(classes) : 1;
  const Value own = ops::Concat({ops::Sum(of_places.entropy), ops::Scale(ops::Sum(of_places.counts), terms),
                                 by_class(of_places.overlap), by_class(of_places.size)},
                                0);
  const Value all = ops::AllReduce(own, SY_SUM, 1, o.group, "", where);
  const auto part = [&](int64_t start, int64_t length) { return ops::Slice(all, 0, start, length); };
  const auto at_least = [&](const Value& y, float least) {
    return ops::Binary(SY_PW_MAX, y, ops::Full(graph, {1}, least));
  };
  const Value mean_entropy = ops::Div(part(0, 1), at_least(part(1, 1), 1));
  const Value dice = ops::Div(ops::Scale(part(2, classes), 2), at_least(part(2 + classes, classes), kSmallestUnion));
  const Value dice_loss = ops::AddScalar(ops::Scale(ops::Mean(dice), -1), 1);
  return ops::Add(ops::Scale(mean_entropy, o.entropy_weight), ops::Scale(dice_loss, o.dice_weight));
}

}  // namespace switchyard::nn
