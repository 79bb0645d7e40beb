#include "core/train/task.h"

namespace switchyard {

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
