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

// A sentence for each setting that the user chose and that changes nothing beside the others, in a run of `updates`.
// chosen(name): did the user choose this one?
std::vector<std::string> SettingsWithoutEffect(const TrainConfig& config, int64_t updates, int64_t updates_per_epoch,
                                               absl::FunctionRef<bool(const std::string& setting)> chosen);

}  // namespace switchyard
