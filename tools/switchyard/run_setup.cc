#include "tools/switchyard/run_setup.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "core/base/environment.h"
#include "core/base/text.h"
#include "core/parallel/recompute.h"
#include "core/runtime/plugins/registry.h"
#include "core/train/batch_division.h"
#include "core/train/fitting.h"
#include "core/train/mixed_precision.h"
#include "core/train/timetable.h"
#include "core/train/volume_segmentation.h"
#include "models/foreign_format.h"
#include "models/weights.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/foreign_weights.h"

namespace switchyard {
namespace {

Status CheckDatasetName(const std::string& name) {
  for (const DatasetInfo& info : KnownDatasets()) {
    if (info.name == name) return OkStatus();
  }
  DatasetOptions options;
  options.name = name;
  options.download = false;
  return LocateDataset(options).status();  // says what is known
}

// Of a list of numbers as texts, as the settings hold it.
StatusOr<std::vector<float>> NumbersIn(const SettingValues& values, const std::string& name) {
  std::vector<float> numbers;
  for (const nlohmann::json& text : values.at(name)) {
    float number = 0;
    if (!absl::SimpleAtof(text.get<std::string>(), &number))
      return Internal("{}: expected numbers, found {}", name, text.dump());
    numbers.push_back(number);
  }
  return numbers;
}

// A model learns from one kind of data.
Status CheckContent(const ModelInfo& model, const Dataset& dataset) {
  const Content expected = model.family->data;
  if (dataset.content() == expected) return OkStatus();
  std::vector<std::string> names;
  for (const DatasetInfo& info : KnownDatasets()) {
    if (info.content == expected) names.push_back(info.name);
  }
  return InvalidArgument("--model={} learns from {}, but --dataset={} has {}; datasets for it: {}", model.name,
                         ContentName(expected), dataset.name(), ContentName(dataset.content()),
                         names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

TaskFactory TaskFor(Content content) {
  switch (content) {
    case Content::kLabelledImages:
      return MakeClassification;
    case Content::kMaskedImages:
      return MakeSegmentation;
    case Content::kMaskedVolumes:
      break;
  }
  return MakeVolumeSegmentation;
}

DeviceRequest DeviceRequestOf(const TrainConfig& c, const ProcessMap& processes) {
  DeviceRequest request;
  request.device = c.device;
  request.device_list = c.device_list;
  request.ranks_per_device = c.ranks_per_device;
  request.cpu_devices = c.cpu_devices;
  request.local_rank = processes.local_rank;
  request.local_world = processes.local_world;
  return request;
}

// World::Join chooses in earnest; this is for an early answer.
StatusOr<DeviceChoice> DeviceOf(const TrainConfig& c, const ProcessMap& processes) {
  const DeviceRequest request = DeviceRequestOf(c, processes);
  return ChooseDevice(request, SurveyDevices(Registry::Get(), request));
}

// What scripts for other launchers append: it has to be what this process is.
Status CheckTypedPlace(const TrainConfig& c, const ProcessMap& processes, Origin nproc_said_by) {
  if (c.local_rank && *c.local_rank >= 0 && *c.local_rank != processes.local_rank) {
    return InvalidArgument("--local_rank={}, but this process is local rank {} of {} (started by {}); {}",
                           *c.local_rank, processes.local_rank, processes.local_world, processes.launcher,
                           processes.launcher == "alone"
                               ? "start the ranks with `switchyard launch --nproc_per_node=N train …`, or torchrun"
                               : "leave it out");
  }
  if (!c.nproc_per_node || *c.nproc_per_node == processes.local_world) return OkStatus();
  const std::string there = processes.local_world == 1 ? "one rank" : fmt::format("{} ranks", processes.local_world);
  if (nproc_said_by == Origin::kEnvironment) {  // may be meant for launches from the same shell
    if (processes.rank == 0) {
      LogWarning(
          "SWITCHYARD_NPROC_PER_NODE={} changes nothing here: this node has {} of this run (started by {}), and it is "
          "`switchyard launch` that starts as many",
          *c.nproc_per_node, there, processes.launcher);
    }
    return OkStatus();
  }
  if (c.mode == "dp")
    return InvalidArgument("--nproc_per_node={0} with --mode=dp, which is one process; --devices={0} is what it drives",
                           *c.nproc_per_node);
  return InvalidArgument(
      "--nproc_per_node={}, but this node has {} of this run (started by {}); `switchyard launch --nproc_per_node={} "
      "train …` starts as many",
      *c.nproc_per_node, there, processes.launcher, *c.nproc_per_node);
}

Status CheckMasterAddress(const TrainConfig& c) {
  const auto there = Environment("MASTER_ADDR");
  if (!c.master_addr || !there || there == c.master_addr) return OkStatus();
  return InvalidArgument(
      "--master_addr={0}, but MASTER_ADDR={1} says where the ranks of this run meet; leave it out, or give it to "
      "`switchyard launch --master_addr={0} …`",
      Printable(*c.master_addr), Printable(*there));
}

// What to give instead, in the setting that says how the `images` that a rank has of an update are divided.
std::string OtherMicroBatches(const Settings& given, int64_t images, const std::vector<int64_t>& counts) {
  const bool counted = given.Has("num_microbatches"), sized = !counted && given.Has("microbatch_size");
  const bool steps = given.IsGiven("accumulation");
  std::vector<int64_t> numbers;
  if (sized) {
    for (const int64_t count : counts) numbers.insert(numbers.begin(), images / count);
    return "use --microbatch_size=" + Alternatives(numbers);
  }
  if (steps && !counted && !given.IsGiven("batch_size")) return "use --accumulation=" + Alternatives(counts);
  if (counted || !steps) {
    const int64_t micro_steps = steps ? *given.Get<int64_t>("accumulation") : 1;  // each divided
    for (const int64_t count : counts) {
      if (count % micro_steps == 0) numbers.push_back(count / micro_steps);
    }
    if (!numbers.empty()) return "use --num_microbatches=" + Alternatives(numbers);
  }
  return fmt::format("use --batch_size={} --accumulation={}{}", images / counts[0], counts[0],
                     counted ? " without --num_microbatches" : "");
}

// Where the `images` that a rank has of an update cannot be divided so.
std::string MoreImages(const Settings& given, int64_t images, const TrainConfig& c, int ranks) {
  const bool global = !given.IsGiven("batch_size");
  const int64_t least = int64_t{c.pp} * BatchUnit(c) * (global ? ranks / (c.pp * c.tp) : 1);
  std::string without;  // which would divide other images than those
  for (const char* division : {"accumulation", "num_microbatches", "microbatch_size"}) {
    if (given.IsGiven(division)) without += fmt::format("{} --{}", without.empty() ? " without" : " and", division);
  }
  return fmt::format(
      "the {} image{} that a rank has of an update cannot be divided so; use a smaller --pp, or --{}={}{}", images,
      images == 1 ? "" : "s", global ? "global_batch_size" : "batch_size", least, without);
}

}  // namespace

StatusOr<ProcessMap> RanksOf(const Settings& settings) {
  const TrainConfig c = ConfigOf(settings);
  SY_RETURN_IF_ERROR(CheckMasterAddress(c));
  SY_ASSIGN_OR_RETURN(ProcessMap processes, ProcessMap::FromEnvironment(c.master_addr));
  SY_RETURN_IF_ERROR(CheckTypedPlace(c, processes, settings.OriginOf("nproc_per_node")));
  if (c.mode != "dp") return processes;
  if (processes.world > 1) {
    return InvalidArgument(
        "--mode=dp is one process that drives all devices, found {} ranks (started by {}); start it without a "
        "launcher, or leave --mode=dp out: a process for each device",
        processes.world, processes.launcher);
  }
  if (c.tp > 1 || c.pp > 1 || c.zero > 0) {
    return InvalidArgument(
        "--mode=dp keeps a whole model with its optimizer on each device, and {} divides them; leave --mode=dp out and "
        "start a process for each device: switchyard launch --nproc_per_node=N",
        c.tp > 1   ? fmt::format("--tp={}", c.tp)
        : c.pp > 1 ? fmt::format("--pp={}", c.pp)
                   : fmt::format("--zero={}", c.zero));
  }
  if (c.devices && c.device_list) {
    return InvalidArgument("--mode=dp: --devices={} and --device_list={} both say which devices; give one of them",
                           *c.devices, *c.device_list);
  }
  SY_ASSIGN_OR_RETURN(processes.world, CountReplicas(Registry::Get(), DeviceRequestOf(c, processes), c.devices));
  processes.local_world = processes.world;
  processes.threads = true;
  return processes;
}

DatasetOptions DatasetOptionsOf(const TrainConfig& c, const ResolvedModel& model) {
  DatasetOptions options;
  options.name = c.dataset;
  options.data = c.data;
  options.download = c.download;
  options.seed = c.seed;
  options.image_size = model.image_size;
  options.content = model.info->family->data;
  options.input_shape = InputShape(model);
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
  request.master_address = c.master_addr;
  request.ranks_per_device = c.ranks_per_device;
  request.cpu_devices = c.cpu_devices;
  request.threads = c.threads;
  request.deterministic = c.deterministic;
  request.memory_limit = MemoryLimitOf(c);
  request.computes_on_host = c.offload != "none";
  request.freeze_limit_ms = c.freeze_limit_ms;
  request.init_timeout_ms = c.init_timeout_ms;
  request.pipeline = c.pp;
  request.tensor = c.tp;
  request.interpose = c.interpose;
  return request;
}

std::string ParametersText(const ResolvedModel& model) {
  constexpr int64_t kFewest = 100'000;  // that are told in millions
  const int64_t count = ParameterCount(model);
  return count < kFewest ? fmt::format("{} parameters", count)
                         : fmt::format("{:.2f} M parameters", static_cast<double>(count) / 1e6);
}

int MostClasses(const ResolvedModel& model) {
  const bool foreground = model.info->family->data == Content::kMaskedVolumes && model.classes == 1;
  return foreground ? kIgnoredClass : model.classes;
}

StatusOr<RunSetup> SetUpModel(const Settings& settings, const Dataset* dataset, int ranks) {
  RunSetup setup;
  setup.settings = settings;
  ModelOptions options = OptionsOf(settings);
  if (dataset != nullptr) {
    SY_ASSIGN_OR_RETURN(const ResolvedModel named, ResolveModel(options));
    SY_RETURN_IF_ERROR(CheckContent(*named.info, *dataset));
    const int classes = static_cast<int>(dataset->class_names().size());
    if (!options.classes && dataset->content() != Content::kMaskedVolumes) options.classes = classes;
    SY_ASSIGN_OR_RETURN(const ResolvedModel sized, ResolveModel(options));
    if (MostClasses(sized) < classes)
      return InvalidArgument("--classes={}: the dataset {} has {} classes", sized.classes, dataset->name(), classes);
    if (!options.channels) options.channels = dataset->channels();
  }
  SY_ASSIGN_OR_RETURN(setup.resolved, ResolveModel(options));
  const ResolvedModel resolved = setup.resolved;
  const ModelInfo& info = *resolved.info;
  FillFromModel(setup.settings, resolved, dataset);
  // Mixed precision without a word about the type is that in fp16.
  if (const auto amp = setup.settings.Get<std::string>("amp"); amp && *amp != "O0") {
    const bool of_run = setup.settings.IsGiven("amp") && setup.settings.Has("precision") &&
                        setup.settings.OriginOf("precision") == Origin::kCheckpoint &&
                        setup.settings.Value("precision") == "fp32";
    if (of_run) setup.settings.Forget("precision");
    setup.settings.Fill("precision", "fp16", Origin::kDefault, "--amp=" + *amp);
  }
  // As timm mixes.
  for (const char* mixing : {"mixup", "cutmix"}) {
    if (info.family->data == Content::kLabelledImages && *setup.settings.Get<float>(mixing) > 0)
      setup.settings.Fill("label_smoothing", 0.1, Origin::kDefault, std::string("--") + mixing);
  }
  // As in Gemini, a share of what is divided or offloaded asks for that.
  if (setup.settings.IsGiven("shard_param_frac") && !setup.settings.IsGiven("zero"))
    setup.settings.Replace("zero", *setup.settings.Get<float>("shard_param_frac") > 0 ? 3 : 2, Origin::kDefault,
                           "--shard_param_frac");
  const auto asks = [&](const char* share) {
    return setup.settings.IsGiven(share) && *setup.settings.Get<float>(share) > 0;
  };
  if (asks("offload_param_frac"))
    setup.settings.Fill("offload", "all", Origin::kDefault, "--offload_param_frac");
  else if (asks("offload_optim_frac"))
    setup.settings.Fill("offload", "optimizer", Origin::kDefault, "--offload_optim_frac");
  if (*setup.settings.Get<bool>("kernel_opt") && !setup.settings.IsGiven("deterministic"))
    setup.settings.Replace("deterministic", false, Origin::kDefault, "--kernel_opt");
  SY_ASSIGN_OR_RETURN(const Mesh mesh, MeshOf(ranks, static_cast<int>(*settings.Get<int64_t>("pp")),
                                              static_cast<int>(*settings.Get<int64_t>("tp"))));
  SY_RETURN_IF_ERROR(CheckDataRanks(mesh, settings.Get<int>("dp")));
  SY_ASSIGN_OR_RETURN(setup.automatic_batch, DecideBatch(setup.settings, info, mesh.data));
  if (setup.automatic_batch && setup.settings.Value("recompute") == kAutoRecompute)
    return InvalidArgument("--batch_size=auto and --recompute=auto both ask what fits; give one of them");
  setup.config = RunConfigOf(setup.settings, resolved);
  if (DependsOnDevice(setup.config)) {
    SY_ASSIGN_OR_RETURN(const ProcessMap processes, ProcessMap::FromEnvironment(setup.config.master_addr));
    SY_ASSIGN_OR_RETURN(const DeviceChoice device, DeviceOf(setup.config, processes));
    ResolveMixedPrecision(device.static_loss_scale, &setup.config);
  }
  SY_RETURN_IF_ERROR(CheckTrainConfig(setup.config));

  setup.model.name = info.name;
  setup.model.image_size = resolved.image_size;
  setup.model.channels = resolved.channels;
  setup.model.classes = resolved.classes;
  setup.model.input_shape = InputShape(resolved);
  setup.model.architecture = ArchitectureOf(resolved);
  EvaluationTransform evaluation;
  evaluation.image_size = resolved.image_size;
  evaluation.channels = resolved.channels;
  evaluation.resize = ResizeForCrop(resolved.image_size, dataset != nullptr ? dataset->crop_ratio() : 1);
  SY_ASSIGN_OR_RETURN(evaluation.mean, NumbersIn(info.preprocessing, "mean"));
  SY_ASSIGN_OR_RETURN(evaluation.std, NumbersIn(info.preprocessing, "std"));
  setup.model.evaluation = evaluation;
  setup.model.build = [resolved](nn::Context& context, const Value& images) {
    return BuildModel(resolved, context, images);
  };
  setup.model.import_weights = [resolved](HostTensors tensors, bool reset_head) {
    return ImportWeights(resolved, std::move(tensors), reset_head);
  };
  setup.model.task = TaskFor(info.family->data);
  setup.model.from_file = info.family->from_file;
  const ForeignFormat& format = PublishedFormat(resolved);
  setup.model.to_file = format.to_file;
  if (format.write != nullptr) {
    setup.model.for_others = [resolved, &format](const EvaluationTransform& transform,
                                                 const std::vector<std::string>& names) -> StatusOr<ForeignConfig> {
      StatusOr<ForeignFiles> files = format.write(resolved, transform, names);
      if (!files.ok()) return ForeignConfig{};  // checkpoints of a model that others do not know go without
      return ForeignConfig{std::move(files->config), std::move(files->preprocessor)};
    };
  }
  return setup;
}

Status CheckMicroBatches(const Settings& given, const RunSetup& setup, int ranks) {
  const TrainConfig& c = setup.config;
  if (c.pp <= 1 || setup.automatic_batch) return OkStatus();  // of as many images as it takes
  const int64_t images = int64_t{c.batch_size} * c.accumulation, unit = BatchUnit(c);
  const std::vector<int64_t> counts = MicroBatchesOfStages(images, unit, c.pp, c.pp_interleave);
  if (std::find(counts.begin(), counts.end(), c.accumulation) != counts.end()) return OkStatus();
  std::string wanted = "as many as stages or more";
  if (c.pp_interleave > 1) wanted += fmt::format(", a multiple of them for --pp_interleave={}", c.pp_interleave);
  if (unit > 1) {
    std::vector<std::string> reasons;
    if (c.sp && c.tp > 1) reasons.push_back("--sp, which divides them over the ranks of --tp");
    if (c.mixup > 0 || c.cutmix > 0) reasons.push_back("--mixup and --cutmix, which take pairs");
    wanted += fmt::format(", of a multiple of {} images each for {}", unit, fmt::join(reasons, " and for "));
  }
  return InvalidArgument(
      "--pp={} with {} micro-batch{} an update, of {} image{}: expected {}; {}", c.pp, c.accumulation,
      c.accumulation == 1 ? "" : "es", c.batch_size, c.batch_size == 1 ? "" : "s", wanted,
      counts.empty() ? MoreImages(given, images, c, ranks) : OtherMicroBatches(given, images, counts));
}

StatusOr<std::unique_ptr<Dataset>> DataAtHand(DatasetOptions options) {
  options.download = false;
  auto data = OpenDataset(options, Split::kTrain);
  if (data.ok() || data.status().code() != absl::StatusCode::kNotFound) return data;
  LogWarning("the data are not here, so that classes, channels and length are not the run's: {}",
             Message(data.status()));
  return std::unique_ptr<Dataset>();
}

StatusOr<RunSetup> SetUpRun(const Settings& given, const ProcessMap& processes) {
  Settings settings = given;
  SY_RETURN_IF_ERROR(CheckDatasetName(*settings.Get<std::string>("dataset")));
  std::vector<std::string> classes;
  if (settings.Has("pretrained") && !settings.Has("resume")) {
    SY_ASSIGN_OR_RETURN(const WeightSource source, WeightSource::Open(*settings.Get<std::string>("pretrained")));
    SY_ASSIGN_OR_RETURN(classes, AdoptArchitecture(source, settings));
    classes = ClassesOfWeights(source, std::move(classes));
    SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
    SY_RETURN_IF_ERROR(CheckEnoughWeights(source, model));
    const std::vector<std::string> fresh = PartsBesideBackbone(model, source.names());
    if (!fresh.empty() && *settings.Get<bool>("reset_head") && processes.rank == 0)
      LogInfo("{}: weights of the backbone alone; {} start afresh", source.path(), fmt::join(fresh, ", "));
    // What the weights expect of pixels is the run's from now on; what is cropped is the dataset's matter.
    SY_ASSIGN_OR_RETURN(const std::optional<EvaluationTransform> transform, TransformBeside(source, settings));
    if (transform) FillFromTransform(*transform, source, settings);
  }
  // Whatever is wrong without looking at the data is said before they are opened.
  SY_ASSIGN_OR_RETURN(const RunSetup early, SetUpModel(settings, nullptr, processes.world));
  SY_RETURN_IF_ERROR(CheckMicroBatches(settings, early, processes.world));
  SY_RETURN_IF_ERROR(DeviceOf(early.config, processes).status());
  const DatasetOptions options = DatasetOptionsOf(ConfigOf(settings), early.resolved);
  settings.Fill(early.resolved.info->preprocessing, Origin::kModel, early.resolved.info->name);
  if (absl::GetFlag(FLAGS_show_settings)) {
    SY_ASSIGN_OR_RETURN(const auto data, DataAtHand(options));
    return SetUpModel(settings, data.get(), processes.world);
  }
  SY_ASSIGN_OR_RETURN(auto train, OpenDataset(options, Split::kTrain));
  SY_ASSIGN_OR_RETURN(auto validation, OpenDataset(options, Split::kValidation));
  if (train->content() == Content::kLabelledImages && train->class_names().size() == 1) {
    return InvalidArgument(
        "--dataset={}: expected at least 2 classes to tell apart, found one, {}; of folders, --data is the one that "
        "holds train/CLASS, and may point a level too deep or too high",
        train->name(), Printable(train->class_names()[0]));
  }
  SY_ASSIGN_OR_RETURN(RunSetup setup, SetUpModel(settings, train.get(), processes.world));
  setup.train = std::move(train);
  setup.validation = std::move(validation);
  setup.pretrained_classes = std::move(classes);
  return setup;
}

Status ChooseBatch(RunSetup& setup, World& world) {
  if (!setup.automatic_batch) return OkStatus();
  TrainConfig& c = setup.config;
  const int64_t per_update = int64_t{world.data_size()} * c.accumulation;
  const auto limit = static_cast<int>(std::clamp<int64_t>(setup.train->size() / per_update, 1, 1 << 16));
  SY_ASSIGN_OR_RETURN(c.batch_size, LargestBatch(c, setup.model, world, limit, setup.train->size()));
  c.global_batch_size = static_cast<int>(c.batch_size * per_update);
  return OkStatus();
}

Status ChooseRecompute(RunSetup& setup, World& world) {
  TrainConfig& c = setup.config;
  if (c.recompute != kAutoRecompute) return OkStatus();
  SY_ASSIGN_OR_RETURN(const Timetable timetable, Timetable::Of(c, setup.train->size(), world.data_size()));
  SY_ASSIGN_OR_RETURN(const RecomputeChoice choice,
                      LeastRecomputeOfAll(c, setup.model, world, timetable.updates, DeviceBytesOf(world)));
  c.recompute = choice.setting;
  const std::string source = fmt::format("auto: the least that fits into {:.1f} MB", DeviceBytesOf(world) / 1e6);
  setup.settings.Replace("recompute", choice.setting, setup.settings.OriginOf("recompute"), source);
  return OkStatus();
}

}  // namespace switchyard
