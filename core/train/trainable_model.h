// A model as a run sees it. Plain data; what it is given by reference must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/evaluation_transform.h"
#include "core/data/rand_augment.h"
#include "core/data/random_erasing.h"
#include "core/graph/host_tensor.h"
#include "core/graph/passes/rewrite.h"
#include "core/nn/context.h"
#include "core/runtime/device/device.h"
#include "core/train/config.h"
#include "core/train/task.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// images (B, H, W, C) or volumes (B, D, H, W, C), f32 → what the task reads of it: logits (B, classes), or of each
// place (B, …, classes)
using ModelFunction = std::function<Value(nn::Context&, const Value& images)>;

struct TrainableModel;
// Makes the task of a run from its settings. can_prepare: what the device can do; none: everything.
using TaskFactory = std::function<StatusOr<std::unique_ptr<Task>>(
    const TrainConfig& config, const TrainableModel& model, const CanPrepare& can_prepare)>;
StatusOr<std::unique_ptr<Task>> MakeClassification(const TrainConfig& config, const TrainableModel& model,
                                                   const CanPrepare& can_prepare);

StatusOr<std::unique_ptr<Task>> MakeSegmentation(const TrainConfig& config, const TrainableModel& model,
                                                 const CanPrepare& can_prepare);

// From tensors by name to the same elements under other names and in other layouts.
using Renaming = std::function<HostTensors(HostTensors)>;

struct TrainableModel {
  std::string name;
  nlohmann::json architecture;  // what makes two checkpoints compatible: name and sizes
  int image_size = 0, channels = 3, classes = 10;
  Shape input_shape;  // of a sample, without the batch; empty: (image_size, image_size, channels)
  ModelFunction build;
  // Between the graph's weights and those of files: names and layouts, of any of the weights or of what has their
  // shapes (moments); what is none of them passes through. Absent: both are the same.
  Renaming to_file, from_file;
  // from_file of any program's naming, and a check that all weights are there and fit; reset_head: but the classifier.
  std::function<StatusOr<HostTensors>(HostTensors, bool reset_head)> import_weights;
  // What a checkpoint carries for programs of others. Absent: nothing.
  std::function<StatusOr<ForeignConfig>(const EvaluationTransform&, const std::vector<std::string>& class_names)>
      for_others;
  // What evaluation does to an image, where the config does not say; absent: what suits the dataset, mean and std 0.5.
  std::optional<EvaluationTransform> evaluation;
  TaskFactory task = MakeClassification;
};

Shape InputShapeOf(const TrainableModel& model);

// For tasks of masks: InvalidArgument where the settings ask for what only labelled images can be put through.
Status CheckForMasks(const TrainConfig& config);

// What --auto_augment and --erase_… say; InvalidArgument names the flag.
StatusOr<std::optional<RandAugment>> RandAugmentOf(const TrainConfig& config);
StatusOr<RandomErasing> ErasingOf(const TrainConfig& config);

// Whether --augmentation also mirrors images in training. Of a run that does not name one, the loader does what its
// dataset says.
StatusOr<bool> MirrorsInTraining(const TrainConfig& config);

// Whether the classes of a checkpoint's record are those of the data; InvalidArgument says what differs.
Status CheckClassNames(const nlohmann::json& record, const Dataset& train, const std::string& folder);

// Of a setting that is a list of numbers as texts.
StatusOr<std::vector<float>> NumbersOf(const std::string& flag, const std::vector<std::string>& words);

// model.evaluation, else with the data's crop ratio, and what the settings say beyond it.
StatusOr<EvaluationTransform> EvaluationOf(const TrainConfig& config, const TrainableModel& model,
                                           float crop_ratio = 1);

// The task of a run on `device`; null: on one that can do everything.
StatusOr<std::unique_ptr<Task>> TaskOf(const TrainConfig& config, const TrainableModel& model, Device* device);

}  // namespace switchyard
