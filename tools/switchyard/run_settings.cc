#include "tools/switchyard/run_settings.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/parallel/mesh.h"
#include "core/settings/listing.h"
#include "core/settings/sources.h"
#include "core/train/batch_division.h"
#include "core/train/checkpoint.h"
#include "core/train/fitting.h"
#include "core/train/mixed_precision.h"
#include "core/train/run_folder.h"
#include "core/train/setting_aliases.h"
#include "tools/switchyard/flags.h"

namespace switchyard {
namespace {

constexpr char kAuto[] = "auto";

SettingTable MakeTable() {
  std::vector<Setting> rows = TrainSettings();
  // Behind the first group, which says what is trained.
  const auto end = std::find_if(rows.begin(), rows.end(), [&](const Setting& r) { return r.group != rows[0].group; });
  const std::vector<Setting> models = ModelSettings();
  rows.insert(end, models.begin(), models.end());
  return SettingTable(std::move(rows), TrainAliases(), TrainShorthands());
}

struct Saved {
  nlohmann::json config;
  std::vector<std::string> classes;
  std::string folder, file;
};

StatusOr<Saved> SavedIn(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const LoadedCheckpoint checkpoint, LoadCheckpoint(path));
  Saved saved;
  saved.folder = checkpoint.folder;
  saved.file = saved.folder + "/state.json";
  saved.config = checkpoint.record.value("config", nlohmann::json());
  SY_RETURN_IF_ERROR(Annotate(ReadField(checkpoint.record, "classes", &saved.classes), saved.file));
  return saved;
}

// What `settings` leave open is the saved run's.
Status TakeFrom(const Saved& saved, Settings& settings) {
  SY_RETURN_IF_ERROR(Annotate(TakeSaved(saved.config, saved.file, settings), saved.file + ": config"));
  settings.ResolveYields();
  return OkStatus();
}

std::optional<int64_t> GivenNumber(const Settings& settings, const std::string& name) {
  return settings.IsGiven(name) ? settings.Get<int64_t>(name) : std::nullopt;
}

// Of a run that was set up on other ranks: a division of its global batch over these.
Status DivideAnew(Settings& settings, int64_t global, int64_t batch, int world) {
  const Origin origin = settings.OriginOf("global_batch_size");
  const std::string source = settings.SourceOf("global_batch_size");
  BatchRequest given;
  if (settings.OriginOf("accumulation") > origin) given.accumulation = settings.Get<int64_t>("accumulation");
  const auto division = DivideGlobalBatch(global, world, given, batch, BatchUnit(ConfigOf(settings)));
  if (!division.ok()) return Annotate(division.status(), source);
  const std::string how = fmt::format("{}, divided over {} ranks", source, world);
  settings.Replace("batch_size", division->batch_size, origin, how);
  if (!given.accumulation) settings.Replace("accumulation", division->accumulation, origin, how);
  return OkStatus();
}

// DecideBatch without micro-batches.
StatusOr<bool> DecideMicroSteps(Settings& settings, const ModelInfo& model, int world) {
  const auto batch = settings.Has("batch_size") ? settings.Get<int64_t>("batch_size") : std::nullopt;
  const auto global = settings.Get<int64_t>("global_batch_size");
  const int64_t accumulation = *settings.Get<int64_t>("accumulation"), rounds = world * accumulation;
  if (settings.Value("batch_size") == kAuto) {
    if (!global) return true;
    return InvalidArgument("--batch_size=auto and --global_batch_size={} both decide the batch; give one of them",
                           *global);
  }
  if (global && batch && *batch * rounds != *global) {
    const bool saved = settings.OriginOf("batch_size") <= Origin::kConfigFile &&
                       settings.OriginOf("global_batch_size") <= Origin::kConfigFile;
    if (!saved || *global % *batch != 0) {
      return InvalidArgument(
          "--batch_size={} x {} ranks x accumulation {} = {}, but --global_batch_size={}; give one of them", *batch,
          world, accumulation, *batch * rounds, *global);
    }
    SY_RETURN_IF_ERROR(DivideAnew(settings, *global, *batch, world));
    return false;
  }
  if (global && !batch) {
    if (*global % rounds != 0) {
      return InvalidArgument("--global_batch_size={} is no multiple of {} ranks x accumulation {}", *global, world,
                             accumulation);
    }
    settings.Replace("batch_size", *global / rounds, settings.OriginOf("global_batch_size"),
                     fmt::format("global_batch_size over {} ranks x accumulation {}", world, accumulation));
  }
  if (!global) {
    const auto meant = model.recipe.find("global_batch_size");
    const int64_t recipe = meant != model.recipe.end() ? meant->second.get<int64_t>() : rounds;
    const int64_t unit = BatchUnit(ConfigOf(settings));
    settings.Fill("batch_size", std::max<int64_t>(1, recipe / rounds / unit) * unit, Origin::kRecipe, model.name);
    settings.Replace("global_batch_size", *settings.Get<int64_t>("batch_size") * rounds,
                     settings.OriginOf("batch_size"),
                     fmt::format("batch_size x {} ranks x accumulation {}", world, accumulation));
  }
  return false;
}

// Of --pp where nobody said how many there are: four for each stage, so that stages wait for each other in less than a
// fifth of the time, or as many as the images of a rank and update allow.
void DecideMicroBatchesOfStages(Settings& settings, bool automatic) {
  constexpr int64_t kForAStage = 4;
  const int64_t stages = *settings.Get<int64_t>("pp"), steps = *settings.Get<int64_t>("accumulation");
  if (IsOfUser(settings.OriginOf("accumulation")) || steps >= stages) return;
  const Origin origin = settings.OriginOf("pp");
  if (automatic) {
    settings.Replace("accumulation", kForAStage * stages, origin, fmt::format("pp={}", stages));
    return;
  }
  const int64_t images = *settings.Get<int64_t>("batch_size") * steps;
  const std::vector<int64_t> counts =
      MicroBatchesOfStages(images, BatchUnit(ConfigOf(settings)), stages, *settings.Get<int64_t>("pp_interleave"));
  if (counts.empty()) return;  // refused by CheckMicroBatches, which says what would do
  int64_t count = 0;           // a multiple of the stages before any other
  for (const int64_t possible : counts) {
    if (possible > kForAStage * stages) break;
    if (possible % stages == 0 || count == 0 || count % stages != 0) count = possible;
  }
  if (count == 0) count = counts[0];
  const std::string how = fmt::format("pp={} with {} images", stages, images);
  settings.Replace("batch_size", images / count, origin, how);
  settings.Replace("accumulation", count, origin, how);
}

// What --num_microbatches, or else --microbatch_size, makes of a rank's batch. An accumulation that the user gave too
// stands beside it: so many batches an update, each of which is divided.
Status DivideIntoMicroBatches(Settings& settings, bool automatic) {
  const bool counted = settings.Has("num_microbatches");
  if (!counted && !settings.Has("microbatch_size")) {
    DecideMicroBatchesOfStages(settings, automatic);
    return OkStatus();
  }
  const std::string name = counted ? "num_microbatches" : "microbatch_size";
  const Origin origin = settings.OriginOf(name);
  const int64_t given = *settings.Get<int64_t>(name), steps = *settings.Get<int64_t>("accumulation");
  const int64_t batches = IsOfUser(settings.OriginOf("accumulation")) ? steps : 1;
  if (automatic) {
    if (!counted)
      return InvalidArgument("--batch_size=auto and --microbatch_size={} both decide the batch; give one of them",
                             given);
    settings.Replace("accumulation", batches * given, origin, "num_microbatches of each micro-step");
    return OkStatus();
  }
  const int64_t images = *settings.Get<int64_t>("batch_size") * steps, divisor = counted ? batches * given : given;
  if (images % divisor != 0) {
    return InvalidArgument(
        "--{}={}: expected a number that divides the {} images of a rank{}; change it, or --batch_size", name, given,
        images / batches, batches > 1 ? " and micro-step" : " and update");
  }
  const int64_t batch = counted ? images / divisor : given;
  const std::string how = fmt::format("{}={} of {} images", name, given, images);
  settings.Replace("batch_size", batch, origin, how);
  settings.Replace("accumulation", images / batch, origin, how);
  // What it came to is told, and not told a second time by settings that somebody makes of the listed ones.
  if (!counted || !settings.Has("microbatch_size")) settings.Forget(name);
  return OkStatus();
}

// A run goes on in the folder that it has; what was copied out of it begins another, which settings may name. One that
// was started again was told the folder that it has.
void KeepRunFolder(const Saved& saved, const std::string& path, int rank, Settings& settings) {
  if (RunFolderOf(saved.folder).empty() || settings.SourceOf("resume") == kRestarted) return;
  for (const char* part : {"output", "tag", "suffix", "output_suffix"}) {
    if (rank == 0 && settings.Has(part) && settings.OriginOf(part) == Origin::kFlag)
      LogWarning("--{} has no effect with --resume={}: the run goes on in its own folder", part, path);
    settings.Forget(part);
  }
}

// A resumed run may have another precision, and the loss scale then is that one's, unless the user said which.
void FollowPrecision(const Settings& of_run, const Settings& given, int rank, Settings& settings) {
  const TrainConfig before = ConfigOf(of_run), now = ConfigOf(settings);
  if (given.IsGiven("loss_scale") || !HasUsualLossScale(before) || NeedsLossScale(now)) return;
  settings.Forget("loss_scale");
  if (rank != 0) return;
  LogInfo(
      "the loss scale of this run, {0}, was for --precision={1}; with --precision={2}{3} there is none from here "
      "on, and --loss_scale={0} would keep it",
      *before.loss_scale, before.precision, now.precision,
      now.precision == before.precision ? " --amp=" + now.amp.value_or("") : "");
}

}  // namespace

