// The training loop: updates over the loader's batches until the run's end or a signal, and after each update what is
// due: a line of the log, an evaluation, a checkpoint. Collective: all ranks run it with equal settings, and each comes
// to the same end. One run per object; not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/data/loader.h"
#include "core/train/gradient_watch.h"
#include "core/train/keeping.h"
#include "core/train/recording.h"
#include "core/train/stopping.h"
#include "core/train/timetable.h"
#include "core/train/watching.h"

namespace switchyard {

class TrainingLoop {
 public:
  // What it works with and does not own; all outlive it.
  struct Parts {
    const TrainConfig& config;
    const Timetable& timetable;
    const Task& task;
    Engine& engine;
    Loader& loader;
    Keeping& keeping;
    GradientWatch& gradients;
    RunPosition& position;  // where it begins; moves with the run
    std::function<StatusOr<EvaluationResult>(const StopAsked& stops)> evaluate;
    std::function<StatusOr<std::vector<Example>>(int count)> examples;  // what the model makes of some samples
    std::string title;                                                  // of the loss curve
    std::function<Status(const std::string& run_folder)> began;         // called on rank 0, if there is one
  };
  explicit TrainingLoop(Parts parts) : parts_(std::move(parts)), recording_(parts_.engine, parts_.config.profile) {}

  StatusOr<TrainingResult> Run();

 private:
  // The updates since the last line of the log.
  struct Interval {
    double seconds = 0, data_wait = 0, comm_wait_ms = 0;
    int64_t updates = 0;
  };

  Status Start();
  Status CatchUp();     // on the evaluation that was due where the run was stopped
  bool Logged() const;  // is the update that comes next?
  // One update from the loader; losses: one per micro-step, only if `logged`: that waits. False: the run is to end, and
  // stands where the update began.
  StatusOr<bool> Update(bool logged, Stopping* stopping, std::vector<double>* losses);
  Status StopWithinUpdate();
  Status Log(const std::vector<double>& losses, bool left_out);
  Status AfterUpdate(bool stop);
  // Is it the best so far? Cancelled: the run is to end, and the evaluation is still to be done.
  StatusOr<bool> Evaluate(int64_t epoch);
  StatusOr<EvaluationResult> EvaluateUntilStopped();
  void Interrupt();
  Status Save(bool best);
  StatusOr<TrainingResult> Finish();

  int64_t StepOfEpoch() const { return parts_.position.batch / parts_.config.accumulation; }
  int64_t PerUpdate() const { return SamplesPerUpdate(parts_.config, parts_.engine.world().data_size()); }

  const Parts parts_;
  std::unique_ptr<Watching> watching_;  // of rank 0
  Recording recording_;                 // with --profile
  Interval interval_;
  TrainingResult result_;
  int64_t end_epoch_ = 0, evaluated_at_ = -1;
  int64_t trained_ = 0;         // updates, here
  int64_t skipped_before_ = 0;  // where the run was taken up
  uint64_t most_memory_ = 0;    // that a rank has of its device, bytes
};

}  // namespace switchyard
