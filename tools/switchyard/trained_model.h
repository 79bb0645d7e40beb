// A trained model as eval, predict and export take it up: a checkpoint of a run, with its settings, class names and
// evaluation transform, or weights alone, for which config.json, preprocessor_config.json and flags say the same.
#pragma once

#include <string>
#include <vector>

#include "core/train/weight_files.h"
#include "tools/switchyard/run_setup.h"

namespace switchyard {

struct TrainedModel {
  WeightSource weights;
  RunSetup setup;                    // without datasets
  std::vector<std::string> classes;  // by label; empty where nobody says
  bool has_transform = false;        // setup.model.evaluation came with the weights
};

// `path`: as WeightSource::Open takes it; NotFound or InvalidArgument says what is missing to build the model.
// `given` wins over what a checkpoint says.
StatusOr<TrainedModel> OpenTrainedModel(const std::string& path, const Settings& given, int world);

// Weights loaded, ready to Evaluate and Predict on `data`, whose kind decides the transform where the weights do not.
// The batch is at most the rank's share of the data. Collective.
// averaged: the weights that the run averaged (--ema).
StatusOr<std::unique_ptr<Trainer>> LoadForEvaluation(const TrainedModel& model, const Dataset& data, World& world,
                                                     bool averaged = false);

}  // namespace switchyard
