#include "core/train/timetable.h"

#include <algorithm>

#include "core/train/recipe.h"

namespace switchyard {

StatusOr<Timetable> Timetable::Of(const TrainConfig& config, int64_t samples, int world) {
  Timetable table;
  const int64_t per_update = SamplesPerUpdate(config, world);
  table.updates_per_epoch = samples / per_update;
  if (table.updates_per_epoch == 0) {
    return InvalidArgument(
        "{} training samples are fewer than one update takes ({} = batch_size {} x {} ranks x accumulation {}); lower "
        "--batch_size",
        samples, per_update, config.batch_size, world, config.accumulation);
  }
  table.updates = config.steps.value_or(table.updates_per_epoch * config.epochs);
  SY_ASSIGN_OR_RETURN(table.schedule, ScheduleOptionsOf(config, table.updates, table.updates_per_epoch, world));
  table.rates = LearningRateTable(table.schedule, table.updates);
  return table;
}

void Timetable::GoOnFrom(const RunPosition& position, int accumulation) {
  const int64_t done = position.data_step;
  const int64_t behind = position.epoch * updates_per_epoch + position.batch / accumulation;
  updates = done + std::max<int64_t>(0, updates - behind);
  if (behind == done || rates.empty()) return;
  if (schedule.kind == Schedule::kMultistep || schedule.kind == Schedule::kStep) {
    // A warm-up that is over stays over; else its end comes as many updates from here as this batch had left.
    if (schedule.warmup > done) schedule.warmup = std::max<int64_t>(0, schedule.warmup + done - behind);
    rates = LearningRateTable(schedule, updates);  // of which a run of this batch alone makes fewer, or more
    return;
  }
  std::vector<float> moved(static_cast<size_t>(updates));
  const auto last = static_cast<int64_t>(rates.size()) - 1;
  const int64_t warm = std::min(schedule.warmup, done);
  for (int64_t i = 0; i < updates; ++i)
    moved[i] = rates[std::clamp<int64_t>(std::max(i - done + behind, warm), 0, last)];
  rates = std::move(moved);
}

}  // namespace switchyard
