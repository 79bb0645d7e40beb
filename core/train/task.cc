#include "core/train/task.h"

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

std::string Text(const Metric& metric, double value) {
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
