#include "core/train/task.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

class SampleCounter : public Collector {
 public:
  SampleCounter(const Task& task, std::span<double> sums, int64_t* count) : task_(task), sums_(sums), count_(count) {}
  Status Add(int64_t, std::span<const void* const> rows) override {
    if (rows.empty()) return OkStatus();
    task_.Count(rows, sums_);
    ++*count_;
    return OkStatus();
  }

 private:
  const Task& task_;
  const std::span<double> sums_;
  int64_t* const count_;
};

class SamplePredictor : public Collector {
 public:
  SamplePredictor(const Task& task, ReadPrediction read) : task_(task), read_(read) {}
  Status Add(int64_t index, std::span<const void* const> rows) override {
    return read_(index, rows.empty() ? Prediction() : task_.Predict(rows[0]));
  }

 private:
  const Task& task_;
  const ReadPrediction read_;
};

}  // namespace

std::unique_ptr<Collector> Task::Predicting(const SampleSource&, ReadPrediction read) const {
  return std::make_unique<SamplePredictor>(*this, read);
}

std::unique_ptr<Collector> Task::Counting(const SampleSource&, std::span<double> sums, int64_t* count) const {
  return std::make_unique<SampleCounter>(*this, sums, count);
}

Status CheckFinite(const EvaluationResult& result) {
  for (const auto* metrics : {&result.metrics, &result.ema}) {
    const auto loss = metrics->find("loss");
    if (loss != metrics->end() && !std::isfinite(loss->second))
      return absl::OutOfRangeError(fmt::format(
          "the loss of {} samples is not finite with {}: they have probably grown beyond what the model's dtype holds; "
          "go back to an earlier checkpoint, and train with a lower --lr or a longer --warmup",
          result.count, metrics == &result.metrics ? "these weights" : "the averages of these weights"));
  }
  return OkStatus();
}

Status CheckFinite(const Prediction& prediction) {
  const auto finite = [](double x) { return std::isfinite(x); };
  if (prediction.finite && std::all_of(prediction.probabilities.begin(), prediction.probabilities.end(), finite) &&
      std::all_of(prediction.scores.begin(), prediction.scores.end(), finite))
    return OkStatus();
  return FailedPrecondition("what the model makes of it is not finite; eval says whether its weights are of use");
}

std::string Text(const Metric& metric, double value) {
  if (std::isnan(value)) return "nan";
  return metric.is_share ? fmt::format("{:.2f} %", 100 * value) : fmt::format("{:.4f}", value);
}

std::string Text(const std::vector<Metric>& metrics, const EvaluationResult& result) {
  std::string text;
  for (const Metric& metric : metrics) {
    const auto found = result.metrics.find(metric.name);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", metric.words,
                        Text(metric, found == result.metrics.end() ? 0 : found->second));
  }
  return text;
}

}  // namespace switchyard
