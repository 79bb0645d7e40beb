#include "core/train/given_steps.h"

#include <algorithm>
#include <utility>

#include "core/train/world.h"

namespace switchyard {

GivenSteps::GivenSteps(Engine& engine, const TrainConfig& config, std::vector<SampleTensor> tensors, int64_t& data_step)
    : engine_(engine),
      data_step_(data_step),
      batch_size_(config.batch_size),
      accumulation_(config.accumulation),
      tensors_(std::move(tensors)),
      data_(tensors_.size()) {
  const World& world = engine.world();
  int64_t row_bytes = 0;  // the most of an optional tensor
  for (const SampleTensor& tensor : tensors_) {
    if (tensor.optional) row_bytes = std::max(row_bytes, tensor.row.bytes());
  }
  zeros_.resize(static_cast<size_t>(samples() * row_bytes));
  for (int i = 0; i < batch_size_; ++i) own_samples_.push_back(i * world.data_size() + world.data_rank());
}

Status GivenSteps::Run(std::span<const std::span<const std::byte>> batch, const std::function<Status()>& after_run) {
  const auto needed =
      std::count_if(tensors_.begin(), tensors_.end(), [](const SampleTensor& t) { return !t.optional; });
  if (batch.size() != tensors_.size() && batch.size() != static_cast<size_t>(needed))
    return InvalidArgument("a step takes {} tensors, found {}", needed, batch.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i >= batch.size()) {
      data_[i] = zeros_.data();
      continue;
    }
    const auto bytes = static_cast<uint64_t>(samples() * tensors_[i].row.bytes());
    if (batch[i].size() != bytes)
      return InvalidArgument("{}: expected {} bytes, {} samples of {}, found {}", tensors_[i].name, bytes, samples(),
                             ToString(tensors_[i].row), batch[i].size());
    data_[i] = batch[i].data();
  }
  if (profile_ != nullptr) profile_->BeginUpdate(data_step_ + 1);
  for (int a = 0; a < accumulation_; ++a) {
    SY_RETURN_IF_ERROR(engine_.Upload(data_, own_samples_.data(), data_step_, a, a));
    if (!engine_.RunsAfter(a)) continue;
    SY_RETURN_IF_ERROR(engine_.RunMicroStep(a));
    SY_RETURN_IF_ERROR(after_run());
  }
  begun_ = engine_.slot();
  ++data_step_;
  if (profile_ != nullptr) profile_->EndUpdate();
  return OkStatus();
}

Status GivenSteps::Begin(std::span<const std::span<const std::byte>> batch) {
  return Run(batch, [&]() -> Status {
    // By now the device has this update's first run to do; a later micro-batch would take the slot over.
    const std::optional<int> before = std::exchange(begun_, std::nullopt);
    return before ? engine_.WaitForSlot(*before) : OkStatus();
  });
}

}  // namespace switchyard
