// Which settings a run has and who fills what the user leaves open: the run that is resumed, the model, its recipe, the
// dataset. Not thread-safe to change.
#pragma once

#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/runtime/processes/process_map.h"
#include "core/settings/settings.h"
#include "core/train/config.h"
#include "models/model.h"

namespace switchyard {

// Those of a training run and of every model: the one table of flags, variables, files, help and --show_settings.
const SettingTable& RunTable();

// What the settings say about the model.
ModelOptions OptionsOf(const Settings& settings);

// The model's own settings, its recipe and, where there is one, what suits the dataset. Says in which global batch the
// recipe's rates are meant.
void FillFromModel(Settings& settings, const ResolvedModel& model, const Dataset* dataset);

// Makes batch_size, global_batch_size and accumulation agree on `world` ranks. A config file or checkpoint that holds
// both batches tells of a run on other ranks perhaps: its global batch is kept and divided anew. Then
// --num_microbatches, or else --microbatch_size, divides what a rank has of it into more and smaller micro-steps. True:
// --batch_size=auto, which is chosen when the device is open. InvalidArgument where the user's settings contradict each
// other, or do not divide.
StatusOr<bool> DecideBatch(Settings& settings, const ModelInfo& model, int world);

// The resolved configuration.
TrainConfig RunConfigOf(const Settings& settings, const ResolvedModel& model);

// The properties of the run that a checkpoint was saved from (nothing that names places or code is taken from there),
// beneath the settings given; its class names.
struct CheckpointSettings {
  Settings settings;
  std::vector<std::string> classes;
};
StatusOr<CheckpointSettings> SettingsOfCheckpoint(const std::string& path, const Settings& given);

// The source of --resume where `switchyard launch --max_restarts` goes on with the run that it started.
inline constexpr char kRestarted[] = "switchyard launch --max_restarts";

// The same for going on with the run that --resume names on `processes`: its global batch is kept, divided anew where
// their number changed. Only --global_batch_size changes it, with a warning; where it cannot be divided, the error says
// what would do.
StatusOr<Settings> SettingsOfResumedRun(const Settings& given, const ProcessMap& processes);

// --show_settings: prints them, on rank 0; true: that is all that was asked for.
bool ShowSettings(const Settings& settings, int rank);

}  // namespace switchyard
