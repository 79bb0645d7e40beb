// What a run computes with on one rank: its plans, their memory, and the streams they run on. Batches go in, steps run,
// scalars come out. On an asynchronous device there are two io slots, used in turn: a batch is copied into one while
// the step over the other runs, and whoever brought it may use its memory again as soon as it lies in the slot's
// staging. Compile and Allocate once, in this order, before anything else. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/plan/profile.h"
#include "core/train/plans.h"
#include "core/train/world.h"

namespace switchyard {

class Engine {
 public:
  explicit Engine(World& world) : world_(world) {}
  // A step that failed half-way may have left work on the stream; it uses the memory that is freed now.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The program's plans. Nothing is allocated.
  Status Compile(const TrainConfig& config, Program program);
  // Memory, streams and the plans bound to them; everything is zero. inputs: the tensors of a batch. Where the
  // device has too little, the error says which batch would fit.
  Status Allocate(const std::vector<SampleTensor>& inputs);

  // Into the next slot, ready for what runs afterwards; in a pipeline the first micro-batch of an update. tensors: (B,
  // …) each, in the order of the inputs. sample_ids: places in the micro-step's global batch; random numbers depend on
  // the place in the update, however it is divided into micro-steps. skip: batches that lie before this one in each
  // tensor.
  Status Upload(std::span<const void* const> tensors, const int32_t* sample_ids, int64_t data_step, int micro_step,
                int64_t skip = 0);
  // Over the current slot; the last of a round updates. In a pipeline one plan runs for all micro-batches, after the
  // last, and they lie in one slot.
  Status RunMicroStep(int micro_step);
  bool RunsAfter(int micro_step) const { return ActionAfter(micro_step) != nullptr; }
  // BeginUpdate, before an update's first micro-step, keeps a copy of the state that micro-steps before the
  // last one change: the model's own, as running averages. TakeBack brings it back, so that the update can begin anew.
  Status BeginUpdate();
  Status TakeBack();
  int runs() const;  // of plans, for an update
  // Micro-steps from now on go step by step into `profile`; null: no more.
  void Record(Profile* profile);
  Status RunEvaluation(bool averaged = false);  // averaged: of the averaged weights, where the run keeps them
  bool HasAverages() const { return plans_.IndexOf("evaluate_ema").has_value(); }
  // Half-precision copies of the parameters, where there are some, made anew: after parameters were uploaded. Waits.
  Status RefreshHalves();

  int batch_size() const { return batch_size_; }
  int slot() const { return slot_; }  // of the last batch
  int slots() const { return static_cast<int>(slots_.size()); }
  Status WaitForSlot(int slot);  // until the step over it has ended

  // Scalars of the training step: of the current slot, waiting for its step, or of one whose step is known to have
  // ended. Where grad_norm is not finite, nothing was updated.
  enum class Scalar { kLoss, kLearningRate, kGradNorm, kLossScale, kLossScaleAtFloor };
  bool Has(Scalar scalar) const { return scalars_[static_cast<int>(scalar)] != nullptr; }  // the last two may be absent
  StatusOr<float> Read(Scalar scalar);
  StatusOr<float> ReadIn(Scalar scalar, int slot) const;

  Status Synchronize();
  // Steps that are begun from now on wait for `event` on the device.
  Status StartAfter(Event& event) { return event.Before(stream_); }
  const TrainingPlans& plans() const { return plans_; }
  const Layout& layout() const { return *plans_.layout; }
  Memory& memory() const { return *memory_; }
  World& world() const { return world_; }
  const GroupCommunicators& groups() const { return groups_; }  // by GroupIndex; after Allocate
  bool async() const { return world_.device->async(); }

 private:
  struct Slot {
    std::vector<std::unique_ptr<Instance>> instances;  // as the plans
    HostMemory staging;                                // pinned where the device can and --pin_memory lets it
    Event uploaded, finished;  // of the last batch: it has left `staging`; its step is done, its outputs may be read
  };
  Status WithLargestBatch(const Status& out_of_memory) const;
  Instance& In(const Slot& slot, const std::string& plan) const {
    return *slot.instances[plans_.IndexOf(plan).value()];
  }
  // Where inputs of a micro-batch lie; null: the plans have none (a model that draws no random numbers needs no
  // sample_ids).
  struct Place {
    std::vector<const Layout::Entry*> tensors;
    const Layout::Entry *sample_ids = nullptr, *step = nullptr;
  };
  struct Kept {
    sy_place state, copy;
    uint64_t bytes, end;  // end: of the state within its arena
  };
  const Action* ActionAfter(int micro_step) const;
  Status MakeReady(Slot& slot);  // to take a batch
  Status Finish(Slot& slot);
  Status Run(Instance& instance);

  World& world_;
  GroupCommunicators groups_ = nullptr;
  TrainingPlans plans_;
  Profile* profile_ = nullptr;
  int batch_size_ = 0;
  bool pins_batches_ = true;
  HostPlacement on_host_;
  std::unique_ptr<Memory> memory_;
  Stream stream_, uploads_;  // where steps run; where batches are copied in
  std::vector<Slot> slots_;
  int slot_ = 0;
  int64_t data_step_ = 0;      // of the last batch
  std::vector<Place> places_;  // by micro-batch, of those that lie in a slot together
  std::vector<Kept> kept_;     // what BeginUpdate keeps
  const Layout::Entry* scalars_[5] = {};
  std::vector<int32_t> in_update_;  // sample_ids counted over the micro-steps of an update
};

}  // namespace switchyard
