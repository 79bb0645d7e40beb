#include "core/train/watching.h"

#include "core/train/picture.h"

namespace switchyard {
namespace {

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

StatusOr<std::unique_ptr<Watching>> Watching::Open(const std::string& run_folder, int node, int64_t step,
                                                   bool tensorboard) {
  constexpr char kMetrics[] = "metrics.jsonl";
  SY_ASSIGN_OR_RETURN(const Folder run, Folder::Open(run_folder));
  SY_ASSIGN_OR_RETURN(const Folder of_node, run.MakeInside(fmt::format("{}", node)));
  SY_ASSIGN_OR_RETURN(const Folder folder, of_node.MakeInside("log"));
  std::unique_ptr<Watching> watching(new Watching);
  SY_RETURN_IF_ERROR(DropMetricsAfter(folder, kMetrics, step));
  SY_RETURN_IF_ERROR(DropEventsAfter(folder, step));
  SY_ASSIGN_OR_RETURN(auto metrics, MetricsWriter::Open(folder, kMetrics));
  watching->metrics_.emplace(std::move(metrics));
  if (tensorboard) {
    SY_ASSIGN_OR_RETURN(auto events, EventFile::Create(folder));
    watching->events_.emplace(std::move(events));
  }
  watching->run_folder_ = run_folder;
  watching->log_ = folder.PathOf(kMetrics);
  return watching;
}

Status Watching::Trained(const MetricsRecord& record, const ProgressState& state) {
  SY_RETURN_IF_ERROR(metrics_->Write(record));
  const int64_t step = record["step"];
  SY_RETURN_IF_ERROR(Scalar("Loss/training/train_loss", step, record["loss"]));
  SY_RETURN_IF_ERROR(Scalar("Training/learning_rate", step, record["lr"]));
  SY_RETURN_IF_ERROR(Scalar("Training/grad_norm", step, record["grad_norm"]));
  progress_.Update(state);
  return OkStatus();
}

Status Watching::Evaluated(int64_t step, int64_t epoch, const EvaluationResult& e, bool best) {
  SY_RETURN_IF_ERROR(metrics_->Write({{"step", step},
                                      {"epoch", epoch},
                                      {"val_loss", e.loss},
                                      {"top1", e.top1},
                                      {"top5", e.top5},
                                      {"val_count", e.count}}));
  SY_RETURN_IF_ERROR(Scalar("Loss/validation/val_loss", step, e.loss));
  SY_RETURN_IF_ERROR(Scalar("Metrics/validation/top1", step, e.top1));
  SY_RETURN_IF_ERROR(Scalar("Metrics/validation/top5", step, e.top5));
  Line(fmt::format("epoch {}: validation loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} images{}", epoch, e.loss,
                   100 * e.top1, 100 * e.top5, e.count, best ? ", the best so far" : ""));
  return OkStatus();
}

StatusOr<std::string> Watching::Finish(const std::string& title) {
  progress_.Finish();
  SY_RETURN_IF_ERROR(metrics_->Sync());
  if (events_) SY_RETURN_IF_ERROR(events_->Sync());
  return DrawCurve(log_, run_folder_, title);
}

}  // namespace switchyard
