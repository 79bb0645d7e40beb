#include "tools/switchyard/run_setup.h"

#include <algorithm>

#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/train/batch_division.h"
#include "core/train/recipe.h"
#include "models/hugging_face.h"
#include "models/weights.h"
#include "tools/switchyard/foreign_weights.h"
#include "tools/switchyard/settings.h"

namespace switchyard {
namespace {

// The recipe fills what was left open, and the batch is made consistent: global = batch · ranks · accumulation.
Status ApplyRecipe(TrainConfig& c, const Recipe& recipe, int world) {
  if (c.epochs == 0) c.epochs = recipe.epochs;
  const int rounds = world * c.accumulation;
  if (c.global_batch_size > 0) {
    if (c.batch_size == TrainConfig::kAutoBatch)
      return InvalidArgument("--batch_size=auto and --global_batch_size={} both decide the batch; give one of them",
                             c.global_batch_size);
    if (c.batch_size > 0 && int64_t{c.batch_size} * rounds != c.global_batch_size) {
      return InvalidArgument(
          "--batch_size={} x {} ranks x accumulation {} = {}, but --global_batch_size={}; give one of them",
          c.batch_size, world, c.accumulation, int64_t{c.batch_size} * rounds, c.global_batch_size);
    }
    if (c.global_batch_size % rounds != 0) {
      return InvalidArgument("--global_batch_size={} is no multiple of {} ranks x accumulation {}", c.global_batch_size,
                             world, c.accumulation);
    }
    c.batch_size = c.global_batch_size / rounds;
  }
  if (c.batch_size == 0) c.batch_size = std::max(1, recipe.global_batch / rounds);
  if (c.batch_size != TrainConfig::kAutoBatch)
    c.global_batch_size = c.batch_size * rounds;  // auto: once the device is known
  if (c.lr == 0) c.lr = recipe.lr;
  if (c.warmup_lr < 0) c.warmup_lr = recipe.warmup_lr;
  if (c.min_lr < 0) c.min_lr = recipe.min_lr;
  if (c.weight_decay < 0) c.weight_decay = recipe.weight_decay;
  if (c.clip < 0) c.clip = recipe.clip;
  if (c.label_smoothing < 0) c.label_smoothing = recipe.label_smoothing;
  if (c.warmup.empty()) c.warmup = recipe.warmup;
  if (c.augmentation.empty()) c.augmentation = recipe.augmentation;
  return CheckRecipe(c);
}

Status CheckDatasetName(const std::string& name) {
  for (const DatasetInfo& info : KnownDatasets()) {
    if (info.name == name) return OkStatus();
  }
  DatasetOptions options;
  options.name = name;
  options.download = false;
  return LocateDataset(options).status();  // says what is known
}

struct SavedSettings {
  TrainConfig config;
  std::vector<std::string> classes;
};

StatusOr<SavedSettings> SavedIn(const LoadedCheckpoint& checkpoint) {
  const std::string file = checkpoint.folder + "/state.json";
  SavedSettings saved;
  auto properties = PropertiesFromJson(checkpoint.record.value("config", nlohmann::json()));
  if (!properties.ok()) return Annotate(properties.status(), file + ": config");
  saved.config = std::move(*properties);
  SY_RETURN_IF_ERROR(Annotate(ReadField(checkpoint.record, "classes", &saved.classes), file));
  return saved;
}

std::vector<std::string> Texts(const std::vector<float>& numbers) {
  std::vector<std::string> texts;
  for (const float number : numbers) texts.push_back(fmt::format("{}", number));
  return texts;
}

// World::Join chooses in earnest; this is for an early answer.
Status CheckDevice(const TrainConfig& c, const ProcessMap& processes) {
  DeviceRequest request;
  request.device = c.device;
  request.device_list = c.device_list;
  request.ranks_per_device = c.ranks_per_device;
  request.cpu_devices = c.cpu_devices;
  request.local_rank = processes.local_rank;
  request.local_world = processes.local_world;
  return ChooseDevice(request, SurveyDevices(Registry::Get(), request)).status();
}

}  // namespace

ModelOptions OptionsOf(const TrainConfig& c) {
  ModelOptions o;
  o.name = c.model;
  o.image_size = c.image_size;
  o.channels = c.channels;
  o.classes = c.classes;
  o.patch = c.patch;
  o.width = c.width;
  o.depth = c.depth;
  o.heads = c.heads;
  o.mlp_ratio = c.mlp_ratio;
  o.layer_norm_eps = c.layer_norm_eps;
  if (WasGiven("dropout") || c.dropout > 0) o.dropout = c.dropout;
  if (WasGiven("drop_path") || c.drop_path > 0) o.drop_path = c.drop_path;
  return o;
}

DatasetOptions DatasetOptionsOf(const TrainConfig& c) {
  DatasetOptions options;
  options.name = c.dataset;
  options.data = c.data;
  options.download = c.download;
  options.seed = c.seed;
  options.image_size = c.image_size;
  options.classes = c.classes;
  options.train_size = c.train_size;
  options.validation_size = c.validation_size;
  return options;
}

WorldRequest WorldRequestOf(const TrainConfig& c) {
  WorldRequest request;
  request.device = c.device;
  request.device_list = c.device_list;
  request.collective = c.collective;
  request.ranks_per_device = c.ranks_per_device;
  request.cpu_devices = c.cpu_devices;
  request.threads = c.threads;
  request.deterministic = c.deterministic;
  request.freeze_limit_ms = c.freeze_limit_ms;
  request.init_timeout_ms = c.init_timeout_ms;
  request.interpose = c.interpose;
  return request;
}

StatusOr<RunSetup> SetUpModel(const TrainConfig& settings, const Dataset* dataset, int world) {
  RunSetup setup;
  setup.config = settings;
  TrainConfig& c = setup.config;
  SY_RETURN_IF_ERROR(CheckTrainConfig(c));
  ModelOptions options = OptionsOf(c);
  if (dataset != nullptr) {
    const int classes = static_cast<int>(dataset->class_names().size());
    if (options.classes == 0) options.classes = classes;
    if (options.classes < classes)
      return InvalidArgument("--classes={}: the dataset {} has {} classes", options.classes, dataset->name(), classes);
    if (options.channels == 0) options.channels = dataset->channels();
  }
  SY_ASSIGN_OR_RETURN(setup.resolved, ResolveModel(options));
  const ModelInfo& info = *setup.resolved.info;
  const ModelOptions& o = setup.resolved.options;
  c.image_size = o.image_size;
  c.channels = o.channels;
  c.classes = o.classes;
  c.patch = o.patch;
  c.width = o.width;
  c.depth = o.depth;
  c.heads = o.heads;
  c.mlp_ratio = o.mlp_ratio;
  c.layer_norm_eps = o.layer_norm_eps;
  c.dropout = o.dropout;
  c.drop_path = o.drop_path;
  SY_RETURN_IF_ERROR(ApplyRecipe(c, info.recipe, world));

  setup.model.name = o.name;
  setup.model.image_size = o.image_size;
  setup.model.channels = o.channels;
  setup.model.classes = o.classes;
  setup.model.architecture = {{"model", o.name},          {"image_size", o.image_size},
                              {"channels", o.channels},   {"classes", o.classes},
                              {"patch", o.patch},         {"width", o.width},
                              {"depth", o.depth},         {"heads", o.heads},
                              {"mlp_ratio", o.mlp_ratio}, {"layer_norm_eps", o.layer_norm_eps}};
  EvaluationTransform evaluation;
  evaluation.image_size = o.image_size;
  evaluation.channels = o.channels;
  evaluation.resize = ResizeForCrop(o.image_size, dataset != nullptr ? dataset->crop_ratio() : 1);
  evaluation.mean = info.normalization.mean;
  evaluation.std = info.normalization.std;
  setup.model.evaluation = evaluation;
  const ResolvedModel resolved = setup.resolved;
  setup.model.build = [resolved](nn::Context& context, const Value& images) {
    return BuildModel(resolved, context, images);
  };
  setup.model.import_weights = [resolved](HostTensors tensors, bool reset_head) {
    return ImportWeights(resolved, std::move(tensors), reset_head);
  };
  const bool vit = info.family == "vit";
  setup.model.export_weights = [resolved, vit](const HostTensors& tensors) {
    return ExportWeights(resolved, tensors, vit ? WeightStyle::kHuggingFace : WeightStyle::kTimm);
  };
  if (vit) {
    setup.model.config_json = [resolved](const std::vector<std::string>& names) {
      return HuggingFaceConfig(resolved, names);
    };
    setup.model.preprocessor_json = HuggingFacePreprocessor;
  }
  return setup;
}

StatusOr<RunSetup> SetUpRun(const TrainConfig& given, const ProcessMap& processes) {
  TrainConfig settings = given;
  SY_RETURN_IF_ERROR(CheckTrainConfig(settings));
  SY_RETURN_IF_ERROR(CheckDatasetName(settings.dataset));
  std::optional<EvaluationTransform> pretrained;
  if (!settings.pretrained.empty() && settings.resume.empty()) {
    SY_ASSIGN_OR_RETURN(const WeightSource source, WeightSource::Open(settings.pretrained));
    SY_RETURN_IF_ERROR(AdoptArchitecture(source, settings).status());
    SY_ASSIGN_OR_RETURN(pretrained, TransformBeside(source, settings));
  }
  SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
  SY_RETURN_IF_ERROR(CheckDevice(settings, processes));
  DatasetOptions options = DatasetOptionsOf(settings);
  options.image_size = model.options.image_size;
  SY_ASSIGN_OR_RETURN(auto train, OpenDataset(options, Split::kTrain));
  SY_ASSIGN_OR_RETURN(auto validation, OpenDataset(options, Split::kValidation));
  SY_ASSIGN_OR_RETURN(RunSetup setup, SetUpModel(settings, train.get(), processes.world));
  // What the weights expect of pixels is the run's from now on; what is cropped is the dataset's matter.
  if (pretrained) {
    TrainConfig& c = setup.config;
    if (c.interpolation.empty()) c.interpolation = InterpolationName(pretrained->interpolation);
    if (c.mean.empty()) c.mean = Texts(pretrained->mean);
    if (c.std.empty()) c.std = Texts(pretrained->std);
  }
  setup.train = std::move(train);
  setup.validation = std::move(validation);
  return setup;
}

Status ChooseBatch(RunSetup& setup, World& world) {
  TrainConfig& c = setup.config;
  if (c.batch_size != TrainConfig::kAutoBatch) return OkStatus();
  const int64_t per_update = int64_t{world.size()} * c.accumulation;
  const auto limit = static_cast<int>(std::clamp<int64_t>(setup.train->size() / per_update, 1, 1 << 16));
  SY_ASSIGN_OR_RETURN(c.batch_size, Trainer::LargestBatch(c, setup.model, world, limit));
  c.global_batch_size = static_cast<int>(c.batch_size * per_update);
  return OkStatus();
}

StatusOr<CheckpointSettings> SettingsOfCheckpoint(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const LoadedCheckpoint checkpoint, LoadCheckpoint(path));
  SY_ASSIGN_OR_RETURN(const SavedSettings saved, SavedIn(checkpoint));
  CheckpointSettings settings;
  settings.config = ResolvedSettings(saved.config);
  // Either batch size decides the other.
  if (!WasGiven("global_batch_size")) settings.config.global_batch_size = 0;
  if (WasGiven("global_batch_size") && !WasGiven("batch_size")) settings.config.batch_size = 0;
  settings.classes = saved.classes;
  return settings;
}

