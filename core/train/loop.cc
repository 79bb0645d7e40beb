// The training loop, evaluation and the run folder.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/library.h"
#include "core/train/event_file.h"
#include "core/train/metrics.h"
#include "core/train/picture.h"
#include "core/train/progress.h"
#include "core/train/stopping.h"
#include "core/train/trainer_impl.h"

namespace switchyard {

namespace {

constexpr int64_t kMostSkipped = 100;  // updates in a row, with --on_nonfinite=skip

// What rank 0 writes beside the checkpoints.
class RunLog {
 public:
  static StatusOr<std::unique_ptr<RunLog>> Open(const std::string& run_folder, int node, int64_t resumed_step,
                                                bool tensorboard) {
    constexpr char kMetrics[] = "metrics.jsonl";
    SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder));
    SY_ASSIGN_OR_RETURN(const Folder of_node, run.MakeInside(fmt::format("{}", node)));
    SY_ASSIGN_OR_RETURN(const Folder folder, of_node.MakeInside("log"));
    auto log = std::make_unique<RunLog>();
    SY_RETURN_IF_ERROR(DropMetricsAfter(folder, kMetrics, resumed_step));
    SY_RETURN_IF_ERROR(DropEventsAfter(folder, resumed_step));
    SY_ASSIGN_OR_RETURN(auto metrics, MetricsWriter::Open(folder, kMetrics));
    log->metrics_.emplace(std::move(metrics));
    if (tensorboard) {
      SY_ASSIGN_OR_RETURN(auto events, EventFile::Create(folder));
      log->events_.emplace(std::move(events));
    }
    log->path_ = folder.PathOf(kMetrics);
    return log;
  }
  Status Write(const MetricsRecord& record) { return metrics_->Write(record); }
  Status Scalar(const std::string& tag, int64_t step, double value) {
    return events_ ? events_->Scalar(tag, step, value) : OkStatus();
  }
  Status Sync() {
    SY_RETURN_IF_ERROR(metrics_->Sync());
    return events_ ? events_->Sync() : OkStatus();
  }
  const std::string& path() const { return path_; }

 private:
  std::optional<MetricsWriter> metrics_;
  std::optional<EventFile> events_;
  std::string path_;
};

// The loss curve of the whole run, from its log.
StatusOr<std::string> DrawCurve(const std::string& log, const std::string& run_folder, const std::string& title) {
  SY_ASSIGN_OR_RETURN(const std::vector<MetricsRecord> records, ReadMetrics(log));
  Series train{"train loss", {}, {}}, validation{"validation loss", {}, {}}, accuracy{"top-1 accuracy", {}, {}};
  const auto add = [](Series& series, const MetricsRecord& r, const char* key) {
    if (!r.contains(key) || !r[key].is_number() || !r.contains("step") || !r["step"].is_number()) return;
    series.x.push_back(r["step"].get<double>());
    series.y.push_back(r[key].get<double>());
  };
  for (const MetricsRecord& r : records) {
    add(train, r, "loss");
    add(validation, r, "val_loss");
    add(accuracy, r, "top1");
  }
  const Chart chart = LossChart(title, "update", train, validation, accuracy);
  SY_RETURN_IF_ERROR(SaveChart(chart, run_folder + "/loss.svg"));
  SY_RETURN_IF_ERROR(SaveChart(chart, run_folder + "/loss.png"));
  return run_folder + "/loss.png";
}

}  // namespace

Status Trainer::Impl::MakeOrTakeUpRunFolder() {
  const bool goes_on = !run_folder.empty();
  if (!goes_on) {
    SY_ASSIGN_OR_RETURN(run_folder, CreateRunFolder(config, model.name));
    const bool aside = std::filesystem::path(resumed_from).parent_path().filename() == "abandoned";
    if (!resumed_from.empty())
      LogWarning("{} {}; the run goes on in a new one, {}", resumed_from,
                 aside ? "was set aside when its run went back" : "lies in no run folder of ours", run_folder);
  }
  SY_ASSIGN_OR_RETURN(RunFolderLock lock, RunFolderLock::Take(run_folder));
  run_lock.emplace(std::move(lock));
  if (!goes_on) return OkStatus();
  SY_RETURN_IF_ERROR(SetLaterCheckpointsAside(resumed_from));
  return WriteRunConfig(run_folder, config);
}

