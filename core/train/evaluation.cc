#include "core/train/evaluation.h"

#include <absl/functional/function_ref.h>

#include <algorithm>
#include <utility>

#include "core/train/stopwatch.h"

namespace switchyard {
namespace {

// Called for each sample in turn, padding left out: its index, and its rows in the outputs asked for; none where it
// could not be read.
using ReadSample = absl::FunctionRef<Status(int64_t index, std::span<const void* const> rows)>;

// What is still to be read of a batch.
struct Unread {
  std::vector<int64_t> samples;  // -1: padding
  std::vector<uint8_t> filled;
};

// Outputs of the evaluation plan on the host.
class Outputs {
 public:
  Outputs(const Engine& engine, const std::vector<std::string>& names, int64_t batch) : engine_(engine) {
    for (const std::string& name : names) {
      names_.push_back("output/" + name);
      values_.emplace_back(engine.layout().Find(names_.back())->bytes);
      row_bytes_.push_back(values_.back().size() / static_cast<size_t>(batch));
    }
    rows_.resize(names_.size());
  }

  Status Read(const Unread& batch, int slot, ReadSample read) {
    for (size_t o = 0; o < names_.size(); ++o)
      SY_RETURN_IF_ERROR(engine_.memory().Download(names_[o], values_[o].data(), values_[o].size(), slot));
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      if (batch.samples[i] < 0) continue;
      for (size_t o = 0; o < rows_.size(); ++o) rows_[o] = values_[o].data() + i * row_bytes_[o];
      const std::span<const void* const> rows(rows_.data(), batch.filled[i] != 0 ? rows_.size() : 0);
      SY_RETURN_IF_ERROR(read(batch.samples[i], rows));
    }
    return OkStatus();
  }

 private:
  const Engine& engine_;
  std::vector<std::string> names_;
  std::vector<std::vector<char>> values_;
  std::vector<size_t> row_bytes_;
  std::vector<const void*> rows_;
};

// Runs the evaluation plan over all batches; read is called for their samples in order, while the next batch is under
// way.
Status ForEachSample(Engine& engine, Loader& batches, bool averaged, const std::vector<std::string>& names,
                     ReadSample read, const StopAsked& stops = nullptr) {
  Outputs outputs(engine, names, batches.options().batch_size);
  SY_RETURN_IF_ERROR(batches.StartEpoch(0));
  Unread unread;  // of the batch whose outputs have not been read yet
  int unread_slot = 0;
  const auto read_last = [&]() -> Status {
    if (unread.samples.empty()) return OkStatus();
    SY_RETURN_IF_ERROR(engine.WaitForSlot(unread_slot));
    return outputs.Read(std::exchange(unread, {}), unread_slot, read);
  };
  for (Batch next;;) {
    SY_ASSIGN_OR_RETURN(const bool more, batches.Next(&next));
    if (!more) return read_last();
    if (engine.slots() == 1) SY_RETURN_IF_ERROR(read_last());  // nowhere else to put the next one
    SY_RETURN_IF_ERROR(engine.Upload(next.tensors, next.sample_ids, 0, 0));
    SY_RETURN_IF_ERROR(engine.RunEvaluation(averaged));
    SY_RETURN_IF_ERROR(read_last());
    unread = {{next.samples.begin(), next.samples.end()}, {next.filled.begin(), next.filled.end()}};
    unread_slot = engine.slot();
    if (!stops) continue;
    SY_ASSIGN_OR_RETURN(const bool stop, stops());
    if (!stop) continue;
    SY_RETURN_IF_ERROR(read_last());
    return Status(absl::StatusCode::kCancelled, "the evaluation was stopped");
  }
}

}  // namespace

