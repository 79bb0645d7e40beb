// The training loop and what stands around it. A Trainer owns the plans and the memory of one run on one rank; it is
// given the model as a function with its task, the datasets, and the World. Every rank makes one with equal options;
// the calls below are collective unless they say otherwise.
//
//   World → Trainer::Create (graphs, plans, memory, starting weights) → Train, which saves checkpoints → Evaluate,
//   Predict …
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/graph/host_tensor.h"
#include "core/optim/schedule.h"
#include "core/plan/profile.h"
#include "core/train/config.h"
#include "core/train/trainable_model.h"
#include "core/train/world.h"

namespace switchyard {

struct TrainingResult {
  int64_t updates = 0, epochs = 0;                       // of the run
  int64_t here = 0, trained_here = 0;                    // updates since it was taken up; without those skipped
  double train_loss = 0, images_per_s = 0, seconds = 0;  // images/s over all ranks, evaluation and saving left out
  EvaluationResult evaluation;
  std::optional<double> best;  // of the task's best() metric, over all evaluations
  std::string run_folder, picture;
  bool interrupted = false;     // by SIGTERM or SIGUSR1; a checkpoint was saved
  int64_t skipped_updates = 0;  // their gradients were not finite, and --on_nonfinite=skip
};

class Trainer {
 public:
  // config: a whole run, as config.h says. With config.resume the trainer goes on where that
  // checkpoint was saved: weights, state and position; in its run folder if it lies in one, else in a new one. Throws
  // nothing: a wrong graph is an error that names the source line.
  static StatusOr<std::unique_ptr<Trainer>> Create(const TrainConfig& config, const TrainableModel& model,
                                                   const Dataset& train, const Dataset& validation, World& world);
  // Only to Evaluate and Predict once LoadWeights has brought the weights: no training plan, optimizer state or data.
  static StatusOr<std::unique_ptr<Trainer>> CreateForEvaluation(const TrainConfig& config, const TrainableModel& model,
                                                                World& world);
  ~Trainer();

  // began: called on rank 0 when the run folder is there, before the first update.
  StatusOr<TrainingResult> Train(const std::function<Status(const std::string& run_folder)>& began = nullptr);
  // Where the run averages its weights, also of those.
  // stops: as EvaluateSamples takes it.
  StatusOr<EvaluationResult> Evaluate(const Dataset& dataset, const StopAsked& stops = nullptr);
  // Calls `read` with what the task predicts for each sample of a dataset whose labels do not matter, in its order;
  // empty for a sample that could not be read (config.max_bad_samples). An error of `read` is returned. One rank.
  Status Predict(const Dataset& dataset, ReadPrediction read);

  // Up to `count` samples of a dataset, evenly spaced, with what the task predicts; none where the task has no picture
  // of its samples. Local.
  StatusOr<std::vector<Example>> Examples(const Dataset& dataset, const std::vector<std::string>& names, int count);

  // Only weights, of any kind that weight_files.h knows. reset_head: where they have another number of classes, the new
  // classifier stays. averaged: those that a run with --ema_decay averaged.
  Status LoadWeights(const std::string& path, bool reset_head = false, bool averaged = false);

  // One update on batches given by the caller: each of the task's tensors, (A, B, …), as bytes; those that are optional
  // may be left out together. For tests and programs with loops of their own. Where grad_norm is not finite, nothing
  // was updated.
  struct StepResult {
    double loss = 0, lr = 0, grad_norm = 0;  // of this rank; loss is the mean over its micro-batches
    double loss_scale = 1;                   // that of its gradients
  };
  StatusOr<StepResult> Step(std::span<const std::span<const std::byte>> tensors);
  // As Step, but a device that works by itself is not waited for: the call returns when the update begun before this
  // one has ended, so that the next batch is made and copied while this one is worked on, as Train does it. The tensors
  // have been read by then. Wait waits for all that were begun; an update that fails is an error of a later call.
  Status Begin(std::span<const std::span<const std::byte>> tensors);
  Status Wait();
  // Calls of Step and Begin from now on are updates of `profile`; null: no more.
  void Record(Profile* profile);

  // Host copies of the parameters, by their names in the graph. Collective where ranks share a model.
  StatusOr<HostTensors> Parameters() const;
  Status SetParameters(const HostTensors& values);
  const Task& task() const;
  const ScheduleOptions& schedule() const;  // as the run follows it: rates scaled, times in updates
  const PlanReport& report() const;         // of the step that updates, if any, else of evaluation
  double update_flops() const;              // of this rank, all micro-steps of an update
  uint64_t planned_bytes() const;           // must equal allocated_bytes()
  uint64_t allocated_bytes() const;
  uint64_t planned_host_bytes() const;  // must equal host_allocated_bytes()
  uint64_t host_allocated_bytes() const;
  int64_t updates_per_epoch() const;
  std::string run_folder() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  static StatusOr<std::unique_ptr<Trainer>> Make(const TrainConfig& config, const TrainableModel& model, World& world);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