const SettingTable& RunTable() {
  static const auto& table = *new SettingTable(MakeTable());
  return table;
}

ModelOptions OptionsOf(const Settings& settings) {
  ModelOptions options;
  options.name = *settings.Get<std::string>("model");
  options.image_size = settings.Get<int>("image_size");
  options.channels = settings.Get<int>("channels");
  options.classes = settings.Get<int>("classes");
  for (const Setting& row : ModelSettings()) {
    if (settings.Has(row.name)) options.own[row.name] = settings.Value(row.name);
  }
  return options;
}

void FillFromModel(Settings& settings, const ResolvedModel& model, const Dataset* dataset) {
  const std::string& name = model.info->name;
  settings.Fill("image_size", model.image_size, Origin::kModel, name);
  const Origin of_data = dataset != nullptr ? Origin::kDataset : Origin::kModel;
  const std::string source = dataset != nullptr ? dataset->name() : name;
  settings.Fill("channels", model.channels, of_data, source);
  settings.Fill("classes", model.classes, of_data, source);
  settings.Fill(model.own, Origin::kModel, name);
  SettingValues recipe = model.info->recipe;
  if (const auto batch = recipe.find("global_batch_size"); batch != recipe.end()) {
    settings.Fill("base_batch_size", batch->second, Origin::kRecipe, name);
    recipe.erase(batch);  // what it means on these ranks, DecideBatch says
  }
  settings.Fill(recipe, Origin::kRecipe, name);
  if (dataset == nullptr) return;
  settings.Fill("augmentation", AugmentationName(dataset->augmentation()), Origin::kDataset, source);
  settings.Fill("crop_ratio", JsonOf(dataset->crop_ratio()), Origin::kDataset, source);
}

