// From settings to a run: the model and the recipe that fill what the settings leave open, the datasets, and the model
// as a Trainer wants it. Shared by train, eval, predict, bench, explain and ops.
#pragma once

#include <memory>
#include <string>

#include "core/data/dataset.h"
#include "core/train/trainer.h"
#include "models/model.h"

namespace switchyard {

struct RunSetup {
  TrainConfig config;  // resolved: nothing left open
  ResolvedModel resolved;
  TrainableModel model;
  std::unique_ptr<Dataset> train, validation;
};

// What the settings say about the model.
ModelOptions OptionsOf(const TrainConfig& config);
// The model and the recipe; channels and classes come from `dataset` where it is given (else from the settings or the
// model).
StatusOr<RunSetup> SetUpModel(const TrainConfig& settings, const Dataset* dataset, int world);
// Opens both splits too. An unknown dataset, model or device is reported before anything slow is done.
StatusOr<RunSetup> SetUpRun(const TrainConfig& settings, const ProcessMap& processes);
// --batch_size=auto: the largest power of two that fits, now that the device is open. Collective.
Status ChooseBatch(RunSetup& setup, World& world);
WorldRequest WorldRequestOf(const TrainConfig& config);

// The properties of the run that a checkpoint was saved from (nothing that names places or code is taken from there),
// overridden by the flags given; its class names.
struct CheckpointSettings {
  TrainConfig config;
  std::vector<std::string> classes;
};
StatusOr<CheckpointSettings> SettingsOfCheckpoint(const std::string& path);
// The same for going on with that run on `processes`: its global batch is kept, divided anew where their number
// changed. Only --global_batch_size changes it, with a warning; where it cannot be divided, the error says what would
// do.
StatusOr<TrainConfig> SettingsOfResumedRun(const std::string& path, const ProcessMap& processes);

}  // namespace switchyard
