// What a checkpoint's record, state.json, says of a run beside its tensors: what it is and where it stands. Not
// thread-safe.
#pragma once

#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/train/checkpoint.h"
#include "core/train/evaluation.h"
#include "core/train/timetable.h"
#include "core/train/trainable_model.h"
#include "core/train/world.h"

namespace switchyard {

class CheckpointRecord {
 public:
  // All must outlive it. train: the training data, whose checksum is computed once, on rank 0.
  CheckpointRecord(const TrainConfig& config, const TrainableModel& model, const Task& task, const Dataset& train,
                   const World& world)
      : config_(config), model_(model), task_(task), train_(train), world_(world) {}

  // Of rank 0. updates_per_epoch: an epoch that is over is the next one's beginning, where any global batch can go on.
  // evaluation: of these weights; else empty.
  StatusOr<nlohmann::json> Of(const RunPosition& position, int64_t updates_per_epoch,
                              const EvaluationResult& evaluation);

  // Where the run stands whose checkpoint it is. InvalidArgument where that run is another one: another model,
  // optimizer or task, or a global batch that does not reach its place in the data; DataLoss where the record is none.
  StatusOr<RunPosition> PositionIn(const LoadedCheckpoint& checkpoint);

 private:
  Status CheckSameRun(const LoadedCheckpoint& checkpoint);
  StatusOr<std::optional<double>> BestIn(const LoadedCheckpoint& checkpoint) const;

  const TrainConfig& config_;
  const TrainableModel& model_;
  const Task& task_;
  const Dataset& train_;
  const World& world_;
  std::optional<uint32_t> data_checksum_;
};

}  // namespace switchyard
