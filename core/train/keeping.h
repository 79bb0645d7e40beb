// Keeping a run and taking it up again: its folder, what a checkpoint holds, and how it is put back. Open, Restore and
// OpenRunFolder in this order, the first two only where the run goes on; then Save as often as the loop wishes. Not
// thread-safe; calls are collective unless they say otherwise.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/train/checkpoint_record.h"
#include "core/train/engine.h"
#include "core/train/run_folder.h"
#include "core/train/state_copy.h"
#include "core/train/timetable.h"

namespace switchyard {

class Keeping {
 public:
  // All must outlive it.
  Keeping(Engine& engine, const TrainConfig& config, const TrainableModel& model, const Task& task,
          const Dataset& train)
      : engine_(engine),
        config_(config),
        model_(model),
        task_(task),
        train_(train),
        record_(config, model, task, train, engine.world()),
        copy_(engine),
        file_layout_(model) {}

  // Where config.resume was saved; errors as of CheckpointRecord::PositionIn. Needs no plans. Local.
  StatusOr<RunPosition> Open();
  // Weights and state of what Open found. All ranks call it.
  Status Restore();

  // A folder for the run, or its own where it goes on in one; locked. Where state lies in host memory, that of the copy
  // that Save makes is taken before, so that no checkpoint is refused it later. All ranks come to the same verdict.
  // Where ranks have parts of the state, each will write its own, if all can write to the folder; else rank 0 warns,
  // and gathers all.
  Status OpenRunFolder();
  const std::string& run_folder() const { return run_folder_; }

  // Position, updates_per_epoch and evaluation as of CheckpointRecord::Of. Begins to save and returns: reading the state
  // and writing go on beside the steps. Waits first while an earlier checkpoint is still being written, and
  // returns its error, on all ranks where several write; parameters that are not finite are such an error. sync_log: of
  // rank 0, as in SaveOptions.
  Status Save(const RunPosition& position, int64_t updates_per_epoch, bool best, const EvaluationResult& evaluation,
              std::function<Status()> sync_log);
  // Is what a run is at this update in its folder: saved here, or where it was taken up in the folder? Local.
  bool Holds(int64_t data_step) const { return held_ == data_step; }
  Status Finish();  // waits until all is written, and gives the folder free

 private:
  Status LimitLossScale();
  Status MakeOrTakeUpRunFolder();
  Status ChooseWriters();
  Status Begin(CheckpointContents contents, const SaveOptions& options);  // of rank 0, which writes all
  Status BeginShared(CheckpointContents contents, const SaveOptions& options);
  bool owner() const { return engine_.world().rank() == 0; }

  Engine& engine_;
  const TrainConfig& config_;
  const TrainableModel& model_;
  const Task& task_;
  const Dataset& train_;
  CheckpointRecord record_;
  std::optional<LoadedCheckpoint> resumed_;  // from Open to Restore
  std::string resumed_from_;                 // its folder; "": a new run
  std::string run_folder_;
  std::optional<int64_t> held_;               // the last update that is saved in it, as far as this run knows
  std::optional<RunFolderLock> lock_;         // of rank 0, while it trains
  StateCopy copy_;                            // what writer_ writes from
  FileLayout file_layout_;                    // of model_; of the thread that writes
  std::vector<int> writers_;                  // ranks that write a checkpoint together, 0 first; none: rank 0 gathers
  std::unique_ptr<CheckpointWriter> writer_;  // of rank 0, and of all where there are writers_
};

}  // namespace switchyard
