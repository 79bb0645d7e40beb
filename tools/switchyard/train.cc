// train: the command, and what it prints at the start and the end.
#include <unistd.h>

#include <filesystem>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/runtime/processes/launch_report.h"
#include "core/settings/listing.h"
#include "core/settings/sources.h"
#include "core/train/checkpoint.h"
#include "core/train/file_calls.h"
#include "core/train/fitting.h"
#include "core/train/mixed_precision.h"
#include "core/train/plans.h"
#include "core/train/progress.h"
#include "core/train/stopping.h"
#include "fmt/ranges.h"
#include "models/weights.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/foreign_weights.h"
#include "tools/switchyard/hints.h"
#include "tools/switchyard/in_world.h"
#include "tools/switchyard/run_setup.h"

namespace switchyard {
namespace {

std::string Count(int64_t count, const char* noun, const char* plural = "s") {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : plural);
}

// The peak, and what it was scaled from.
std::string RateText(const TrainConfig& c, const ScheduleOptions& schedule, int64_t batch) {
  if (c.scale_lr == "none") return fmt::format("lr {:g}", schedule.lr);
  return fmt::format("lr {:g} ({:g} scaled by --scale_lr={} from batch {} to {}{})", schedule.lr, c.lr, c.scale_lr,
                     c.base_batch_size, batch,
                     c.scale_lr_factor != 1 ? fmt::format(", x {:g}", c.scale_lr_factor) : "");
}

const char* Samples(const RunSetup& setup) {
  return setup.resolved.info->family->data == Content::kMaskedVolumes ? "volumes" : "images";
}

// "500", "20e" and "0.3" as --warmup takes them.
std::string WarmupText(const std::string& warmup, const ScheduleOptions& schedule) {
  const std::string updates = Count(schedule.warmup, "update");
  if (schedule.warmup == 0) return "";
  const double value = std::strtod(warmup.c_str(), nullptr);
  if (warmup.back() == 'e') return fmt::format(" after {:g} epoch{} of warm-up", value, value == 1 ? "" : "s");
  if (warmup.find('.') == std::string::npos) return fmt::format(" after {} of warm-up", updates);
  return fmt::format(" after {:.3g} % of warm-up", 100 * value);
}

// Where the rank stands among those of its model.
std::string PlaceText(const World& world) {
  if (world.mesh.model_ranks() == 1) return "";
  std::string text = fmt::format(" (data {}", world.data_rank());
  if (world.mesh.pipeline > 1) text += fmt::format(", stage {}", world.mesh.StageOf(world.rank()));
  if (world.mesh.tensor > 1) text += fmt::format(", tensor {}", world.tensor_rank());
  return text + ")";
}

// What every rank drives, on rank 0's standard output.
Status PrintBanner(const RunSetup& setup, World& world, const Trainer& trainer) {
  const TrainConfig& c = setup.config;
  const DeviceInfo& device = world.device->info();
  const std::string line =
      fmt::format("  rank {}{} on {} (pid {}): {} device {} ({}){}, collective {}", world.rank(), PlaceText(world),
                  HostName(), getpid(), device.plugin, device.index, device.name,
                  world.threads > 0 ? fmt::format(", {} thread{}", world.threads, world.threads > 1 ? "s" : "") : "",
                  world.collective + (world.communicator != nullptr && world.communicator->goes_through_peer_memory()
                                          ? " and device memory (peer/1)"
                                          : ""));
  SY_ASSIGN_OR_RETURN(const uint64_t memory, world.Most("memory", trainer.allocated_bytes()));
  std::vector<std::string> lines = {line};
  if (world.size() > 1) {
    SY_RETURN_IF_ERROR(world.rendezvous->Put(fmt::format("banner/{}", world.rank()), line));
    if (world.rank() != 0) return OkStatus();
    for (int r = 1; r < world.size(); ++r) {
      SY_ASSIGN_OR_RETURN(const std::string other,
                          world.rendezvous->Get(fmt::format("banner/{}", r), c.init_timeout_ms));
      lines.push_back(other);
    }
  }
  const PlanReport& report = trainer.report();
  fmt::print("switchyard: {} on {}\n", setup.model.name, c.dataset);
  const DatasetSurvey& survey = setup.train->Survey();
  const size_t classes = setup.train->class_names().size();
  const bool merged = setup.resolved.classes == 1 && classes > 2;
  fmt::print("  data        {} training and {} validation {}, {} classes{}, checksum {:08x}\n", setup.train->size(),
             setup.validation->size(), Samples(setup), classes,
             merged ? fmt::format(" as background and one foreground (--classes={} tells them apart)", classes) : "",
             survey.checksum);
  fmt::print("  model       {}, image {}\n", ParametersText(setup.resolved),
             fmt::join(InputShapeOf(setup.model), " x "));
  const int64_t batch = int64_t{c.batch_size} * world.data_size() * c.accumulation;
  fmt::print(
      "  batch       {} {} per update: {} per rank, {}{}{}\n", batch, Samples(setup), c.batch_size,
      Count(world.size(), "rank"),
      world.mesh.model_ranks() > 1 ? fmt::format(", {} of which share each model", world.mesh.model_ranks()) : "",
      c.accumulation > 1 ? fmt::format(", {} micro-{}", c.accumulation, c.pp > 1 ? "batches" : "steps") : "");
  fmt::print("  length      {}\n",
             c.steps ? Count(*c.steps, "update")
                     : fmt::format("{} of {}", Count(c.epochs, "epoch"), Count(trainer.updates_per_epoch(), "update")));
  const float limit = c.optimizer == "lamb" ? c.max_grad_norm : c.clip;
  fmt::print("  optimizer   {}, {}, {}{}, weight decay {:g}{}\n", c.optimizer, RateText(c, trainer.schedule(), batch),
             c.schedule, WarmupText(c.warmup, trainer.schedule()), c.weight_decay,
             limit > 0 ? fmt::format(", gradients clipped to norm {:g}", limit) : "");
  if (c.ema_decay > 0) fmt::print("  average     of the weights, memory {:g} per update\n", c.ema_decay);
  SY_ASSIGN_OR_RETURN(const MixedPrecision mixed, MixedPrecisionOf(c, device.static_loss_scale));
  fmt::print("  precision   {}\n", Text(mixed, c.resume.has_value()));
  const size_t second = report.second_choices.size();
  const bool of_stages = world.mesh.pipeline > 1;
  fmt::print("  plan        {}, {:.2f} GFLOP per {}, {}{}, {:.1f} MB of device memory {}{}\n",
             Count(report.launches, "launch", "es"), report.flops / 1e9,
             c.accumulation > 1 && !of_stages ? "micro-step" : "step", Count(report.fallbacks.size(), "fallback"),
             second > 0 ? ", " + Count(second, "second choice") : "", static_cast<double>(memory) / 1e6,
             of_stages ? "at most on a rank" : "per rank",
             c.memory_limit ? " (--memory_limit=" + *c.memory_limit + ")" : "");
  if (c.powersgd_compression && c.tp > 1)
    fmt::print("  compression parts of divided weights, each on its rank: not what is computed without --tp={}\n",
               c.tp);
  if (c.recompute != "none") {
    const std::string& why = setup.settings.SourceOf("recompute");
    fmt::print("  recompute   {}{}\n", c.recompute, why.starts_with("auto") ? fmt::format(" ({})", why) : "");
  }
  for (const std::string& hint : {EnlargementHint(setup), MicroBatchHint(setup)}) {
    if (!hint.empty()) fmt::print("  hint        {}\n", hint);
  }
  fmt::print("  device      {}{}\n", world.choice.why,
             world.processes.threads ? "; one process drives all devices (--mode=dp)" : "");
  if (!device.libraries.empty()) fmt::print("  libraries   {}: {}\n", device.plugin, device.libraries);
  if (world.communicator != nullptr && !world.communicator->info().libraries.empty())
    fmt::print("  libraries   {}: {}\n", world.collective, world.communicator->info().libraries);
  for (const auto& [name, alias] : setup.settings.Translated())
    fmt::print("  alias       {} is --{}={}\n", alias, name, ValueText(setup.settings.Value(name)));
  for (const auto& [said, what] : setup.settings.AlwaysSo())
    fmt::print("  alias       {} is always so: {}\n", said, what);
  if (!world.collective_why.empty()) fmt::print("  collective  {}\n", world.collective_why);
  fmt::print("{}\n", fmt::join(lines, "\n"));
  for (const std::string& mistyped : MistypedVariables(setup.settings.table())) LogWarning("{}", mistyped);
  if (const std::string missing = ClassesThatNeverOccur(survey, *setup.train); !missing.empty())
    LogWarning("{}", missing);
  for (const Dataset* data : {setup.train.get(), setup.validation.get()}) {
    if (const std::string left_out = data->LeftOut(); !left_out.empty()) LogWarning("{}", left_out);
  }
  if (!report.fallbacks.empty())
    LogWarning("{} nodes run on the reference plugin (slow):\n{}", report.fallbacks.size(), report.FallbackList());
  if (!report.second_choices.empty())
    LogWarning("{} nodes run in a second choice of the {} plugin (slower):\n{}", report.second_choices.size(),
               device.plugin, report.SecondChoiceList());
  std::fflush(stdout);
  return OkStatus();
}

// The most that any rank has held on its device, against what this one may hold; "" where nothing limits it.
// Collective, since ranks may have limits of their own.
StatusOr<std::string> PeakText(const TrainConfig& c, World& world) {
  SY_ASSIGN_OR_RETURN(const uint64_t peak, world.Most("peak", world.device->peak_held_bytes()));
  if (!c.memory_limit) return "";
  return fmt::format("{:.1f} MB of device memory at most on a rank, of {:.1f} MB (--memory_limit={})",
                     static_cast<double>(peak) / 1e6, static_cast<double>(MemoryLimitOf(c)) / 1e6, *c.memory_limit);
}

// Where each setting came from, for people who look at the run later.
Status WriteSettings(const std::string& run_folder, const Settings& settings) {
  SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Open(run_folder));
  return folder.Replace("settings.txt", {BytesOf(SettingsListing(settings))});
}