StatusOr<EvaluationResult> EvaluateSamples(Engine& engine, const Task& task, Loader& batches, bool averaged,
                                           const StopAsked& stops) {
  const Stopwatch clock;
  std::vector<double> sums(static_cast<size_t>(task.sums()) + 1);  // the task's, then how many samples
  const std::span<double> of_task(sums.data(), sums.size() - 1);
  int64_t count = 0;
  const auto counting = task.Counting(batches.source(), of_task, &count);
  SY_RETURN_IF_ERROR(ForEachSample(
      engine, batches, averaged, task.outputs(),
      [&](int64_t index, std::span<const void* const> rows) { return counting->Add(index, rows); }, stops));
  sums.back() = static_cast<double>(count);
  // Ranks that share a model have counted the same samples.
  if (!engine.world().first_of_model()) std::fill(sums.begin(), sums.end(), 0);
  if (Communicator* const communicator = engine.world().communicator.get())
    SY_RETURN_IF_ERROR(communicator->AllReduce("evaluation", sums.data(), sums.data(), sums.size(), SY_F64, SY_SUM));
  EvaluationResult result;
  result.count = static_cast<int64_t>(sums.back());
  result.images_per_s = sums.back() / clock.Seconds();
  if (result.count == 0) return result;
  const std::vector<double> values = task.Metrics(of_task, result.count);
  result.by_class = task.ByClass(of_task);
  const std::vector<Metric> metrics = task.metrics();
  for (size_t i = 0; i < metrics.size(); ++i) result.metrics[metrics[i].name] = values[i];
  return result;
}

Status PredictSamples(Engine& engine, const Task& task, Loader& batches, ReadPrediction read) {
  const auto predicting = task.Predicting(batches.source(), read);
  return ForEachSample(engine, batches, false, {task.prediction()},
                       [&](int64_t index, std::span<const void* const> rows) { return predicting->Add(index, rows); });
}

StatusOr<std::vector<Example>> ExamplesOf(Engine& engine, const Task& task, const SampleSource& samples,
                                          const std::vector<std::string>& names, int count) {
  const std::vector<SampleTensor> tensors = samples.tensors();
  const Layout::Entry* const output = engine.layout().Find("output/" + task.prediction());
  if (output == nullptr) return std::vector<Example>();
  const auto batch = static_cast<int64_t>(engine.batch_size());
  const int64_t shown = std::min<int64_t>(count, samples.size());
  std::vector<std::vector<std::byte>> inputs;
  for (const SampleTensor& tensor : tensors) inputs.emplace_back(static_cast<size_t>(batch * tensor.row.bytes()));
  const auto rows_of = [&](int64_t place) {
    std::vector<void*> rows;
    for (auto& input : inputs) rows.push_back(input.data() + input.size() / batch * place);
    return rows;
  };
  std::vector<std::byte> outputs(output->bytes);
  std::vector<int32_t> ids(static_cast<size_t>(batch), 0);
  std::vector<Example> examples;
  for (int64_t first = 0; first < shown; first += batch) {
    std::vector<bool> read(static_cast<size_t>(batch), false);
    for (int64_t place = 0; place < batch; ++place) {
      const auto rows = rows_of(place);
      const int64_t index = (first + place) * samples.size() / shown;
      read[place] = first + place < shown && samples.Fill(0, index, rows).ok();
      if (!read[place]) samples.FillEmpty(rows);
    }
    std::vector<const void*> data;
    for (const auto& input : inputs) data.push_back(input.data());
    SY_RETURN_IF_ERROR(engine.Upload(data, ids.data(), 0, 0));
    SY_RETURN_IF_ERROR(engine.RunEvaluation());
    SY_RETURN_IF_ERROR(engine.Synchronize());
    SY_RETURN_IF_ERROR(
        engine.memory().Download("output/" + task.prediction(), outputs.data(), outputs.size(), engine.slot()));
    for (int64_t place = 0; place < batch; ++place) {
      if (!read[place]) continue;
      const auto rows = rows_of(place);
      auto example = task.Show(std::vector<const void*>(rows.begin(), rows.end()),
                               task.Predict(outputs.data() + outputs.size() / batch * place), names);
      if (!example) return examples;
      examples.push_back(std::move(*example));
    }
  }
  return examples;
}

}  // namespace switchyard