// All ranks come to the verdict of rank 0.
Status Trainer::Impl::OpenRunFolder() {
  Status status;
  if (rank() == 0) status = MakeOrTakeUpRunFolder();
  if (world_size() > 1) {
    std::string verdict = status.ok() ? "+" + run_folder : "-" + Message(status);
    SY_RETURN_IF_ERROR(BroadcastText(verdict, 0));
    if (rank() != 0 && verdict[0] == '+') run_folder = verdict.substr(1);
    if (rank() != 0 && verdict[0] == '-') status = FailedPrecondition("{}", verdict.substr(1));
  }
  SY_RETURN_IF_ERROR(status);
  // Where --interpose=trace writes, unless the user chose.
  if (!config.interpose.empty() && !Environment("SWITCHYARD_TRACE"))
    ProvideSetting("TRACE", run_folder + "/trace.json");
  return OkStatus();
}

// The device has left the update out already: parameters, moments and the schedule are as they were.
Status Trainer::Impl::CheckGradients(bool followed) {
  if (!unread) return OkStatus();
  const Unread update = *std::exchange(unread, std::nullopt);
  if (world.device->async()) SY_RETURN_IF_ERROR(world.Wait(slots[update.slot].finished));
  SY_ASSIGN_OR_RETURN(const float norm, ScalarIn(places.grad_norm, update.slot));
  if (std::isfinite(norm)) {
    skipped_in_a_row = 0;
    return OkStatus();
  }
  ++skipped;
  ++skipped_in_a_row;
  // The norm is of gradients summed over the ranks, so each of them comes here.
  if (config.on_nonfinite == "skip" && skipped_in_a_row < kMostSkipped) {
    const bool told = (skipped & (skipped - 1)) == 0;  // the 1st, 2nd, 4th, 8th …
    if (rank() == 0 && told) {
      LogWarning("update {} is left out: the norm of its gradients is {} ({} so far)", update.step, norm, skipped);
    }
    return OkStatus();
  }
  double loss = 0;
  SY_ASSIGN_OR_RETURN(loss, ScalarIn(places.loss, update.slot));
  if (world.communicator) {
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("loss", &loss, &loss, 1, SY_F64, SY_SUM));
    loss /= world_size();
  }
  SY_ASSIGN_OR_RETURN(const float lr, ScalarIn(places.lr, update.slot));
  SY_ASSIGN_OR_RETURN(const std::string tensor, FirstNonFinite(followed));
  return FailedPrecondition(
      "the norm of the gradients is {} at update {} (epoch {}, loss {:.4g}, lr {:.3g}){}; {}. Lower --lr, raise "
      "--warmup, set --clip, find the first bad value with --debug=nan, or leave such updates out with "
      "--on_nonfinite=skip; what was saved before is whole",
      norm, update.step, epoch + 1, loss, lr,
      skipped_in_a_row > 1 ? fmt::format(", the {}th in a row", skipped_in_a_row) : "", tensor);
}