StatusOr<TrainConfig> SettingsOfResumedRun(const std::string& path, const ProcessMap& processes) {
  for (const char* start : {"pretrained", "reset_head"}) {
    if (WasGiven(start))
      return InvalidArgument("--{} begins a new run, --resume={} goes on with one; give one of them", start, path);
  }
  SY_ASSIGN_OR_RETURN(const LoadedCheckpoint checkpoint, LoadCheckpoint(path));
  SY_ASSIGN_OR_RETURN(const SavedSettings saved, SavedIn(checkpoint));
  const int64_t kept = saved.config.global_batch_size;
  TrainConfig config = ResolvedSettings(saved.config);
  config.resume = path;
  if (config.global_batch_size == 0) config.global_batch_size = static_cast<int>(kept);
  if (config.batch_size == TrainConfig::kAutoBatch) {
    return InvalidArgument(
        "--batch_size=auto chooses a batch for a new run; a resumed one keeps its global batch of {}: give a number, "
        "or leave it out",
        kept);
  }
  BatchDivision given;
  if (WasGiven("batch_size")) given.batch_size = config.batch_size;
  if (WasGiven("accumulation")) given.accumulation = config.accumulation;
  SY_ASSIGN_OR_RETURN(const BatchDivision division,
                      DivideGlobalBatch(config.global_batch_size, processes.world, given, saved.config.batch_size));
  config.batch_size = static_cast<int>(division.batch_size);
  config.accumulation = static_cast<int>(division.accumulation);
  if (config.global_batch_size != kept && processes.rank == 0) {
    LogWarning(
        "--global_batch_size={} changes the run, whose updates took {} images so far: an epoch has another number of "
        "updates from here on; epochs and schedule go on where they are",
        config.global_batch_size, kept);
  }
  return config;
}

}  // namespace switchyard
