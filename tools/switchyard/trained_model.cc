#include "tools/switchyard/trained_model.h"

#include <algorithm>
#include <bit>

#include "core/base/text.h"
#include "core/train/architecture.h"
#include "core/train/fitting.h"
#include "core/train/without_effect.h"
#include "models/foreign_format.h"
#include "tools/switchyard/foreign_weights.h"

namespace switchyard {
namespace {

constexpr int kBatch = 64;  // of weights that no run tells a batch for

// How many classes the weights' head tells apart, if they have one.
std::optional<int> ClassesOf(const WeightSource& weights) {
  for (const std::string& name : HeadBiasNames()) {
    const TensorFile::Entry* const bias = weights.Find(name);
    if (bias != nullptr && bias->shape.size() == 1 && bias->shape[0] <= 1 << 24)
      return static_cast<int>(bias->shape[0]);
  }
  return std::nullopt;
}

bool Lists(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// InvalidArgument where the model is not the one that the run trained: heads, for one, change no shape, and its weights
// would load in silence. What shapes show is left to them, and images of another size are no other model.
Status CheckOfRun(const LoadedCheckpoint& checkpoint, const ModelFamily& family, const nlohmann::json& architecture) {
  const nlohmann::json of_run = checkpoint.record.value("arch", nlohmann::json::object());
  std::vector<std::string> shown_by_shapes = family.resampled;
  shown_by_shapes.insert(shown_by_shapes.end(), family.of_shapes.begin(), family.of_shapes.end());
  // Of what the model has here alone.
  nlohmann::json shared = nlohmann::json::object();
  for (const auto& field : architecture.items()) {
    if (of_run.is_object() && of_run.contains(field.key())) shared[field.key()] = of_run[field.key()];
  }
  const std::string differences =
      of_run.is_object() ? ArchitectureDifferences(shared, architecture, shown_by_shapes) : "";
  if (differences.empty()) return OkStatus();
  return InvalidArgument("{} is a checkpoint of another model: {}; leave out what the run says itself",
                         checkpoint.folder, differences);
}

}  // namespace

StatusOr<TrainedModel> OpenTrainedModel(const std::string& path, const Settings& given, int world) {
  SY_ASSIGN_OR_RETURN(WeightSource weights, WeightSource::Open(path));
  Settings settings = given;
  for (const std::string& name : NamesOfUpdates()) settings.Forget(name);  // no wrong one of them stands in the way
  std::vector<std::string> classes;
  if (weights.checkpoint() != nullptr) {
    SY_ASSIGN_OR_RETURN(const CheckpointSettings saved, SettingsOfCheckpoint(path, settings));
    settings = saved.settings;
    classes = saved.classes;
    SY_ASSIGN_OR_RETURN(const ResolvedModel named, ResolveModel({.name = *settings.Get<std::string>("model")}));
    for (const auto& [name, value] : ImpliedBy(weights, *named.info->family)) {
      if (Lists(named.info->family->of_shapes, name) && !settings.IsGiven(name))  // "auto" goes by the image size
        settings.Replace(name, value, Origin::kCheckpoint, path);
    }
    // Either batch decides the other; the run's global one was for its ranks.
    if (!settings.IsGiven("global_batch_size")) settings.Forget("global_batch_size");
  } else {
    if (weights.config().is_null() && !settings.Has("model")) {
      return InvalidArgument(
          "{}: these weights come without a run and without a config.json that says what they are; give --model, and "
          "those of its sizes that are not the standard ones (--image_size, --width, --heads …)",
          path);
    }
    SY_ASSIGN_OR_RETURN(classes, AdoptArchitecture(weights, settings));
    if (const auto count = ClassesOf(weights)) settings.Fill("classes", *count, Origin::kCheckpoint, path);
    if (!settings.Has("global_batch_size")) settings.Fill("batch_size", kBatch, Origin::kDefault);
  }
  // What is about training has no say here.
  settings.Replace("accumulation", 1, Origin::kDefault);
  for (const char* mix : {"mixup", "cutmix"}) settings.Replace(mix, 0.0, Origin::kDefault);  // which want even batches
  if (!settings.IsGiven("max_bad_samples")) settings.Forget("max_bad_samples");
  SY_ASSIGN_OR_RETURN(const std::optional<EvaluationTransform> transform, TransformBeside(weights, settings));
  SY_ASSIGN_OR_RETURN(RunSetup setup, SetUpModel(settings, nullptr, world));
  setup.config.offload = "none";  // nothing is updated, so that nothing need run on the host
  if (weights.checkpoint() != nullptr)
    SY_RETURN_IF_ERROR(CheckOfRun(*weights.checkpoint(), *setup.resolved.info->family, setup.model.architecture));
  SY_RETURN_IF_ERROR(CheckEnoughWeights(weights, setup.resolved));
  const ModelInfo& info = *setup.resolved.info;
  if (transform) {
    setup.model.evaluation = transform;
    FillFromTransform(*transform, weights, setup.settings);
    if (info.family->data == Content::kLabelledImages && transform->resize > 0) {
      const float share = static_cast<float>(transform->image_size) / static_cast<float>(transform->resize);
      setup.settings.Fill("crop_ratio", JsonOf(share), Origin::kCheckpoint, weights.path());
    }
  }
  setup.settings.Fill(info.preprocessing, Origin::kModel, info.name);
  if (classes.size() > static_cast<size_t>(MostClasses(setup.resolved))) {
    return InvalidArgument("{}: {} class names for a model of {} classes", path, classes.size(), setup.model.classes);
  }
  return TrainedModel{std::move(weights), std::move(setup), std::move(classes), transform.has_value()};
}

StatusOr<std::unique_ptr<Trainer>> LoadForEvaluation(const TrainedModel& trained, const Dataset& data, World& world,
                                                     bool averaged) {
  TrainConfig c = trained.setup.config;
  TrainableModel model = trained.setup.model;
  EvaluationTransform& transform = *model.evaluation;
  if (!trained.has_transform) transform.resize = ResizeForCrop(transform.image_size, data.crop_ratio());
  const int64_t share = std::clamp<int64_t>((data.size() + world.data_size() - 1) / world.data_size(), 1, 1 << 16);
  if (trained.setup.automatic_batch) {
    const auto limit = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(share)));
    SY_ASSIGN_OR_RETURN(c.batch_size, LargestBatch(c, model, world, limit, std::nullopt));
  }
  // No result depends on the batch, so that it may be rounded up to what --sp can divide.
  const int64_t unit = BatchUnit(c);
  c.batch_size = static_cast<int>((std::min<int64_t>(c.batch_size, share) + unit - 1) / unit * unit);
  c.global_batch_size = c.batch_size * world.data_size();
  SY_ASSIGN_OR_RETURN(auto trainer, Trainer::CreateForEvaluation(c, model, world));
  SY_RETURN_IF_ERROR(trainer->LoadWeights(trained.weights.path(), false, averaged));
  return trainer;
}

}  // namespace switchyard
