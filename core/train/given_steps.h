// Updates whose batches the caller brings (Trainer::Step and Trainer::Begin), where Train has a loader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/train/engine.h"
#include "core/train/task.h"

namespace switchyard {

class GivenSteps {
 public:
  // tensors: what a batch consists of. data_step: updates begun so far, which each run counts up.
  GivenSteps(Engine& engine, const TrainConfig& config, std::vector<SampleTensor> tensors, int64_t& data_step);

  // One update; batch: each tensor's rows of all micro-batches. after_run: called behind each run of a plan, of which
  // an update of several micro-batches has several.
  Status Run(std::span<const std::span<const std::byte>> batch, const std::function<Status()>& after_run);
  // One update, which the device may still be at when this returns; what Begin brought before is done by then.
  Status Begin(std::span<const std::span<const std::byte>> batch);
  void Record(Profile* profile) { profile_ = profile; }  // nullptr: no longer

 private:
  int64_t samples() const { return int64_t{batch_size_} * accumulation_; }  // of an update

  Engine& engine_;
  int64_t& data_step_;
  int batch_size_, accumulation_;
  std::vector<SampleTensor> tensors_;
  std::vector<const void*> data_;     // where each tensor begins: kept so that a step allocates nothing
  std::vector<std::byte> zeros_;      // of an optional tensor that is not given
  std::vector<int32_t> own_samples_;  // sample_ids of a micro-batch
  std::optional<int> begun_;          // the slot that the last update ended in
  Profile* profile_ = nullptr;
};

}  // namespace switchyard
