#include "core/train/loaders.h"

#include <cstdlib>

namespace switchyard {
namespace {

StatusOr<std::vector<float>> Numbers(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<float> numbers;
  for (const std::string& word : words) {
    char* end = nullptr;
    numbers.push_back(std::strtof(word.c_str(), &end));
    if (word.empty() || *end != '\0')
      return InvalidArgument("--{}: expected numbers separated by commas, found {}", flag, word);
  }
  return numbers;
}

StatusOr<Transform> MakeTransform(const TrainConfig& c, const EvaluationTransform& evaluation, const Dataset& data,
                                  bool train) {
  TransformOptions o;
  o.evaluation = evaluation;
  o.train = train;
  o.augmentation = data.augmentation();
  if (c.augmentation) {
    SY_ASSIGN_OR_RETURN(o.augmentation, ParseAugmentation(*c.augmentation));
  }
  o.brightness = o.contrast = o.saturation = c.color_jitter;
  o.seed = c.seed;
  return Transform::Create(o);
}

}  // namespace

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
    SY_ASSIGN_OR_RETURN(e.mean, Numbers("mean", c.mean));
  }
  if (!c.std.empty()) {
    SY_ASSIGN_OR_RETURN(e.std, Numbers("std", c.std));
  }
  if (e.image_size != model.image_size || e.channels != model.channels) {
    return InvalidArgument("the evaluation transform makes images of {0} x {0} x {1}, but {2} takes {3} x {3} x {4}",
                           e.image_size, e.channels, model.name, model.image_size, model.channels);
  }
  SY_RETURN_IF_ERROR(Check(e));
  return e;
}

StatusOr<std::unique_ptr<Loader>> MakeLoader(const TrainConfig& c, const EvaluationTransform& evaluation,
                                             const Dataset& data, const World& world, bool train) {
  SY_ASSIGN_OR_RETURN(const Transform transform, MakeTransform(c, evaluation, data, train));
  LoaderOptions o;
  o.batch_size = c.batch_size;
  o.train = train;
  o.rank = world.rank();
  o.world = world.size();
  o.seed = c.seed;
  o.workers = c.workers;
  o.prefetch = c.prefetch;
  o.max_bad_samples = c.max_bad_samples;
  return Loader::Create(data, transform, o);
}

}  // namespace switchyard
