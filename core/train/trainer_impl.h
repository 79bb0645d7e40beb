// What a Trainer is made of. Internal to core/train: trainer.cc builds and steps, loop.cc trains and evaluates,
// resume.cc keeps and restores.
#pragma once

#include <absl/functional/function_ref.h>

#include <chrono>
#include <optional>
#include <vector>

#include "core/train/plans.h"
#include "core/train/run_folder.h"
#include "core/train/trainer.h"

namespace switchyard {

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The loader of one rank: shuffled and augmented for training, every sample once for evaluation.
StatusOr<std::unique_ptr<Loader>> MakeLoader(const TrainConfig& config, const EvaluationTransform& evaluation,
                                             const Dataset& data, const World& world, bool train);

struct Trainer::Impl : TrainingPlans {
  explicit Impl(World& w) : world(w) {}
  // A step that failed half-way may have left work on the stream; it uses the memory that is freed now.
  ~Impl() {
    for (Stream* const used : {&uploads, &stream}) {
      if (used->handle() != nullptr) (void)world.Synchronize(*used);
    }
  }
  World& world;
  TrainConfig config;
  TrainableModel model;
  const Dataset* train_data = nullptr;
  const Dataset* validation_data = nullptr;

  std::unique_ptr<Memory> memory;
  Stream stream, uploads;  // where steps run; where batches are copied in
  // One for each io slot, used in turn. On an asynchronous device a batch is copied into one slot while the step over
  // the other runs; the loader may go on as soon as the batch lies in `staging`.
  struct Slot {
    std::vector<std::unique_ptr<Instance>> instances;  // as `plans`
    HostMemory staging;                                // pinned where the device can
    Event uploaded, finished;  // of the last batch: it has left `staging`; its step is done, its outputs may be read
  };
  std::vector<Slot> slots;
  int slot = 0;  // of the last batch

  // Where a step's inputs and scalars lie; null: the model draws no random numbers.
  struct Places {
    const Layout::Entry *images, *labels, *sample_ids, *step, *loss, *lr, *grad_norm;
  } places{};
  std::vector<int32_t> own_samples;  // sample_ids of batches that the caller of Step brings
  std::vector<int32_t> in_update;    // sample_ids counted over the micro-steps of an update

  std::unique_ptr<Loader> loader;
  int64_t updates_per_epoch = 0, total_updates = 0;
  ScheduleOptions schedule;
  std::vector<float> lr_table;

  // Where the run stands. The device's own counter of updates is state "update"; it differs after steps skipped for
  // overflow. An epoch's updates differ after the global batch was changed, so that only epoch and batch say where in
  // the data the run is.
  int64_t data_step = 0;  // updates begun
  int64_t epoch = 0;      // of the next batch
  int64_t batch = 0;      // the next batch's index in its epoch
  // The last update, until its gradient norm has been read: on an asynchronous device that is while the next one runs.
  struct Unread {
    int slot = 0;
    int64_t step = 0;  // data_step behind it
  };
  std::optional<Unread> unread;
  int64_t skipped = 0, skipped_in_a_row = 0;  // updates whose gradients were not finite
  double best_top1 = -1;
  bool evaluation_pending = false;          // the run was stopped where an evaluation was due
  std::optional<LoadedCheckpoint> resumed;  // while it is being loaded
  std::string resumed_from;                 // its folder; "": a new run
  std::optional<uint32_t> data_checksum;    // of the training data
  std::string run_folder;
  std::optional<RunFolderLock> run_lock;  // of rank 0, while it trains
  std::unique_ptr<CheckpointWriter> writer;

  int rank() const { return world.rank(); }
  int world_size() const { return world.size(); }
  int64_t samples_per_update() const { return int64_t{config.batch_size} * world_size() * config.accumulation; }
  void FollowEpochs();

  // trainer.cc
  Status WithLargestBatch(const Status& out_of_memory) const;
  Status AllocateMemory();
  Status InitializeState();
  Status VerifyParameters();
  Status BroadcastText(std::string& text, int root);
  // Into the next slot, ready for what runs on `stream` afterwards; the arguments may be reused when it returns.
  Status UploadBatch(const float* images, const int32_t* labels, const int32_t* sample_ids, int micro_step);
  Status Run(Instance& instance);  // of the current slot
  Status RunMicroStep(int micro_step);
  Instance& In(Slot& in, const std::string& plan) const { return *in.instances[static_cast<size_t>(IndexOf(plan))]; }
  StatusOr<float> Scalar(const Layout::Entry* output);                 // waits for the step
  StatusOr<float> ScalarIn(const Layout::Entry* output, int in_slot);  // of a step that is known to have ended

  // loop.cc
  // Runs the evaluation plan over all batches and calls read(labels, slot) for each in order, with the slot in which
  // its outputs lie; the next batch is under way meanwhile. labels: (batch_size), -1 where padded.
  using ReadOutputs = absl::FunctionRef<Status(const std::vector<int32_t>& labels, int slot)>;
  Status EvaluateBatches(Loader& batches, ReadOutputs read);
  StatusOr<bool> TrainUpdate(std::vector<double>* losses, double* data_wait);
  Status MakeOrTakeUpRunFolder();  // rank 0
  Status OpenRunFolder();
  // Judges `unread`, if there is one; an error where --on_nonfinite says so, the same on every rank. followed: the next
  // update has begun.
  Status CheckGradients(bool followed);
  StatusOr<std::string> FirstNonFinite(bool followed);  // the tensor, in words

  // resume.cc
  Status Save(bool best, double top1);
  Status OpenResumed();   // the position that config.resume was saved at, before the schedule is made
  Status RestoreState();  // its weights and state
  Status LoadWeights(const std::string& path, bool reset_head);
  StatusOr<HostTensors> DownloadParameters() const;
  Status UploadParameters(const HostTensors& values, bool partial);
};

}  // namespace switchyard