// Parameters, then gradients as the backward pass finishes them, so that the first bad one is nearest to where it
// began. Where the next update has begun, the gradients are that one's.
StatusOr<std::string> Trainer::Impl::FirstNonFinite(bool followed) {
  SY_RETURN_IF_ERROR(world.Synchronize(stream));
  const auto first_bad = [](const float* values, size_t count) {
    return std::find_if(values, values + count, [](float value) { return !std::isfinite(value); }) - values;
  };
  std::vector<float> values;
  for (const GradientPlace& place : program.gradient_places) {
    const Layout::Entry* entry = layout->Find(place.parameter);
    values.resize(entry->bytes / sizeof(float));
    SY_RETURN_IF_ERROR(memory->Download(place.parameter, values.data(), entry->bytes));
    const auto at = static_cast<size_t>(first_bad(values.data(), values.size()));
    if (at < values.size())
      return fmt::format("the parameter {} {} holds {} at element {}, from an update before", place.parameter,
                         ToString(entry->type.shape), values[at], at);
  }
  std::map<std::string, std::vector<float>> buckets;
  std::pair<float, std::string> largest;
  for (const GradientPlace& place : program.gradient_places) {
    std::vector<float>& bucket = buckets[place.bucket];
    if (bucket.empty()) {
      const Layout::Entry* entry = layout->Find(place.bucket);
      bucket.resize(entry->bytes / sizeof(float));
      SY_RETURN_IF_ERROR(memory->Download(place.bucket, bucket.data(), entry->bytes));
    }
    const auto count = static_cast<size_t>(place.elements);
    const float* const gradient = bucket.data() + place.start;
    const auto at = static_cast<size_t>(first_bad(gradient, count));
    if (at < count)
      return fmt::format("the first from the loss backwards that is not finite{} is that of {} {}: {} at element {}",
                         followed ? ", in the update that followed," : "", place.parameter,
                         ToString(layout->Find(place.parameter)->type.shape), gradient[at], at);
    for (size_t i = 0; i < count; ++i) {
      if (std::abs(gradient[i]) > largest.first) largest = {std::abs(gradient[i]), place.parameter};
    }
  }
  if (followed) return std::string("which gradient it was is not known any more");
  return fmt::format("every gradient is finite, but the sum of their squares is not; the largest is that of {}: {:.3g}",
                     largest.second, largest.first);
}

// One update from the loader. False at the end of the data. Fills losses (one per micro-step) only if asked to: that
// waits.
StatusOr<bool> Trainer::Impl::TrainUpdate(std::vector<double>* losses, double* data_wait) {
  for (int a = 0; a < config.accumulation;) {
    Batch next;
    SY_ASSIGN_OR_RETURN(const bool more, loader->Next(&next));
    if (!more) return false;
    *data_wait += next.wait_seconds;
    if (next.index >= updates_per_epoch * config.accumulation)
      continue;  // the epoch's last batches do not fill a round
    SY_RETURN_IF_ERROR(UploadBatch(next.images, next.labels, next.sample_ids, a));
    SY_RETURN_IF_ERROR(RunMicroStep(a));
    SY_RETURN_IF_ERROR(CheckGradients(/*followed=*/true));
    if (losses != nullptr) {
      SY_ASSIGN_OR_RETURN(const float loss, Scalar(places.loss));
      losses->push_back(loss);
    }
    epoch = next.epoch;
    batch = next.index + 1;
    ++a;
  }
  ++data_step;
  unread = {slot, data_step};
  return true;
}

Status Trainer::Impl::EvaluateBatches(Loader& batches, ReadOutputs read) {
  SY_RETURN_IF_ERROR(batches.StartEpoch(0));
  std::vector<int32_t> unread;  // labels of the batch whose outputs have not been read yet
  int unread_slot = 0;
  const auto read_last = [&]() -> Status {
    if (unread.empty()) return OkStatus();
    if (world.device->async()) SY_RETURN_IF_ERROR(world.Wait(slots[unread_slot].finished));
    return read(std::exchange(unread, {}), unread_slot);
  };
  for (Batch next;;) {
    SY_ASSIGN_OR_RETURN(const bool more, batches.Next(&next));
    if (!more) return read_last();
    if (slots.size() == 1) SY_RETURN_IF_ERROR(read_last());  // nowhere else to put the next one
    SY_RETURN_IF_ERROR(UploadBatch(next.images, next.labels, next.sample_ids, 0));
    SY_RETURN_IF_ERROR(Run(In(slots[slot], "evaluate")));
    SY_RETURN_IF_ERROR(read_last());
    unread.assign(next.labels, next.labels + next.batch_size);
    unread_slot = slot;
  }
}

