#include "core/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/train/clock.h"

namespace switchyard {

Status EvaluateBatches(Engine& engine, Loader& batches, ReadOutputs read) {
  SY_RETURN_IF_ERROR(batches.StartEpoch(0));
  std::vector<int32_t> unread;  // labels of the batch whose outputs have not been read yet
  int unread_slot = 0;
  const auto read_last = [&]() -> Status {
    if (unread.empty()) return OkStatus();
    SY_RETURN_IF_ERROR(engine.WaitForSlot(unread_slot));
    return read(std::exchange(unread, {}), unread_slot);
  };
  for (Batch next;;) {
    SY_ASSIGN_OR_RETURN(const bool more, batches.Next(&next));
    if (!more) return read_last();
    if (engine.slots() == 1) SY_RETURN_IF_ERROR(read_last());  // nowhere else to put the next one
    const void* const tensors[] = {next.images, next.labels};
    SY_RETURN_IF_ERROR(engine.Upload(tensors, next.sample_ids, 0, 0));
    SY_RETURN_IF_ERROR(engine.RunEvaluation());
    SY_RETURN_IF_ERROR(read_last());
    unread.assign(next.labels, next.labels + next.batch_size);
    unread_slot = engine.slot();
  }
}

StatusOr<EvaluationResult> EvaluateClasses(Engine& engine, Loader& batches) {
  const Clock clock;
  std::vector<float> losses(batches.options().batch_size);
  std::vector<int32_t> ranks(batches.options().batch_size);
  double sums[4] = {};  // loss, top-1, top-5, count
  const Memory& memory = engine.memory();
  SY_RETURN_IF_ERROR(EvaluateBatches(engine, batches, [&](const std::vector<int32_t>& labels, int slot) -> Status {
    SY_RETURN_IF_ERROR(memory.Download("output/eval_loss", losses.data(), losses.size() * sizeof(float), slot));
    SY_RETURN_IF_ERROR(memory.Download("output/eval_rank", ranks.data(), ranks.size() * sizeof(int32_t), slot));
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < 0) continue;  // padding counts nowhere
      sums[0] += losses[i];
      sums[1] += ranks[i] < 1;
      sums[2] += ranks[i] < 5;
      sums[3] += 1;
    }
    return OkStatus();
  }));
  if (Communicator* const communicator = engine.world().communicator.get())
    SY_RETURN_IF_ERROR(communicator->AllReduce("evaluation", sums, sums, 4, SY_F64, SY_SUM));
  EvaluationResult result;
  result.count = static_cast<int64_t>(sums[3]);
  if (result.count > 0) {
    result.loss = sums[0] / sums[3];
    result.top1 = sums[1] / sums[3];
    result.top5 = sums[2] / sums[3];
  }
  result.images_per_s = sums[3] / clock.Seconds();
  return result;
}

StatusOr<std::vector<std::vector<double>>> PredictClasses(Engine& engine, Loader& batches, int64_t samples) {
  std::vector<float> logits(engine.layout().Find("output/eval_logits")->bytes / sizeof(float));
  const size_t classes = logits.size() / static_cast<size_t>(batches.options().batch_size);
  std::vector<std::vector<double>> results;
  SY_RETURN_IF_ERROR(EvaluateBatches(engine, batches, [&](const std::vector<int32_t>& labels, int slot) -> Status {
    SY_RETURN_IF_ERROR(
        engine.memory().Download("output/eval_logits", logits.data(), logits.size() * sizeof(float), slot));
    for (size_t i = 0; i < labels.size() && static_cast<int64_t>(results.size()) < samples; ++i) {
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

}  // namespace switchyard
