// How long a run is and which learning rate each update has. Plain data; a pure function of the settings, the size of
// the data, the number of ranks and, where a run goes on, the place that it has reached.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "core/optim/schedule.h"
#include "core/train/config.h"

namespace switchyard {

// Where a run stands: what the record of a checkpoint holds. The device's own counter of updates is state "update"; it
// differs from data_step after updates that were left out. An epoch's updates differ after the global batch was
// changed, so that only epoch and batch say where in the data the run is.
struct RunPosition {
  int64_t data_step = 0;            // updates begun
  int64_t epoch = 0;                // of the next batch
  int64_t batch = 0;                // the next batch's index in its epoch
  std::optional<double> best;       // of the task's best() metric, over all evaluations
  bool evaluation_pending = false;  // the run was stopped where an evaluation was due
  std::set<int64_t> bad_samples;    // skipped by this rank, indices of the training data
};

inline int64_t SamplesPerUpdate(const TrainConfig& config, int world) {
  return int64_t{config.batch_size} * world * config.accumulation;
}

struct Timetable {
  int64_t updates_per_epoch = 0;  // whole updates without padding, so that it is the same on any number of ranks
  int64_t updates = 0;            // of the run
  ScheduleOptions schedule;       // rates scaled, times in updates
  std::vector<float> rates;       // by update

  // InvalidArgument where the samples do not fill one update.
  static StatusOr<Timetable> Of(const TrainConfig& config, int64_t samples, int world);

  // Where epochs decide the run's length, its schedule follows them. After a changed global batch `data_step` updates
  // lie behind where this batch would have made another number of them: the rest of the table moves there. What is
  // told in updates does not move: milestones and steps, and a warm-up that is over.
  void GoOnFrom(const RunPosition& position, int accumulation);
};

}  // namespace switchyard
