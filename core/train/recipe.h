// Optimizer and schedule of a run, from its settings: which of them contradict each other, and the schedule as the run
// follows it. Thread-safe: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/optim/schedule.h"
#include "core/train/config.h"

namespace switchyard {

// Settings that contradict each other are InvalidArgument and say what to do.
Status CheckRecipe(const TrainConfig& config);

// Of a resolved configuration: rates scaled by --scale_lr for `world` ranks, times in updates.
StatusOr<ScheduleOptions> ScheduleOptionsOf(const TrainConfig& config, int64_t updates, int64_t updates_per_epoch,
                                            int world);

bool HasWarmup(const TrainConfig& config);
// The update after which the rate of multistep and step first falls; nullopt: there is none. Of a checked recipe.
std::optional<int64_t> FirstFall(const TrainConfig& config, int64_t updates, int64_t updates_per_epoch);
// Of multistep, each of them; else none.
std::vector<int64_t> FallsOfMilestones(const TrainConfig& config, int64_t updates, int64_t updates_per_epoch);

}  // namespace switchyard
