// Optimizer and schedule of a run, from its settings: which of them contradict each other, which have no effect, and
// the schedule as the run follows it. Thread-safe: pure functions.
#pragma once

#include <absl/functional/function_ref.h>

#include <string>
#include <vector>

#include "core/optim/schedule.h"
#include "core/train/config.h"

namespace switchyard {

// Settings that contradict each other are InvalidArgument and say what to do.
Status CheckRecipe(const TrainConfig& config);

// Of a resolved configuration: rates scaled by --scale_lr for `world` ranks, times in updates.
StatusOr<ScheduleOptions> ScheduleOptionsOf(const TrainConfig& config, int64_t updates, int64_t updates_per_epoch,
                                            int world);

// What decides about the effect of settings beside other settings.
struct RunFacts {
  int64_t updates = 0, updates_per_epoch = 0;
  int ranks = 1;
  bool batch_norms = true;  // the model has some
};
// A sentence for each setting that the user chose and that changes nothing in such a run. chosen(name): did the user
// choose this one?
std::vector<std::string> SettingsWithoutEffect(const TrainConfig& config, const RunFacts& facts,
                                               absl::FunctionRef<bool(const std::string& setting)> chosen);

}  // namespace switchyard
