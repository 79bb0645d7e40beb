#include "core/train/watching.h"

#include <utility>

#include "core/base/logging.h"
#include "core/train/picture.h"
#include "core/train/run_comparison.h"

namespace switchyard {
namespace {

// The loss curve of the whole run, from its log.
StatusOr<std::string> DrawCurve(const std::string& log, const std::string& run_folder, const std::string& title,
                                const Metric& best) {
  SY_ASSIGN_OR_RETURN(const std::vector<MetricsRecord> records, ReadMetrics(log));
  Series metric = LoggedValues(records, best.log);
  metric.name = best.words;
  const Chart chart = LossChart(
      title, "update", LoggedValues(records, "loss"), LoggedValues(records, "val_loss"), metric,
      {LoggedValues(records, kOfAverages + std::string("val_loss")), LoggedValues(records, kOfAverages + best.log)});
  SY_RETURN_IF_ERROR(SaveChart(chart, run_folder + "/loss.svg"));
  SY_RETURN_IF_ERROR(SaveChart(chart, run_folder + "/loss.png"));
  return run_folder + "/loss.png";
}

}  // namespace

StatusOr<std::unique_ptr<Watching>> Watching::Open(const std::string& run_folder, int node, int64_t step,
                                                   const TrainConfig& config, const Task& task) {
  constexpr char kMetrics[] = "metrics.jsonl";
  SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder));
  SY_ASSIGN_OR_RETURN(const Folder of_node, run.MakeInside(fmt::format("{}", node)));
  SY_ASSIGN_OR_RETURN(const Folder folder, of_node.MakeInside("log"));
  ProgressOptions progress;
  if (config.line_for_each_log) progress.line_interval_s = 0;
  std::unique_ptr<Watching> watching(new Watching(task, progress));
  SY_RETURN_IF_ERROR(DropMetricsAfter(folder, kMetrics, step));
  SY_RETURN_IF_ERROR(DropEventsAfter(folder, step));
  SY_ASSIGN_OR_RETURN(auto metrics, MetricsWriter::Open(folder, kMetrics));
  watching->files_ = std::make_shared<Files>(Files{std::move(metrics), std::nullopt});
  if (config.tensorboard) {
    SY_ASSIGN_OR_RETURN(auto events, EventFile::Create(folder));
    watching->files_->events.emplace(std::move(events));
  }
  SY_RETURN_IF_ERROR(folder.Sync());  // their names
  watching->run_folder_ = run_folder;
  watching->log_ = folder.PathOf(kMetrics);
  return watching;
}

Status Watching::Trained(const MetricsRecord& record, ProgressState state) {
  SY_RETURN_IF_ERROR(files_->metrics.Write(record));
  const int64_t step = record["step"];
  SY_RETURN_IF_ERROR(Scalar("Loss/training/train_loss", step, record["loss"]));
  SY_RETURN_IF_ERROR(Scalar("Training/learning_rate", step, record["lr"]));
  SY_RETURN_IF_ERROR(Scalar("Training/grad_norm", step, record["grad_norm"]));
  if (record.contains("loss_scale")) {
    state.loss_scale = record["loss_scale"].get<double>();
    SY_RETURN_IF_ERROR(Scalar("Training/loss_scale", step, *state.loss_scale));
  }
  state.images_per_s = record["images_per_s"].get<double>();
  state.loss = record["loss"].get<double>();
  state.lr = record["lr"].get<double>();
  state.grad_norm = record["grad_norm"].get<double>();
  state.data_wait_ms = record["data_wait_ms"].get<double>();
  state.memory_bytes = record["memory_bytes"].get<double>();
  state.samples = samples_;
  progress_.Update(state);
  return OkStatus();
}

Status Watching::Evaluated(int64_t step, int64_t epoch, const EvaluationResult& e, bool best) {
  MetricsRecord record = {{"step", step}, {"epoch", epoch}};
  for (const Metric& metric : metrics_of_task_) {
    const auto found = e.metrics.find(metric.name);
    if (found == e.metrics.end()) continue;
    record[metric.log] = found->second;
    SY_RETURN_IF_ERROR(Scalar(metric.tag, step, found->second));
  }
  for (const Metric& metric : metrics_of_task_) {
    const auto found = e.ema.find(metric.name);
    if (found == e.ema.end()) continue;
    record[kOfAverages + metric.log] = found->second;
    const size_t last = metric.tag.rfind('/') + 1;
    SY_RETURN_IF_ERROR(Scalar(metric.tag.substr(0, last) + "ema_" + metric.tag.substr(last), step, found->second));
  }
  record["val_count"] = e.count;
  SY_RETURN_IF_ERROR(files_->metrics.Write(record));
  EvaluationResult averaged;
  averaged.metrics = e.ema;
  Line(fmt::format("epoch {}: validation {} of {} {}{}{}", epoch, Text(metrics_of_task_, e), e.count, samples_,
                   e.ema.empty() ? "" : "; of averaged weights " + Text(metrics_of_task_, averaged),
                   best ? ", the best so far" : ""));
  return OkStatus();
}

Status Watching::Examples(int64_t step, std::span<const Example> examples) {
  if (!files_->events || examples.empty()) return OkStatus();
  if (!std::exchange(showed_samples_, true)) {
    SY_RETURN_IF_ERROR(files_->events->Picture("images", step, ExampleSheet(examples, SheetOf::kImages)));
    SY_RETURN_IF_ERROR(files_->events->Picture("Label/ground_truth", step, ExampleSheet(examples, SheetOf::kTruth)));
  }
  return files_->events->Picture("Label/predicted", step, ExampleSheet(examples, SheetOf::kPredicted));
}

std::function<Status()> Watching::Syncing() const {
  return [files = files_]() -> Status {
    SY_RETURN_IF_ERROR(files->metrics.Sync());
    return files->events ? files->events->Sync() : OkStatus();
  };
}

StatusOr<std::string> Watching::Finish(const std::string& title) {
  progress_.Finish();
  // The training is done and saved, whatever becomes of its picture.
  StatusOr<std::string> drawn = DrawCurve(log_, run_folder_, title, best_);
  if (drawn.ok()) return drawn;
  LogWarning("the loss curve was not drawn: {}", Message(drawn.status()));
  return std::string();
}

}  // namespace switchyard
