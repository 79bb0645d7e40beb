// Learning-rate schedules as tables. The table of a whole run is computed once, uploaded once and indexed on the device
// by the number of updates made, so that a step skipped on overflow does not advance the schedule. Thread-safe: pure
// functions. Time is counted in optimizer updates (one per accumulation round); `steps` is the run's number of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

enum class Schedule {
  kConstant,         // lr
  kMultistep,        // lr · gamma^(milestones passed)
  kStep,             // lr · gamma^⌊t/step_size⌋
  kLinear,           // from lr down to min_lr at the end
  kCosine,           // Swin's: t < w: wl + t(lr−wl)/w, then min + ½(lr−min)(1 + cos π(t−w)/(T−w))
  kCosineAnnealing,  // CosineAnnealingWarmup: min(1, (t+1)/w)·lr for t < w, then ½·lr(1 + cos π(t−w)/(T−w))
};

// Two clocks tell where an update stands. One counts the updates of the run: it is meant by what the user tells in
// updates. The other counts the updates that the present batch would have made to come as far in the epochs; it is
// meant by what is told in epochs or as a share of the run. They are the same until the global batch changes (`shift`).
struct ScheduleOptions {
  Schedule kind = Schedule::kCosine;
  float lr = 1e-3f;
  float warmup_lr = 0;  // wl: where the warm-up starts; it rises linearly to lr over `warmup` updates (every kind)
  float min_lr = 0;     // linear and cosine
  int64_t warmup = 0;   // w, updates
  std::vector<int64_t> milestones;  // multistep: updates, ascending
  int64_t step_size = 1;            // step: updates
  float gamma = 0.1f;               // multistep, step
  std::optional<int64_t> interval;  // updates for which a rate is held: those of an epoch make the schedule per epoch
  // After a changed global batch: update i of the run is update i − shift of the epochs' clock.
  int64_t shift = 0;
  bool warmup_by_epochs = true;  // the warm-up's clock
  bool decay_by_epochs = true;   // the clock of linear and cosine
  bool falls_by_epochs = false;  // of milestones and steps: where they were told in epochs or shares of them
  // Updates of the run before the batch changed (0: it is that of the start), and before the epoch in which it did.
  int64_t changed_at = 0, epoch_began = 0;
};

// "constant", "multistep", "step", "linear", "cosine", "cosine_annealing"; else InvalidArgument with a suggestion.
StatusOr<Schedule> ParseSchedule(const std::string& name);

// The warm-up in updates: "500" updates, "20e" epochs, "0.3" of the run. InvalidArgument for anything else and for more
// than `steps`.
StatusOr<int64_t> ParseWarmup(const std::string& text, int64_t steps, int64_t steps_per_epoch);

// The rate of each update 0 … steps−1 of the run. Requires a step_size of 1 or more, and such an interval. With an
// interval, t, w and T count intervals, w in fractions of one; a warm-up from 0 is then (t+1)/(w+1)·lr, so that no
// interval passes without training; intervals begin where the epochs' clock says. Never above lr where warmup_lr,
// min_lr ≤ lr and gamma ≤ 1.
std::vector<float> LearningRateTable(const ScheduleOptions& options, int64_t steps);

// --scale_lr: rates grow with the global batch (data-parallel ranks × batch × accumulation), by factor ·
// batch/base_batch (Goyal et al. 2017) or factor · √(batch/base_batch).
enum class RateScaling { kNone, kLinear, kSqrt };
StatusOr<RateScaling> ParseRateScaling(const std::string& name);  // "none", "linear", "sqrt"

// Scales lr, warmup_lr and min_lr alike.
ScheduleOptions ScaleRates(ScheduleOptions options, RateScaling scaling, int64_t global_batch, int64_t base_batch,
                           float factor = 1);

}  // namespace switchyard
