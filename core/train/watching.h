// What rank 0 shows and writes of a run while it trains: the progress bar, the log (metrics.jsonl), TensorBoard's event
// file, and the loss curve at its end. One thread; files in <run>/<node>/log and <run>.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/train/config.h"
#include "core/train/event_file.h"
#include "core/train/metrics.h"
#include "core/train/progress.h"
#include "core/train/trainer.h"

namespace switchyard {

class Watching {
 public:
  // What was written after update `step` belongs to a future that is given up: it is dropped. Of the configuration:
  // whether event files are written, and how often lines.
  static StatusOr<std::unique_ptr<Watching>> Open(const std::string& run_folder, int node, int64_t step,
                                                  const TrainConfig& config, const Task& task);

  // The training since the last such call. record: a line of the log, as TrainingLoop::Log writes it; state: where the
  // run is, to which what the bar shows of the record is added.
  Status Trained(const MetricsRecord& record, ProgressState state);
  // epoch: from 1.
  Status Evaluated(int64_t step, int64_t epoch, const EvaluationResult& result, bool best);
  // Pictures in the event file: the samples and what is true of them with the first such call, what is predicted with
  // each.
  Status Examples(int64_t step, std::span<const Example> examples);
  void Line(const std::string& text) { progress_.Line(text); }

  // Brings log and event file to the disk, from any thread and also when this object is gone.
  std::function<Status()> Syncing() const;

  // Ends the bar, draws the curve and gives its path. The last save has brought the log to the disk.
  StatusOr<std::string> Finish(const std::string& title);

 private:
  struct Files {
    MetricsWriter metrics;
    std::optional<EventFile> events;
  };
  Watching(const Task& task, const ProgressOptions& progress)
      : metrics_of_task_(task.metrics()), best_(task.best()), samples_(task.samples()), progress_(progress) {}
  Status Scalar(const std::string& tag, int64_t step, double value) {
    return files_->events ? files_->events->Scalar(tag, step, value) : OkStatus();
  }
  const std::vector<Metric> metrics_of_task_;
  const Metric best_;
  const std::string samples_;  // what people call them
  std::shared_ptr<Files> files_;
  bool showed_samples_ = false;
  Progress progress_;
  std::string run_folder_, log_;
};

}  // namespace switchyard
