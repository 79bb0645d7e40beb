// bench: times training steps on made-up data, and shows where their time goes.
#include <algorithm>
#include <chrono>

#include "absl/flags/flag.h"
#include "core/train/mixed_precision.h"
#include "core/train/recording.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/compare.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/hints.h"
#include "tools/switchyard/in_world.h"
#include "tools/switchyard/run_setup.h"

namespace switchyard {
namespace {

const auto process_start = std::chrono::steady_clock::now();  // within milliseconds

// The first samples of the data as the task has them, a tensor each.
using Rows = std::vector<std::vector<std::byte>>;
StatusOr<Rows> FirstSamples(const Task& task, const Dataset& data, int64_t samples) {
  SY_ASSIGN_OR_RETURN(const auto source, task.Samples(data, true));
  Rows tensors;
  for (const SampleTensor& tensor : source->tensors())
    tensors.emplace_back(static_cast<size_t>(samples * tensor.row.bytes()));
  for (int64_t i = 0; i < samples; ++i) {
    std::vector<void*> rows;
    for (std::vector<std::byte>& tensor : tensors)
      rows.push_back(tensor.data() + tensor.size() / static_cast<size_t>(samples) * static_cast<size_t>(i));
    SY_RETURN_IF_ERROR(source->Fill(0, i % data.size(), rows));
  }
  return tensors;
}

// Milliseconds of each of `steps` updates. ahead: as in training on a device that works by itself, where an update is
// begun while the one before it runs. Begin returns when that one has ended or, where the host computes a part of
// updates, when its own nearly has: in both cases it takes an update from one return to the next. One more runs before
// those that are timed, and one behind them.
StatusOr<std::vector<double>> TimeSteps(Trainer& trainer, std::span<const std::span<const std::byte>> tensors,
                                        int64_t steps, bool ahead) {
  std::vector<double> ms;
  auto last = std::chrono::steady_clock::now();
  const auto ended = [&] {
    const auto now = std::chrono::steady_clock::now();
    ms.push_back(1e3 * std::chrono::duration<double>(now - last).count());
    last = now;
  };
  if (!ahead) {
    for (int64_t i = 0; i < steps; ++i) {
      SY_RETURN_IF_ERROR(trainer.Step(tensors).status());
      ended();
    }
    return ms;
  }
  SY_RETURN_IF_ERROR(trainer.Begin(tensors));
  for (int64_t i = 0; i <= steps; ++i) {
    SY_RETURN_IF_ERROR(trainer.Begin(tensors));
    ended();
  }
  ms.erase(ms.begin());  // of the one before all, whose batch was copied first
  SY_RETURN_IF_ERROR(trainer.Wait());
  return ms;
}

// Updates at the start that are not what the settings ask for.
int64_t UncompressedUpdates(const TrainConfig& config) {
  return config.powersgd_compression ? config.start_compress_iter : 0;
}

// Some more steps, each step of their plan by itself, into ./profile.json; and what the device could do.
StatusOr<DeviceRates> RecordSteps(Trainer& trainer, std::span<const std::span<const std::byte>> tensors,
                                  const TrainConfig& config, const World& world, Profile& profile) {
  trainer.Record(&profile);
  for (int64_t i = 0; i < kRecordedUpdates; ++i) SY_RETURN_IF_ERROR(trainer.Step(tensors).status());
  trainer.Record(nullptr);
  SY_RETURN_IF_ERROR(WriteProfile(profile, ".", world.rank()));
  SY_ASSIGN_OR_RETURN(const MixedPrecision mixed, MixedPrecisionOf(config, world.device->info().static_loss_scale));
  return MeasureRates(*world.device, mixed.half);
}

}  // namespace

Status BenchCommand(const CommandLine& line) {
  if (const int warmup = absl::GetFlag(FLAGS_warmup_steps); warmup < 0)
    return InvalidArgument("--warmup_steps: expected at least 0 updates before those that are measured, found {}",
                           warmup);
  if (!absl::GetFlag(FLAGS_compare).empty()) return CompareRuns(line);
  if (const int ranks = absl::GetFlag(FLAGS_nproc_per_node); ranks != 1) {
    return InvalidArgument(
        "bench --nproc_per_node={} is of the ranks that --compare starts: give --compare=ddp with it, or start them "
        "with switchyard launch --nproc_per_node={} bench",
        ranks, ranks);
  }
  Settings settings = line.settings;
  settings.Fill("dataset", "synthetic", Origin::kDefault);
  settings.Fill("steps", 20, Origin::kDefault);
  settings.Fill("start_compress_iter", 2, Origin::kDefault);  // the earliest: compressed updates are timed
  SY_ASSIGN_OR_RETURN(const ProcessMap processes, RanksOf(settings));
  SY_ASSIGN_OR_RETURN(const RunSetup of_all, SetUpRun(settings, processes));
  if (ShowSettings(of_all.settings, processes.rank)) return OkStatus();
  return InWorld(of_all.config, processes, [&](World& world) -> Status {
    RunSetup setup = of_all;
    const auto start = std::chrono::steady_clock::now();
    SY_RETURN_IF_ERROR(ChooseBatch(setup, world));
    SY_RETURN_IF_ERROR(ChooseRecompute(setup, world));
    if (world.rank() == 0) WarnOfSettingsWithoutEffect(setup, FactsOf(setup, world.mesh, *world.device));
    const int64_t timed = *setup.config.steps;
    const int64_t uncounted = std::max<int64_t>(absl::GetFlag(FLAGS_warmup_steps), UncompressedUpdates(setup.config));
    *setup.config.steps += UncompressedUpdates(setup.config);  // the length of the run that is planned
    SY_ASSIGN_OR_RETURN(const auto trainer,
                        Trainer::Create(setup.config, setup.model, *setup.train, *setup.validation, world));
    const double prepared = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double ready = std::chrono::duration<double>(std::chrono::steady_clock::now() - process_start).count();
    const TrainConfig& c = setup.config;
    const int64_t samples = int64_t{c.batch_size} * c.accumulation;
    SY_ASSIGN_OR_RETURN(const Rows batch, FirstSamples(trainer->task(), *setup.train, samples));
    const std::vector<std::span<const std::byte>> tensors(batch.begin(), batch.end());
    SY_ASSIGN_OR_RETURN(const std::vector<double> uncounted_ms, TimeSteps(*trainer, tensors, uncounted, false));
    SY_ASSIGN_OR_RETURN(const std::vector<double> ms, TimeSteps(*trainer, tensors, timed, world.device->async()));
    const double first_ms = uncounted_ms.empty() ? ms[0] : uncounted_ms[0];
    Profile profile;
    DeviceRates rates;
    if (c.profile) {
      SY_ASSIGN_OR_RETURN(rates, RecordSteps(*trainer, tensors, c, world, profile));
    }
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    const double median = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
    const double rate = 1e3 * static_cast<double>(samples * world.data_size()) / median;
    SY_ASSIGN_OR_RETURN(const double of_rank, world.Mean("flops", trainer->update_flops()));
    SY_ASSIGN_OR_RETURN(const uint64_t memory, world.Most("memory", trainer->allocated_bytes()));
    const double flops = of_rank * world.size();
    const PlanReport& report = trainer->report();
    if (world.rank() != 0) return OkStatus();
    if (absl::GetFlag(FLAGS_json)) {
      nlohmann::ordered_json told = {{"model", c.model},
                                     {"batch_size", c.batch_size},
                                     {"ranks", world.size()},
                                     {"threads", world.threads},
                                     {"device", world.device->info().plugin},
                                     {"precision", c.precision},
                                     {"median_ms", median},
                                     {"samples_ms", ms},
                                     {"images_per_s", rate},
                                     {"gflop_per_update", flops / 1e9},
                                     {"gflops", flops / 1e6 / median},
                                     {"memory_bytes", memory},
                                     {"prepare_s", prepared},
                                     {"kernels", report.kernels},
                                     {"kernels_s", report.kernel_seconds},
                                     {"ready_s", ready},
                                     {"first_step_ms", first_ms}};
      if (c.profile) told["profile"] = profile.ToJson(rates);
      fmt::print("{}\n", told.dump());
    } else {
      fmt::print(
          "{} {} batch {} on {} rank{}: {:.1f} ms/step (median of {}), {:.1f} {}/s, {:.0f} GFLOP/s, {:.0f} MB, "
          "prepared in {:.2f} s ({} kernels in {:.3f} s), {:.2f} s after the process started\n",
          c.model, c.precision, c.batch_size, world.size(), world.size() > 1 ? "s" : "", median, ms.size(), rate,
          trainer->task().samples(), flops / 1e6 / median, static_cast<double>(memory) / 1e6, prepared, report.kernels,
          report.kernel_seconds, ready);
      if (c.profile) fmt::print("\n{}", profile.Table(rates));
    }
    return OkStatus();
  });
}

}  // namespace switchyard
