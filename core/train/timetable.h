// How long a run is and which learning rate each update has: a pure function of the settings, the size of the data, the
// number of ranks and, where a run goes on, the place that it has reached. A run that is taken up twice has the
// timetable of one that is taken up once: what another global batch or other data did to it is kept (Course). Plain
// data.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "core/optim/schedule.h"
#include "core/train/config.h"

namespace switchyard {

// How the updates of a run lie in its epochs. With one global batch and the same data all is 0 but the first two.
struct Course {
  int64_t samples_per_update = 0;  // since the last change; 0: the run has not begun
  int64_t samples = 0;             // of the training data, since then
  int64_t changed_at = 0;          // updates begun before that change
  int64_t shift = 0;        // update i stands where these two alone would have made i − shift updates to come there
  int64_t epoch_began = 0;  // updates begun before the epoch in which the change was
  bool warm = false;        // the warm-up was over at the change, and stays over
};

// Updates that were left out, because their gradients were not finite.
struct SkippedUpdates {
  int64_t count = 0;
  int64_t in_a_row = 0;  // the last of them, with no update made since
};

// Where a run stands: what the record of a checkpoint holds. The device's own counter of updates is state "update"; it
// differs from data_step after updates that were left out. An epoch's updates differ after the global batch was
// changed, so that only epoch and batch say where in the data the run is.
struct RunPosition {
  int64_t data_step = 0;            // updates begun
  int64_t epoch = 0;                // of the next batch
  int64_t batch = 0;                // the next batch's index in its epoch
  std::optional<double> best;       // of the task's best() metric, over all evaluations
  bool evaluation_pending = false;  // the run was stopped where an evaluation was due
  SkippedUpdates skipped;
  Course course;
  std::set<int64_t> bad_samples;  // skipped by this rank, indices of the training data
};

inline int64_t SamplesPerUpdate(const TrainConfig& config, int world) {
  return int64_t{config.batch_size} * world * config.accumulation;
}

struct Timetable {
  int64_t updates_per_epoch = 0;  // whole updates without padding, so that it is the same on any number of ranks
  int64_t updates = 0;            // of the run
  ScheduleOptions schedule;       // rates scaled, times in updates
  std::vector<float> rates;       // by update

  Course course;

  // `from`: where the run begins or goes on. Where the global batch or the number of samples is another than there, the
  // rest of the run is divided into updates anew: what is told in updates (--steps, milestones, "500" of warm-up) does
  // not move, what is told in epochs or shares follows the epochs. InvalidArgument where the samples do not fill one
  // update, or end before the place in an epoch where the run stands.
  static StatusOr<Timetable> Of(const TrainConfig& config, int64_t samples, int world, const RunPosition& from = {});
};

}  // namespace switchyard