// After a failure all ranks were started again: the run goes on from its latest checkpoint. Where it has none yet it
// begins anew, and what it wrote so far is kept beside it.
Status TakeUpAgain(const std::string& run, int rank, Settings& settings) {
  if (ResolveCheckpoint(run).ok()) {
    for (const char* act : {"pretrained", "reset_head"}) settings.Forget(act);
    if (settings.Value("batch_size") == "auto") settings.Forget("batch_size");
    settings.Replace("resume", run, Origin::kFlag, kRestarted);
    return OkStatus();
  }
  if (rank != 0 || !std::filesystem::exists(run)) return OkStatus();
  std::string aside = run + "-interrupted";
  for (int attempt = 2; std::filesystem::exists(aside); ++attempt)
    aside = fmt::format("{}-interrupted-{}", run, attempt);
  std::error_code error;
  std::filesystem::rename(run, aside, error);
  if (error) return FailedPrecondition("cannot move {} to {}: {}", run, aside, error.message());
  LogWarning("the run {} has no checkpoint yet and begins anew; what it wrote is in {}", run, aside);
  return OkStatus();
}

// The classifier of --pretrained weights, as their classes and the data's have names.
Status MatchPretrainedClasses(RunSetup& setup, int rank) {
  SY_ASSIGN_OR_RETURN(const bool by_name, MatchesClassesByName());
  if (!by_name || !setup.config.pretrained || setup.config.reset_head) return OkStatus();
  const ResolvedModel& model = setup.resolved;
  const ClassMatch match = MatchClasses(setup.pretrained_classes, setup.train->class_names(), model.classes);
  if (!match.order.empty()) {
    setup.model.import_weights = [model, order = match.order](HostTensors tensors,
                                                              bool reset_head) -> StatusOr<HostTensors> {
      SY_ASSIGN_OR_RETURN(tensors, ImportWeights(model, std::move(tensors), reset_head));
      ReorderClasses(model, order, &tensors);
      return tensors;
    };
  }
  if (rank != 0) return OkStatus();
  if (!match.order.empty()) {
    LogInfo("{}: the classifier is put into the order of the classes of {}, by their names", *setup.config.pretrained,
            setup.train->name());
  } else if (!match.other.empty()) {
    LogWarning(
        "{}: the classifier was made for other classes than those of {}: {}; --reset_head starts a new one, and "
        "--match_classes=position says that these are the same classes under other names",
        *setup.config.pretrained, setup.train->name(), match.other);
  }
  return OkStatus();
}