StatusOr<bool> DecideBatch(Settings& settings, const ModelInfo& model, int world) {
  SY_ASSIGN_OR_RETURN(const bool automatic, DecideMicroSteps(settings, model, world));
  SY_RETURN_IF_ERROR(DivideIntoMicroBatches(settings, automatic));
  return automatic;
}

TrainConfig RunConfigOf(const Settings& settings, const ResolvedModel& model) {
  TrainConfig config = ConfigOf(settings);
  config.own = model.own;
  config.line_for_each_log = settings.IsGiven("log_every");
  return config;
}

StatusOr<CheckpointSettings> SettingsOfCheckpoint(const std::string& path, const Settings& given) {
  SY_ASSIGN_OR_RETURN(const Saved saved, SavedIn(path));
  CheckpointSettings found = {given, saved.classes};
  SY_RETURN_IF_ERROR(TakeFrom(saved, found.settings));
  return found;
}

StatusOr<Settings> SettingsOfResumedRun(const Settings& given, const ProcessMap& processes) {
  const std::string path = *given.Get<std::string>("resume");
  for (const char* start : {"pretrained", "reset_head"}) {
    if (given.IsGiven(start))
      return InvalidArgument("--{} begins a new run, --resume={} goes on with one; give one of them", start, path);
  }
  SY_ASSIGN_OR_RETURN(const Saved saved, SavedIn(path));
  Settings of_run(RunTable()), settings = given;
  SY_RETURN_IF_ERROR(TakeFrom(saved, of_run));
  SY_RETURN_IF_ERROR(TakeFrom(saved, settings));
  if (given.IsGiven("model") && given.Value("model") != of_run.Value("model")) {
    return InvalidArgument(
        "{} is a checkpoint of {}, and --model={} was given; leave --model out to go on with it, or begin a new run "
        "without --resume",
        path, Printable(ValueText(of_run.Value("model"))), Printable(ValueText(given.Value("model"))));
  }
  FollowPrecision(of_run, given, processes.rank, settings);
  KeepRunFolder(saved, path, processes.rank, settings);
  const int64_t kept = of_run.Get<int64_t>("global_batch_size").value_or(0);
  const int64_t global = GivenNumber(given, "global_batch_size").value_or(kept);
  if (given.Value("batch_size") == kAuto) {
    return InvalidArgument(
        "--batch_size=auto chooses a batch for a new run; a resumed one keeps its global batch of {}: give a number, "
        "or leave it out",
        kept);
  }
  const BatchRequest wanted = {GivenNumber(given, "batch_size"), GivenNumber(given, "accumulation")};
  SY_ASSIGN_OR_RETURN(const Mesh mesh, MeshOf(processes.world, static_cast<int>(*given.Get<int64_t>("pp")),
                                              static_cast<int>(*given.Get<int64_t>("tp"))));
  SY_ASSIGN_OR_RETURN(
      const BatchDivision division,
      DivideGlobalBatch(global, mesh.data, wanted, *of_run.Get<int64_t>("batch_size"), BatchUnit(ConfigOf(settings))));
  const std::string how = fmt::format("{}, divided over {} ranks", saved.file, mesh.data);
  if (!wanted.batch_size) settings.Replace("batch_size", division.batch_size, Origin::kCheckpoint, how);
  if (!wanted.accumulation) settings.Replace("accumulation", division.accumulation, Origin::kCheckpoint, how);
  if (!given.IsGiven("global_batch_size"))
    settings.Replace("global_batch_size", global, Origin::kCheckpoint, saved.file);
  if (global != kept && processes.rank == 0) {
    LogWarning(
        "--global_batch_size={} changes the run, whose updates took {} images so far: an epoch has another number of "
        "updates from here on; epochs and schedule go on where they are",
        global, kept);
  }
  return settings;
}

bool ShowSettings(const Settings& settings, int rank) {
  if (!absl::GetFlag(FLAGS_show_settings)) return false;
  if (rank == 0) fmt::print("{}", SettingsListing(settings));
  return true;
}

}  // namespace switchyard
