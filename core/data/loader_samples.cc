// How a loader fills its batches from their source, and what becomes of samples that cannot be read.
#include <algorithm>
#include <exception>

#include "core/base/logging.h"
#include "core/data/loader.h"

namespace switchyard {
namespace {

constexpr int64_t kMaxReplacements = 64;  // tried for one bad sample

// Calls what is the source's own and may throw: where memory is short, or a dataset of the user's does.
template <typename Where, typename Call>
Status Caught(const Where& where, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return Internal("{}: {}", where(), error.what());
  } catch (...) {
    return Internal("{}: an exception that is no std::exception", where());
  }
}

}  // namespace

Status Loader::FillChunk(const Chunk& chunk) {
  Slot& slot = *chunk.slot;
  auto& failures = slot.failures[static_cast<size_t>(chunk.number)];
  failures.clear();
  const int64_t begin = chunk.number * kChunkSamples, end = std::min(begin + kChunkSamples, options_.batch_size);
  std::vector<void*> rows(slot.memory.size());
  for (int64_t i = begin; i < end; ++i) {
    for (size_t t = 0; t < rows.size(); ++t) rows[t] = slot.memory[t].get() + static_cast<size_t>(i) * row_bytes_[t];
    uint8_t& filled = slot.filled[static_cast<size_t>(i)];
    filled = 0;
    int64_t sample = slot.samples[static_cast<size_t>(i)];
    const int64_t tries = options_.train && options_.max_bad_samples > 0 ? kMaxReplacements : 1;
    for (int64_t attempt = 0; attempt < tries && sample >= 0 && filled == 0; ++attempt) {
      Status status = FillSample(slot.epoch, sample, rows);
      filled = status.ok();
      if (!status.ok()) failures.push_back({sample, std::move(status)});
      sample = (sample + 1) % source_->size();
    }
    if (filled != 0) continue;
    SY_RETURN_IF_ERROR(Caught([&] { return source_->name(); },
                              [&] {
                                source_->FillEmpty(rows);
                                return OkStatus();
                              }));
  }
  return OkStatus();
}

Status Loader::FinishBatch(const Slot& slot) const {
  if (!options_.train || !slot.status.ok()) return OkStatus();
  const auto where = [&] { return fmt::format("{}: batch {} of epoch {}", source_->name(), slot.index, slot.epoch); };
  std::vector<void*> tensors;
  for (const auto& memory : slot.memory) tensors.push_back(memory.get());
  return Caught(where, [&] {
    source_->FinishBatch(slot.epoch, slot.index, sample_ids_, tensors);
    return OkStatus();
  });
}

Status Loader::FillSample(int64_t epoch, int64_t sample, std::span<void* const> rows) const {
  return Caught([&] { return source_->Path(sample); }, [&] { return source_->Fill(epoch, sample, rows); });
}

// The first sample of the whole that a sample is of.
int64_t Loader::WholeOf(int64_t sample) const {
  return wholes_.empty() ? sample : *std::prev(std::upper_bound(wholes_.begin(), wholes_.end(), sample));
}

// Failures are counted when their batch is handed out, in its order, so that a run fails at the same batch every time.
Status Loader::CountFailures(const Slot& slot) {
  for (const auto& failures : slot.failures) {
    for (const Failure& failure : failures) {
      if (!bad_samples_.insert(WholeOf(failure.sample)).second) continue;
      const auto count = static_cast<int64_t>(bad_samples_.size());
      if (count > options_.max_bad_samples) {
        return Annotate(failure.status,
                        fmt::format("bad sample number {} (--max_bad_samples={})", count, options_.max_bad_samples));
      }
      LogWarning("skipping a bad sample: {}", Message(failure.status));
    }
  }
  if (!options_.train) return OkStatus();
  for (size_t i = 0; i < slot.filled.size(); ++i) {
    if (slot.filled[i] != 0) continue;
    return DataLoss("{} and the {} samples after it cannot be read", source_->Path(slot.samples[i]),
                    kMaxReplacements - 1);
  }
  return OkStatus();
}

}  // namespace switchyard