// Of a run whose updates were left out, all or most of them.
void WarnOfLittleTraining(const TrainingResult& result) {
  const int64_t made = result.updates - result.skipped_updates;
  if (result.skipped_updates <= made) return;
  LogWarning(
      "{} of {} were left out, as their gradients were not finite{}; lower --lr or --init_scale, compute in "
      "--precision=bf16, or find the first bad value with --debug=nan",
      result.skipped_updates, Count(result.updates, "update"),
      made == 0 ? ": nothing was trained, and the weights are those that the run began with" : "");
}

// The config file of a run that began with weights, of a run that begins without.
void WarnOfWeightsLeftOut(const Settings& settings) {
  const SettingValues& acts = settings.StartedFrom();
  if (acts.find("pretrained") == acts.end() || settings.Has("pretrained") || settings.Has("resume")) return;
  std::string flags;
  for (const auto& [name, value] : acts)
    flags += fmt::format(" --{}{}", name, value.is_boolean() ? "" : "=" + Printable(ValueText(value)));
  LogWarning(
      "the run of --config began with weights that it was given, and this one begins with random ones, since a config "
      "file loads none; to begin as that one did, give{}",
      flags);
}

}  // namespace

Status TrainCommand(const CommandLine& line) {
  // Before the first thread, which may be a plugin's. It lives as long as the process, to whose end a signal may come.
  [[maybe_unused]] static const auto& stop_signals = *new StopSignals;
  Settings settings = line.settings;
  SY_ASSIGN_OR_RETURN(const ProcessMap processes, RanksOf(settings));
  if (const std::string run = RestartedRun(); !run.empty())
    SY_RETURN_IF_ERROR(TakeUpAgain(run, processes.rank, settings));
  if (settings.Has("resume")) {
    SY_ASSIGN_OR_RETURN(settings, SettingsOfResumedRun(settings, processes));
  } else if (*settings.Get<bool>("reset_head") && !settings.Has("pretrained")) {
    return InvalidArgument("--reset_head is about weights to start from: give them with --pretrained");
  }
  if (processes.rank == 0) WarnOfWeightsLeftOut(settings);
  SY_ASSIGN_OR_RETURN(RunSetup of_all, SetUpRun(settings, processes));
  if (ShowSettings(of_all.settings, processes.rank)) return OkStatus();
  SY_RETURN_IF_ERROR(MatchPretrainedClasses(of_all, processes.rank));
  return InWorld(of_all.config, processes, [&](World& world) -> Status {
    RunSetup setup = of_all;
    SY_RETURN_IF_ERROR(ChooseBatch(setup, world));
    SY_RETURN_IF_ERROR(ChooseRecompute(setup, world));
    auto created = Trainer::Create(setup.config, setup.model, *setup.train, *setup.validation, world);
    if (absl::IsDataLoss(created.status()) && setup.config.resume)
      return WithOthersBeside(created.status(), *setup.config.resume);
    SY_ASSIGN_OR_RETURN(const auto trainer, std::move(created));
    if (setup.config.pretrained)
      SY_RETURN_IF_ERROR(trainer->LoadWeights(*setup.config.pretrained, setup.config.reset_head));
    SY_RETURN_IF_ERROR(PrintBanner(setup, world, *trainer));
    if (world.rank() == 0) {
      const int64_t per_epoch = trainer->updates_per_epoch();
      RunFacts facts = FactsOf(setup, world.mesh, *world.device);
      facts.updates = setup.config.steps.value_or(setup.config.epochs * per_epoch);
      facts.updates_per_epoch = per_epoch;
      WarnOfSettingsWithoutEffect(setup, facts);
    }
    SY_ASSIGN_OR_RETURN(const TrainingResult result, trainer->Train([&](const std::string& run_folder) {
      return WriteSettings(run_folder, setup.settings);
    }));
    SY_ASSIGN_OR_RETURN(const std::string peak, PeakText(setup.config, world));
    if (world.rank() != 0 || result.interrupted) return OkStatus();
    const std::string whole = Count(result.updates - result.skipped_updates, "update");
    if (result.here == 0) {
      fmt::print("\ntrained {} before; nothing was left to do: --steps or --epochs makes the run longer\n", whole);
    } else if (result.here < result.updates) {
      fmt::print("\ntrained {}, {} of them here in {:.1f} s\n", whole, result.trained_here, result.seconds);
    } else {
      fmt::print("\ntrained {} in {:.1f} s\n", whole, result.seconds);
    }
    const Metric best = trainer->task().best();
    fmt::print("  {:<11} {} of {} validation {}{}\n", best.quantity, Text({best}, result.evaluation),
               result.evaluation.count, Samples(setup),
               result.best ? fmt::format(" (best {}{})", Text(best, *result.best),
                                         setup.config.best_by == "ema" ? " of the averaged weights" : "")
                           : "");
    if (result.skipped_updates > 0) {
      fmt::print("  skipped     {}, whose gradients were not finite\n", Count(result.skipped_updates, "update"));
    }
    if (result.here > 0)
      fmt::print("  throughput  {} {}/s over {}\n", ThroughputText(result.images_per_s), Samples(setup),
                 Count(world.size(), "rank"));
    if (!peak.empty()) fmt::print("  memory      {}\n", peak);
    fmt::print("  run         {}\n", Printable(result.run_folder));
    if (!result.picture.empty()) fmt::print("  loss curve  {}\n", Printable(result.picture));
    WarnOfLittleTraining(result);
    return CheckFinite(result.evaluation);
  });
}

}  // namespace switchyard
