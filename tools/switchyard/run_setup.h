// From settings to a run: the datasets, and the model as a Trainer wants it, behind what run_settings.h resolves.
// Shared by train, eval, predict, bench, explain and ops.
#pragma once

#include <memory>
#include <string>

#include "core/data/dataset.h"
#include "core/train/trainer.h"
#include "models/model.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {

// The ranks that run a command, this process's first or only one as the place of this: those of the launcher, or with
// --mode=dp one for each device that this process drives. InvalidArgument where both are asked for.
StatusOr<ProcessMap> RanksOf(const Settings& settings);

// Copies share the datasets; ranks that are threads have one each.
struct RunSetup {
  Settings settings = Settings(RunTable());  // with who said each
  TrainConfig config;                        // the same, resolved
  bool automatic_batch = false;              // config.batch_size is for ChooseBatch to say
  ResolvedModel resolved;
  TrainableModel model;
  std::shared_ptr<const Dataset> train, validation;
  std::vector<std::string> pretrained_classes;  // of --pretrained weights, by label; empty: they do not say
};

std::string ParametersText(const ResolvedModel& model);  // "5.71 M parameters", "9322 parameters"

// How many classes data may have for the model: as many as it tells apart. With one logit for each voxel of a volume,
// which says foreground or background, any number.
int MostClasses(const ResolvedModel& model);
// The model and the recipe; channels and classes come from `dataset` where it is given (else from the settings or the
// model).
StatusOr<RunSetup> SetUpModel(const Settings& settings, const Dataset* dataset, int world);
// InvalidArgument where the stages of --pp cannot run so many micro-batches: says which of what was given would do.
// given: what SetUpModel was, for so many ranks.
Status CheckMicroBatches(const Settings& given, const RunSetup& setup, int ranks);
// The training data, or null, with a warning, where they are not on this machine: nothing is fetched.
StatusOr<std::unique_ptr<Dataset>> DataAtHand(DatasetOptions options);
// Opens both splits too; for --show_settings, of data that are not here, neither. An unknown dataset, model or device is
// reported before anything slow is done.
StatusOr<RunSetup> SetUpRun(const Settings& settings, const ProcessMap& processes);
// --batch_size=auto: the largest power of two that fits, now that the device is open. Collective.
Status ChooseBatch(RunSetup& setup, World& world);
// --recompute=auto: the least that fits. Collective.
Status ChooseRecompute(RunSetup& setup, World& world);
// model: what it takes decides what is made up for it.
DatasetOptions DatasetOptionsOf(const TrainConfig& config, const ResolvedModel& model);
WorldRequest WorldRequestOf(const TrainConfig& config);

}  // namespace switchyard
