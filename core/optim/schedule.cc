#include "core/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/numbers.h"
#include "core/base/names.h"

namespace switchyard {
namespace {

template <typename Kind>
StatusOr<Kind> ParseKind(const std::string& name, const char* what,
                         const std::vector<std::pair<std::string, Kind>>& kinds) {
  std::vector<std::string> known;
  std::string list;
  for (const auto& [kind_name, kind] : kinds) {
    if (kind_name == name) return kind;
    known.push_back(kind_name);
    list += (list.empty() ? "" : ", ") + kind_name;
  }
  return InvalidArgument("unknown {} '{}'{}; there are: {}", what, name, DidYouMean(name, known), list);
}

// Updates in the unit of time: an interval, or one.
double UnitOf(const ScheduleOptions& o) { return static_cast<double>(o.interval.value_or(1)); }

// Where an update stands: the beginning of its interval on both clocks.
struct Place {
  int64_t of_epochs = 0, of_run = 0;
};

// The rate after the warm-up. `t`, `warmup` and `steps` in that unit, on the clock of linear and cosine.
double RateAt(const ScheduleOptions& o, double t, double warmup, double steps, const Place& at) {
  const double lr = o.lr, min_lr = o.kind == Schedule::kCosineAnnealing ? 0 : o.min_lr;
  const int64_t update = o.falls_by_epochs ? at.of_epochs : at.of_run;  // of milestones and steps
  const double progress = steps > warmup ? std::clamp((t - warmup) / (steps - warmup), 0.0, 1.0) : 1.0;
  switch (o.kind) {
    case Schedule::kConstant:
      return lr;
    case Schedule::kMultistep: {
      const auto passed =
          std::count_if(o.milestones.begin(), o.milestones.end(), [&](int64_t m) { return m <= update; });
      return lr * std::pow(static_cast<double>(o.gamma), static_cast<double>(passed));
    }
    case Schedule::kStep:
      return lr * std::pow(static_cast<double>(o.gamma), static_cast<double>(update / o.step_size));
    case Schedule::kLinear:
      return lr + (min_lr - lr) * progress;
    case Schedule::kCosine:
    case Schedule::kCosineAnnealing:
      return min_lr + 0.5 * (lr - min_lr) * (1 + std::cos(std::numbers::pi * progress));
  }
  return lr;
}

Place PlaceOf(const ScheduleOptions& o, int64_t update) {
  const int64_t place = update - o.shift;
  if (!o.interval) return {place, update};
  const int64_t length = *o.interval;
  const auto begin = [&](int64_t at) { return (at >= 0 ? at : at - length + 1) / length * length; };
  const int64_t of_epochs = begin(place);
  // The epoch in which the batch changed has updates of both sizes.
  const bool mixed = o.changed_at > 0 && of_epochs == begin(o.changed_at - o.shift);
  return {of_epochs, std::max<int64_t>(0, mixed ? o.epoch_began : of_epochs + o.shift)};
}

double WarmupRateAt(const ScheduleOptions& o, double t, double warmup) {
  const double lr = o.lr;
  if (o.kind == Schedule::kCosineAnnealing) return std::min(1.0, (t + 1) / warmup) * lr;
  // A first interval at 0 would train nothing: its warm-up is one step further and rises from lr/(w+1).
  if (o.interval && o.warmup_lr == 0) return (t + 1) / (warmup + 1) * lr;
  return o.warmup_lr + t * (lr - o.warmup_lr) / warmup;
}

}  // namespace

StatusOr<Schedule> ParseSchedule(const std::string& name) {
  return ParseKind<Schedule>(name, "schedule",
                             {{"constant", Schedule::kConstant},
                              {"multistep", Schedule::kMultistep},
                              {"step", Schedule::kStep},
                              {"linear", Schedule::kLinear},
                              {"cosine", Schedule::kCosine},
                              {"cosine_annealing", Schedule::kCosineAnnealing}});
}

StatusOr<RateScaling> ParseRateScaling(const std::string& name) {
  return ParseKind<RateScaling>(
      name, "learning-rate scaling",
      {{"none", RateScaling::kNone}, {"linear", RateScaling::kLinear}, {"sqrt", RateScaling::kSqrt}});
}

StatusOr<int64_t> ParseWarmup(const std::string& text, int64_t steps, int64_t steps_per_epoch) {
  const bool epochs = !text.empty() && text.back() == 'e';
  const std::string number = epochs ? text.substr(0, text.size() - 1) : text;
  const bool whole = number.find('.') == std::string::npos;
  const bool digits = !number.empty() && number.find_first_not_of("0123456789.") == std::string::npos;
  double value = 0;
  if (!digits || !absl::SimpleAtod(number, &value) || (!whole && !epochs && value > 1)) {
    return InvalidArgument(
        "warm-up '{}': expected a number of steps (500), of epochs (20e), or a part of the run (0.3)", text);
  }
  const double unit = epochs ? static_cast<double>(steps_per_epoch) : whole ? 1.0 : static_cast<double>(steps);
  const double warmup = std::round(value * unit);
  if (warmup > static_cast<double>(steps)) {
    return InvalidArgument(
        "warm-up '{}' is {:.0f} steps, but the run has {}; shorten it by --warmup, or train for more epochs", text,
        warmup, steps);
  }
  return static_cast<int64_t>(warmup);
}

std::vector<float> LearningRateTable(const ScheduleOptions& o, int64_t steps) {
  const double unit = UnitOf(o), warmup = static_cast<double>(o.warmup) / unit;
  const int64_t end = o.decay_by_epochs ? steps - o.shift : steps;
  std::vector<float> table;
  table.reserve(static_cast<size_t>(steps));
  for (int64_t update = 0; update < steps; ++update) {
    const Place at = PlaceOf(o, update);
    const auto time = [&](bool by_epochs) { return static_cast<double>(by_epochs ? at.of_epochs : at.of_run) / unit; };
    const double t = time(o.warmup_by_epochs);
    table.push_back(static_cast<float>(
        t < warmup ? WarmupRateAt(o, std::max(t, 0.0), warmup)
                   : RateAt(o, time(o.decay_by_epochs), warmup, static_cast<double>(end) / unit, at)));
  }
  return table;
}

ScheduleOptions ScaleRates(ScheduleOptions options, RateScaling scaling, int64_t global_batch, int64_t base_batch,
                           float factor) {
  if (scaling == RateScaling::kNone) return options;
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(base_batch);
  const auto scale = static_cast<float>(factor * (scaling == RateScaling::kLinear ? ratio : std::sqrt(ratio)));
  options.lr *= scale;
  options.warmup_lr *= scale;
  options.min_lr *= scale;
  return options;
}

}  // namespace switchyard
