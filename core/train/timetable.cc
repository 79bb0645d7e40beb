#include "core/train/timetable.h"

#include <algorithm>

#include "core/train/recipe.h"

namespace switchyard {
namespace {

bool ToldInUpdates(const std::string& warmup) { return warmup.find_first_of(".e") == std::string::npos; }

// What a change of the global batch or of the data makes of a course: the run stands `of_epoch` samples into an epoch.
StatusOr<Course> Changed(const TrainConfig& config, int64_t samples, const RunPosition& at, int64_t of_epoch,
                         int64_t per_update) {
  const Course& before = at.course;
  const int64_t per_epoch = before.samples / before.samples_per_update, behind = at.data_step - before.shift;
  const bool again_in_this_epoch = before.changed_at > 0 && (before.changed_at - before.shift) / per_epoch == at.epoch;
  // A warm-up that is longer than the run, which ParseWarmup refuses, is not over.
  const auto warmup = ParseWarmup(config.warmup, config.steps.value_or(per_epoch * config.epochs), per_epoch);
  const int64_t clock = ToldInUpdates(config.warmup) ? at.data_step : behind;
  if (samples != before.samples && of_epoch > 0 && of_epoch / per_update >= samples / per_update) {
    return InvalidArgument(
        "no update of {} images is left in epoch {}: the run stands {} images into it, and the training data are {}; "
        "go on from a checkpoint at the end of an epoch, or give the {} images that it was trained on with --data",
        per_update, at.epoch + 1, of_epoch, samples, before.samples);
  }
  return Course{
      .samples_per_update = per_update,
      .samples = samples,
      .changed_at = at.data_step,
      .shift = at.data_step - at.epoch * (samples / per_update) - of_epoch / per_update,
      .epoch_began = again_in_this_epoch ? before.epoch_began : at.data_step - of_epoch / before.samples_per_update,
      .warm = before.warm || (warmup.ok() && clock >= *warmup)};
}

}  // namespace

StatusOr<Timetable> Timetable::Of(const TrainConfig& config, int64_t samples, int world, const RunPosition& from) {
  Timetable table;
  const int64_t per_update = SamplesPerUpdate(config, world);
  table.updates_per_epoch = samples / per_update;
  if (table.updates_per_epoch == 0) {
    return InvalidArgument(
        "{} training samples are fewer than one update takes ({} = batch_size {} x {} rank{} x accumulation {}); lower "
        "--batch_size{}",
        samples, per_update, config.batch_size, world, world == 1 ? "" : "s", config.accumulation,
        config.accumulation > 1 ? " or --accumulation" : "");
  }
  table.course = from.course;
  if (from.course.samples_per_update == 0) {
    table.course.samples_per_update = per_update;
    table.course.samples = samples;
  } else if (from.course.samples_per_update != per_update || from.course.samples != samples) {
    SY_ASSIGN_OR_RETURN(table.course,
                        Changed(config, samples, from, from.batch * config.batch_size * world, per_update));
  }
  const Course& course = table.course;
  const int64_t of_epochs = table.updates_per_epoch * config.epochs;
  SY_ASSIGN_OR_RETURN(ScheduleOptions schedule,
                      ScheduleOptionsOf(config, config.steps.value_or(of_epochs), table.updates_per_epoch, world));
  schedule.shift = course.shift;
  schedule.changed_at = course.changed_at;
  schedule.epoch_began = course.epoch_began;
  schedule.decay_by_epochs = !config.steps;
  schedule.warmup_by_epochs = config.steps ? config.warmup.ends_with('e') : !ToldInUpdates(config.warmup);
  if (course.warm) {
    const int64_t over = schedule.warmup_by_epochs ? course.changed_at - course.shift : course.changed_at;
    schedule.warmup = std::min(schedule.warmup, over);
  }
  table.updates = config.steps.value_or(std::max(of_epochs + course.shift, from.data_step));
  constexpr int64_t kMostUpdates = int64_t{1} << 24;  // what the device's counter, an f32, counts one by one
  if (table.updates > kMostUpdates) {
    return InvalidArgument(
        "a run makes at most {} updates, and this one would make {}; set fewer --epochs or --steps, or a larger batch",
        kMostUpdates, table.updates);
  }
  table.schedule = schedule;
  table.rates = LearningRateTable(table.schedule, table.updates);
  return table;
}

}  // namespace switchyard
