// The training loop, evaluation and the run folder.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "core/base/logging.h"
#include "core/train/event_file.h"
#include "core/train/metrics.h"
#include "core/train/picture.h"
#include "core/train/progress.h"
#include "core/train/stopping.h"
#include "core/train/trainer_impl.h"

namespace switchyard {

namespace {

std::string TimeStamp() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

// What rank 0 writes beside the checkpoints.
class RunLog {
 public:
  static StatusOr<std::unique_ptr<RunLog>> Open(const std::string& run_folder, int node, int64_t resumed_step,
                                                bool tensorboard) {
    const std::string folder = fmt::format("{}/{}/log", run_folder, node);
    const std::string path = folder + "/metrics.jsonl";
    auto log = std::make_unique<RunLog>();
    SY_RETURN_IF_ERROR(DropMetricsAfter(path, resumed_step));
    SY_ASSIGN_OR_RETURN(auto metrics, MetricsWriter::Open(path));
    log->metrics_.emplace(std::move(metrics));
    if (tensorboard) {
      SY_ASSIGN_OR_RETURN(auto events, EventFile::Create(folder));
      log->events_.emplace(std::move(events));
    }
    log->path_ = path;
    return log;
  }
  Status Write(const MetricsRecord& record) { return metrics_->Write(record); }
  Status Scalar(const std::string& tag, int64_t step, double value) {
    return events_ ? events_->Scalar(tag, step, value) : OkStatus();
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
    if (!r.contains(key) || !r[key].is_number() || !r.contains("step")) return;
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

Status Trainer::Impl::OpenRunFolder() {
  if (run_folder.empty()) {
    std::string suffix = config.suffix;
    if (suffix.empty()) {  // rank 0's clock names the run
      suffix = TimeStamp();
      if (world_size() > 1) {
        if (rank() == 0) SY_RETURN_IF_ERROR(world.rendezvous->Put("run/suffix", suffix));
        SY_ASSIGN_OR_RETURN(suffix, world.rendezvous->Get("run/suffix", config.init_timeout_ms));
      }
    }
    run_folder = fmt::format("{}/{}/{}/{}/{}", config.output, model.name,
                             config.tag.empty() ? config.dataset : config.tag, suffix, config.output_suffix);
  }
  // Where --interpose=trace writes, unless the user chose.
  if (!config.interpose.empty()) setenv("SWITCHYARD_TRACE", (run_folder + "/trace.json").c_str(), 0);
  if (rank() != 0) return OkStatus();
  std::error_code error;
  std::filesystem::create_directories(run_folder, error);
  if (error)
    return InvalidArgument("cannot create the run folder {}: {}; choose another with --output", run_folder,
                           error.message());
  std::ofstream file(run_folder + "/config.json");
  file << ToJson(config).dump(2) << '\n';
  if (!file.flush()) return ResourceExhausted("cannot write {}/config.json", run_folder);
  return OkStatus();
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
    if (losses != nullptr) {
      SY_ASSIGN_OR_RETURN(const float loss, Scalar(places.loss));
      losses->push_back(loss);
    }
    epoch = next.epoch;
    batch = next.index + 1;
    ++a;
  }
  ++data_step;
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
    SY_RETURN_IF_ERROR(Run(*slots[slot].evaluation));
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
  // Counted from here: a run resumed with another batch has other epochs behind it than its updates say.
  const int64_t updates_of_epoch = impl.batch / config.accumulation + impl.total_updates - impl.data_step;
  const int64_t end_epoch = impl.epoch + (updates_of_epoch + per_epoch - 1) / per_epoch;
  if (impl.data_step < impl.total_updates) SY_RETURN_IF_ERROR(impl.loader->Start(impl.epoch, impl.batch, end_epoch));

  Stopping stopping(impl.world.communicator.get());
  TrainingResult result;
  double train_seconds = 0, interval_wait = 0;
  int64_t trained = 0, saved_at = impl.data_step, interval_updates = 0;
  double interval_seconds = 0;

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

    SY_ASSIGN_OR_RETURN(const bool stop, stopping.After(impl.data_step));
    train_seconds += SecondsSince(start);
    interval_seconds += SecondsSince(start);

    const int64_t step = impl.data_step, epoch = (step - 1) / per_epoch;
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
      if (!std::isfinite(loss)) {
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
                                       {"images_per_s", rate},
                                       {"data_wait_ms", 1e3 * interval_wait / per_update},
                                       {"comm_wait_ms", comm / per_update},
                                       {"memory_bytes", impl.memory->allocated_bytes()}}));
        SY_RETURN_IF_ERROR(log->Scalar("Loss/training/train_loss", step, loss));
        SY_RETURN_IF_ERROR(log->Scalar("Training/learning_rate", step, lr));
        ProgressState state;
        state.epoch = epoch + 1;
        state.epochs = end_epoch;
        state.step = step - epoch * per_epoch;
        state.steps = std::min(per_epoch, impl.total_updates - epoch * per_epoch);
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

    const bool epoch_ends = step % per_epoch == 0, run_ends = step == impl.total_updates;
    const bool evaluate =
        run_ends || (epoch_ends && config.eval_every > 0 && (step / per_epoch) % config.eval_every == 0);
    bool best = false;
    if (evaluate && !stop) {
      SY_ASSIGN_OR_RETURN(result.evaluation, Evaluate(*impl.validation_data));
      best = result.evaluation.top1 > impl.best_top1;
      impl.best_top1 = std::max(impl.best_top1, result.evaluation.top1);
      if (owner) {
        const EvaluationResult& e = result.evaluation;
        SY_RETURN_IF_ERROR(log->Write({{"step", step},
                                       {"epoch", epoch + 1},
                                       {"val_loss", e.loss},
                                       {"top1", e.top1},
                                       {"top5", e.top5},
                                       {"val_count", e.count}}));
        SY_RETURN_IF_ERROR(log->Scalar("Loss/training/val_loss", step, e.loss));
        SY_RETURN_IF_ERROR(log->Scalar("Metrics/validation/top1", step, e.top1));
        SY_RETURN_IF_ERROR(log->Scalar("Metrics/validation/top5", step, e.top5));
        progress->Line(fmt::format("epoch {}: validation loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} images{}",
                                   epoch + 1, e.loss, 100 * e.top1, 100 * e.top5, e.count,
                                   best ? ", the best so far" : ""));
      }
    }
    const bool due = config.save_every > 0 ? step - saved_at >= config.save_every : epoch_ends;
    if (due || run_ends || best || stop) {
      SY_RETURN_IF_ERROR(impl.Save(best, result.evaluation.top1));
      saved_at = step;
    }
    if (stop && !run_ends) {
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
    SY_ASSIGN_OR_RETURN(result.picture, DrawCurve(log->path(), impl.run_folder,
                                                  fmt::format("{} on {}", impl.model.name, config.dataset)));
  }
  result.updates = impl.data_step;
  result.epochs = impl.data_step / per_epoch;
  result.best_top1 = impl.best_top1;
  result.run_folder = impl.run_folder;
  result.seconds = train_seconds;
  result.images_per_s = static_cast<double>(trained * impl.samples_per_update()) / std::max(1e-9, train_seconds);
  return result;
}

}  // namespace switchyard