StatusOr<EvaluationResult> Trainer::Evaluate(const Dataset& dataset) {
  Impl& impl = *impl_;
  SY_ASSIGN_OR_RETURN(const EvaluationTransform transform, EvaluationOf(impl.config, impl.model, dataset.crop_ratio()));
  SY_ASSIGN_OR_RETURN(const auto loader, MakeLoader(impl.config, transform, dataset, impl.world, false));
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> losses(impl.config.batch_size);
  std::vector<int32_t> ranks(impl.config.batch_size);
  double sums[4] = {};  // loss, top-1, top-5, count
  SY_RETURN_IF_ERROR(impl.EvaluateBatches(*loader, [&](const std::vector<int32_t>& labels, int slot) -> Status {
    SY_RETURN_IF_ERROR(impl.memory->Download("output/eval_loss", losses.data(), losses.size() * sizeof(float), slot));
    SY_RETURN_IF_ERROR(impl.memory->Download("output/eval_rank", ranks.data(), ranks.size() * sizeof(int32_t), slot));
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < 0) continue;  // padding counts nowhere
      sums[0] += losses[i];
      sums[1] += ranks[i] < 1;
      sums[2] += ranks[i] < 5;
      sums[3] += 1;
    }
    return OkStatus();
  }));
  if (impl.world.communicator)
    SY_RETURN_IF_ERROR(impl.world.communicator->AllReduce("evaluation", sums, sums, 4, SY_F64, SY_SUM));
  EvaluationResult result;
  result.count = static_cast<int64_t>(sums[3]);
  if (result.count > 0) {
    result.loss = sums[0] / sums[3];
    result.top1 = sums[1] / sums[3];
    result.top5 = sums[2] / sums[3];
  }
  result.images_per_s = sums[3] / std::max(1e-9, SecondsSince(start));
  return result;
}

StatusOr<std::vector<std::vector<double>>> Trainer::Predict(const Dataset& dataset) {
  Impl& impl = *impl_;
  SY_ASSIGN_OR_RETURN(const EvaluationTransform transform, EvaluationOf(impl.config, impl.model, dataset.crop_ratio()));
  SY_ASSIGN_OR_RETURN(const auto loader, MakeLoader(impl.config, transform, dataset, impl.world, false));
  const auto classes = static_cast<size_t>(impl.model.classes);
  std::vector<float> logits(classes * static_cast<size_t>(impl.config.batch_size));
  std::vector<std::vector<double>> results;
  SY_RETURN_IF_ERROR(impl.EvaluateBatches(*loader, [&](const std::vector<int32_t>& labels, int slot) -> Status {
    SY_RETURN_IF_ERROR(impl.memory->Download("output/eval_logits", logits.data(), logits.size() * sizeof(float), slot));
    for (size_t i = 0; i < labels.size() && static_cast<int64_t>(results.size()) < dataset.size(); ++i) {
      if (labels[i] < 0) {
        results.emplace_back();
        continue;
      }
      const float* row = logits.data() + i * classes;
      const float largest = *std::max_element(row, row + classes);
      std::vector<double> p(classes);
      double sum = 0;
      for (size_t c = 0; c < classes; ++c) sum += p[c] = std::exp(static_cast<double>(row[c]) - largest);
      for (double& value : p) value /= sum;
      results.push_back(std::move(p));
    }
    return OkStatus();
  }));
  return results;
}

