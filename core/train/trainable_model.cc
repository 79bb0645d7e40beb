#include "core/train/trainable_model.h"

#include <cstdlib>
#include <utility>

#include "core/base/json.h"
#include "core/plan/kernels.h"

namespace switchyard {

StatusOr<std::vector<float>> NumbersOf(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<float> numbers;
  for (const std::string& word : words) {
    char* end = nullptr;
    numbers.push_back(std::strtof(word.c_str(), &end));
    if (word.empty() || *end != '\0')
      return InvalidArgument("--{}: expected numbers separated by commas, found {}", flag, word);
  }
  return numbers;
}

Shape InputShapeOf(const TrainableModel& model) {
  return model.input_shape.empty() ? Shape{model.image_size, model.image_size, model.channels} : model.input_shape;
}

Status CheckForMasks(const TrainConfig& c) {
  for (const auto& [name, given] : {std::pair("mixup", c.mixup > 0), std::pair("cutmix", c.cutmix > 0)}) {
    if (given) return InvalidArgument("--{} is for labelled images: masks cannot follow it; leave it out", name);
  }
  return OkStatus();
}

StatusOr<std::optional<RandAugment>> RandAugmentOf(const TrainConfig& c) {
  if (!c.auto_augment) return std::optional<RandAugment>();
  StatusOr<RandAugment> policy = ParseRandAugment(*c.auto_augment);
  if (!policy.ok()) return Annotate(policy.status(), "--auto_augment");
  return std::optional<RandAugment>(*policy);
}

StatusOr<RandomErasing> ErasingOf(const TrainConfig& c) {
  RandomErasing erasing{.probability = c.erase_prob, .max_count = c.erase_count};
  SY_ASSIGN_OR_RETURN(erasing.mode, ParseEraseMode(c.erase_mode));
  return erasing;
}

StatusOr<bool> MirrorsInTraining(const TrainConfig& c) {
  if (!c.augmentation) return false;
  SY_ASSIGN_OR_RETURN(const Augmentation augmentation, ParseAugmentation(*c.augmentation));
  return Mirrors(augmentation);
}

Status CheckClassNames(const nlohmann::json& record, const Dataset& train, const std::string& folder) {
  const nlohmann::json found = record.value("classes", nlohmann::json()), expected = train.class_names();
  if (found == expected) return OkStatus();
  return InvalidArgument("{} was trained on the classes {}, the data has {}; give the run's own data with --data",
                         folder, Excerpt(found), Excerpt(expected));
}

StatusOr<EvaluationTransform> EvaluationOf(const TrainConfig& c, const TrainableModel& model, float crop_ratio) {
  EvaluationTransform e =
      model.evaluation.value_or(EvaluationTransform{.image_size = model.image_size,
                                                    .channels = model.channels,
                                                    .resize = ResizeForCrop(model.image_size, crop_ratio)});
  if (c.crop_ratio) e.resize = ResizeForCrop(e.image_size, *c.crop_ratio);
  if (c.interpolation) {
    SY_ASSIGN_OR_RETURN(e.interpolation, ParseInterpolation(*c.interpolation));
  }
  if (!c.mean.empty()) {
    SY_ASSIGN_OR_RETURN(e.mean, NumbersOf("mean", c.mean));
  }
  if (!c.std.empty()) {
    SY_ASSIGN_OR_RETURN(e.std, NumbersOf("std", c.std));
  }
  if (e.image_size != model.image_size || e.channels != model.channels) {
    return InvalidArgument("the evaluation transform makes images of {0} x {0} x {1}, but {2} takes {3} x {3} x {4}",
                           e.image_size, e.channels, model.name, model.image_size, model.channels);
  }
  const auto fits = [&](const std::vector<float>& numbers) {
    return numbers.size() == 1 || numbers.size() == static_cast<size_t>(e.channels);
  };
  if (!fits(e.mean) || !fits(e.std)) {
    return InvalidArgument(
        "--mean has {} and --std {} numbers, but images have {} {}; those that a model brings are meant for its own: "
        "give one number of each, as --mean=0.5 --std=0.5, or one per channel",
        e.mean.size(), e.std.size(), e.channels, e.channels == 1 ? "channel" : "channels");
  }
  SY_RETURN_IF_ERROR(Check(e));
  return e;
}

StatusOr<std::unique_ptr<Task>> TaskOf(const TrainConfig& config, const TrainableModel& model, Device* device) {
  if (device == nullptr) return model.task(config, model, [](const Graph&, const Node&) { return true; });
  KernelOptions options;
  options.deterministic = config.deterministic;
  KernelCache kernels(*device, options);
  SY_ASSIGN_OR_RETURN(auto task, model.task(config, model, kernels.Predicate()));
  SY_RETURN_IF_ERROR(kernels.status());
  return task;
}

}  // namespace switchyard