StatusOr<TrainingResult> Trainer::Train() {
  Impl& impl = *impl_;
  const TrainConfig& config = impl.config;
  const bool owner = impl.rank() == 0;
  SY_RETURN_IF_ERROR(impl.OpenRunFolder());
  std::unique_ptr<RunLog> log;
  std::optional<Progress> progress;
  if (owner) {
    SY_ASSIGN_OR_RETURN(log,
                        RunLog::Open(impl.run_folder, impl.world.processes.node, impl.data_step, config.tensorboard));
    progress.emplace();
    impl.writer = std::make_unique<CheckpointWriter>(impl.run_folder);
  }
  const int64_t per_epoch = impl.updates_per_epoch;
  if (impl.batch >= per_epoch * config.accumulation) {
    impl.batch = 0;
    ++impl.epoch;
  }
  // Counted from here: a run whose global batch was changed has other epochs behind it than its updates say.
  const int64_t updates_of_epoch = impl.batch / config.accumulation + impl.total_updates - impl.data_step;
  const int64_t end_epoch = impl.epoch + (updates_of_epoch + per_epoch - 1) / per_epoch;
  if (impl.data_step < impl.total_updates) SY_RETURN_IF_ERROR(impl.loader->Start(impl.epoch, impl.batch, end_epoch));

  Stopping stopping(impl.world.communicator.get());
  TrainingResult result;
  double train_seconds = 0, interval_wait = 0;
  int64_t trained = 0, saved_at = impl.data_step, interval_updates = 0;
  double interval_seconds = 0;

  // Is it the best so far?
  const auto evaluate_after = [&](int64_t step, int64_t epoch) -> StatusOr<bool> {
    SY_ASSIGN_OR_RETURN(result.evaluation, Evaluate(*impl.validation_data));
    const EvaluationResult& e = result.evaluation;
    const bool best = e.top1 > impl.best_top1;
    impl.best_top1 = std::max(impl.best_top1, e.top1);
    if (!owner) return best;
    SY_RETURN_IF_ERROR(log->Write({{"step", step},
                                   {"epoch", epoch + 1},
                                   {"val_loss", e.loss},
                                   {"top1", e.top1},
                                   {"top5", e.top5},
                                   {"val_count", e.count}}));
    SY_RETURN_IF_ERROR(log->Scalar("Loss/validation/val_loss", step, e.loss));
    SY_RETURN_IF_ERROR(log->Scalar("Metrics/validation/top1", step, e.top1));
    SY_RETURN_IF_ERROR(log->Scalar("Metrics/validation/top5", step, e.top5));
    progress->Line(fmt::format("epoch {}: validation loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} images{}",
                               epoch + 1, e.loss, 100 * e.top1, 100 * e.top5, e.count,
                               best ? ", the best so far" : ""));
    return best;
  };
  if (std::exchange(impl.evaluation_pending, false)) {
    SY_ASSIGN_OR_RETURN(const bool best, evaluate_after(impl.data_step, impl.epoch - (impl.batch == 0 ? 1 : 0)));
    SY_RETURN_IF_ERROR(impl.Save(best, result.evaluation.top1));
  }

  while (impl.data_step < impl.total_updates) {
    const auto start = std::chrono::steady_clock::now();
    const bool logged =
        (impl.data_step + 1) % config.log_every == 0 || impl.data_step + 1 == impl.total_updates || impl.data_step == 0;
    std::vector<double> losses;
    double waited = 0;
    SY_ASSIGN_OR_RETURN(const bool more, impl.TrainUpdate(logged ? &losses : nullptr, &waited));
    if (!more) return Internal("the loader ended after {} of {} updates", impl.data_step, impl.total_updates);
    interval_wait += waited;
    ++interval_updates;
    ++trained;

    const int64_t skipped_before = impl.skipped;
    if (logged || !impl.world.device->async()) SY_RETURN_IF_ERROR(impl.CheckGradients(/*followed=*/false));

    SY_ASSIGN_OR_RETURN(const bool stop, stopping.After(impl.data_step));
    train_seconds += SecondsSince(start);
    interval_seconds += SecondsSince(start);

    const int64_t step = impl.data_step, epoch = impl.epoch, step_of_epoch = impl.batch / config.accumulation;
    if (logged) {
      double loss = 0;
      for (const double l : losses) loss += l / static_cast<double>(losses.size());
      if (impl.world.communicator) {
        SY_RETURN_IF_ERROR(impl.world.communicator->AllReduce("loss", &loss, &loss, 1, SY_F64, SY_SUM));
        loss /= impl.world_size();
      }
      SY_ASSIGN_OR_RETURN(const float lr, impl.Scalar(impl.places.lr));
      SY_ASSIGN_OR_RETURN(const float norm, impl.Scalar(impl.places.grad_norm));
      result.train_loss = loss;
      if (!std::isfinite(loss) && impl.skipped == skipped_before) {
        return FailedPrecondition(
            "the loss is {} at update {} (epoch {}, lr {:.3g}): lower --lr, raise --warmup, or find the first bad "
            "value with --debug=nan",
            loss, step, epoch + 1, lr);
      }
      if (owner) {
        const double rate =
            static_cast<double>(interval_updates * impl.samples_per_update()) / std::max(1e-9, interval_seconds);
        const double comm = impl.world.communicator ? impl.world.communicator->TakeWaitMilliseconds() : 0;
        const auto per_update = static_cast<double>(interval_updates);
        SY_RETURN_IF_ERROR(log->Write({{"step", step},
                                       {"epoch", epoch + 1},
                                       {"loss", loss},
                                       {"lr", lr},
                                       {"grad_norm", norm},
                                       {"skipped_updates", impl.skipped},
                                       {"images_per_s", rate},
                                       {"data_wait_ms", 1e3 * interval_wait / per_update},
                                       {"comm_wait_ms", comm / per_update},
                                       {"memory_bytes", impl.memory->allocated_bytes()}}));
        SY_RETURN_IF_ERROR(log->Scalar("Loss/training/train_loss", step, loss));
        SY_RETURN_IF_ERROR(log->Scalar("Training/learning_rate", step, lr));
        SY_RETURN_IF_ERROR(log->Scalar("Training/grad_norm", step, norm));
        ProgressState state;
        state.epoch = epoch + 1;
        state.epochs = end_epoch;
        state.step = step_of_epoch;
        state.steps = std::min(per_epoch, step_of_epoch + impl.total_updates - step);
        state.images_per_s = rate;
        state.remaining_s = static_cast<double>((state.steps - state.step) * impl.samples_per_update()) / rate;
        state.loss = loss;
        state.lr = lr;
        state.grad_norm = norm;
        state.data_wait_ms = 1e3 * interval_wait / per_update;
        progress->Update(state);
      }
      interval_wait = interval_seconds = 0;
      interval_updates = 0;
    }

    const bool epoch_ends = step_of_epoch == per_epoch, run_ends = step == impl.total_updates;
    const bool evaluate = run_ends || (epoch_ends && config.eval_every > 0 && (epoch + 1) % config.eval_every == 0);
    const bool due = config.save_every ? step - saved_at >= *config.save_every : epoch_ends;
    if (evaluate || due || stop) SY_RETURN_IF_ERROR(impl.CheckGradients(/*followed=*/false));
    bool best = false;
    impl.evaluation_pending = evaluate && stop;  // who stops a run gives it little time: a resumed one catches up
    if (evaluate && !stop) {
      SY_ASSIGN_OR_RETURN(best, evaluate_after(step, epoch));
    }
    if (due || run_ends || best || stop) {
      SY_RETURN_IF_ERROR(impl.Save(best, result.evaluation.top1));
      saved_at = step;
    }
    if (stop) {
      result.interrupted = true;
      if (owner)
        progress->Line(
            fmt::format("stopped by a signal after update {}; go on with --resume={}", step, impl.run_folder));
      break;
    }
  }
  if (result.evaluation.count == 0 && !result.interrupted) {  // resumed at its end: nothing was left to train
    SY_ASSIGN_OR_RETURN(result.evaluation, Evaluate(*impl.validation_data));
  }
  if (owner) {
    progress->Finish();
    SY_RETURN_IF_ERROR(impl.writer->Finish());
    SY_RETURN_IF_ERROR(log->Sync());
    SY_ASSIGN_OR_RETURN(result.picture, DrawCurve(log->path(), impl.run_folder,
                                                  fmt::format("{} on {}", impl.model.name, config.dataset)));
    impl.run_lock.reset();
  }
  result.updates = impl.data_step;
  result.skipped_updates = impl.skipped;
  result.epochs = impl.epoch + (impl.batch / config.accumulation == per_epoch ? 1 : 0);
  result.best_top1 = impl.best_top1;
  result.run_folder = impl.run_folder;
  result.seconds = train_seconds;
  result.images_per_s = static_cast<double>(trained * impl.samples_per_update()) / std::max(1e-9, train_seconds);
  return result;
}

}  // namespace switchyard
