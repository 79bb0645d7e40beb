#include "core/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>

#include "core/base/logging.h"

namespace switchyard {
namespace {

constexpr int64_t kChunkSamples = 8;      // prepared by one thread at a time
constexpr int64_t kMaxReplacements = 64;  // tried for one bad sample

}  // namespace

void Loader::FreeMemory::operator()(float* memory) const { std::free(memory); }

StatusOr<std::unique_ptr<Loader>> Loader::Create(const Dataset& dataset, const Transform& transform,
                                                 const LoaderOptions& options) {
  if (options.batch_size < 1)
    return InvalidArgument("expected a batch size of 1 or more, found {}", options.batch_size);
  if (options.workers < 0 || options.workers > 1024) {
    return InvalidArgument("--workers: expected 0 to 1024 threads, found {}", options.workers);
  }
  if (options.prefetch < 1) return InvalidArgument("expected to prefetch 1 batch or more, found {}", options.prefetch);
  std::unique_ptr<Sampler> sampler;
  int64_t batches = 0;
  if (options.train) {
    SY_ASSIGN_OR_RETURN(DistributedSampler created,
                        DistributedSampler::Create(
                            {dataset.size(), options.rank, options.world, true, options.drop_last, options.seed}));
    sampler = std::make_unique<DistributedSampler>(std::move(created));
    batches = sampler->length() / options.batch_size;
    if (batches == 0) {
      return InvalidArgument(
          "{}: {} training samples on {} ranks are {} per rank, less than one batch of {}; use a smaller "
          "--batch_size",
          dataset.name(), dataset.size(), options.world, sampler->length(), options.batch_size);
    }
  } else {
    SY_ASSIGN_OR_RETURN(const EvaluationSampler created,
                        EvaluationSampler::Create(dataset.size(), options.rank, options.world));
    sampler = std::make_unique<EvaluationSampler>(created);
    batches = (sampler->length() + options.batch_size - 1) / options.batch_size;
  }
  std::unique_ptr<Loader> loader(new Loader(dataset, transform, options, std::move(sampler), batches));
  const int slots = options.workers == 0 ? 1 : options.prefetch + 1;
  const auto elements = static_cast<size_t>(options.batch_size * transform.elements());
  const size_t bytes = (elements * sizeof(float) + 63) / 64 * 64;
  for (int i = 0; i < slots; ++i) {
    Slot slot;
    slot.images.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (slot.images == nullptr) {
      return ResourceExhausted("no memory for {} batches of {} bytes; use a smaller --batch_size", slots, bytes);
    }
    slot.labels.resize(static_cast<size_t>(options.batch_size));
    slot.samples.resize(static_cast<size_t>(options.batch_size));
    slot.failures.resize(static_cast<size_t>(loader->chunks_per_batch_));
    loader->slots_.push_back(std::move(slot));
  }
  for (int i = 0; i < options.workers; ++i) loader->threads_.emplace_back([raw = loader.get()] { raw->Work(); });
  return loader;
}

Loader::Loader(const Dataset& dataset, const Transform& transform, const LoaderOptions& options,
               std::unique_ptr<Sampler> sampler, int64_t batches_per_epoch)
    : dataset_(dataset),
      transform_(transform),
      options_(options),
      batches_per_epoch_(batches_per_epoch),
      chunks_per_batch_((options.batch_size + kChunkSamples - 1) / kChunkSamples),
      sampler_(std::move(sampler)) {
  for (int64_t i = 0; i < options_.batch_size; ++i) {
    sample_ids_.push_back(static_cast<int32_t>(i * options_.world + options_.rank));
  }
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  chunk_available_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status Loader::Start(int64_t first_epoch, int64_t first_batch, int64_t end_epoch) {
  if (first_epoch < 0 || first_batch < 0 || first_batch > batches_per_epoch_ || end_epoch <= first_epoch) {
    return InvalidArgument("cannot start at batch {} of epoch {} and end before epoch {}: an epoch has {} batches",
                           first_batch, first_epoch, end_epoch, batches_per_epoch_);
  }
  std::unique_lock lock(mutex_);
  total_ = 0;  // no chunk is claimed from here on
  batch_ready_.wait(lock, [this] { return in_flight_ == 0; });
  first_batch_ = first_epoch * batches_per_epoch_ + first_batch;
  total_ = end_epoch * batches_per_epoch_ - first_batch_;
  opened_ = next_chunk_ = released_ = 0;
  handed_out_ = false;
  chunk_available_.notify_all();
  return OkStatus();
}

StatusOr<bool> Loader::Next(Batch* batch) {
  SY_RETURN_IF_ERROR(failed_);
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (handed_out_) {
    handed_out_ = false;
    ++released_;
    chunk_available_.notify_all();
  }
  if (released_ >= total_) return false;
  Slot& slot = slots_[static_cast<size_t>(released_) % slots_.size()];
  const auto ready = [&] { return (opened_ > released_) && slot.chunks_done == chunks_per_batch_; };
  if (options_.workers == 0) {
    while (!ready()) {
      FillChunk(ClaimChunk());
      ++slot.chunks_done;
    }
  } else {
    batch_ready_.wait(lock, ready);
  }
  handed_out_ = true;
  lock.unlock();

  failed_ = CountFailures(slot);
  SY_RETURN_IF_ERROR(failed_);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  wait_seconds_ += waited.count();
  const int64_t count = std::count_if(slot.labels.begin(), slot.labels.end(), [](int32_t label) { return label >= 0; });
  *batch = {slot.images.get(), slot.labels.data(), sample_ids_.data(), options_.batch_size, count,
            slot.epoch,        slot.index,         waited.count()};
  return true;
}

void Loader::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    chunk_available_.wait(lock, [this] { return stop_ || ChunkAvailable(); });
    if (stop_) return;
    const Chunk chunk = ClaimChunk();
    ++in_flight_;
    lock.unlock();
    FillChunk(chunk);
    lock.lock();
    --in_flight_;
    if (++chunk.slot->chunks_done == chunks_per_batch_ || in_flight_ == 0) batch_ready_.notify_all();
  }
}

bool Loader::ChunkAvailable() const {
  return opened_ < total_ && opened_ - released_ < static_cast<int64_t>(slots_.size());
}

Loader::Chunk Loader::ClaimChunk() {
  Slot* slot = &slots_[static_cast<size_t>(opened_) % slots_.size()];
  if (next_chunk_ == 0) OpenSlot(slot);
  const Chunk chunk = {slot, next_chunk_};
  if (++next_chunk_ == chunks_per_batch_) {
    next_chunk_ = 0;
    ++opened_;
  }
  return chunk;
}

void Loader::OpenSlot(Slot* slot) {
  const int64_t batch = first_batch_ + opened_;
  slot->epoch = batch / batches_per_epoch_;
  slot->index = batch % batches_per_epoch_;
  slot->chunks_done = 0;
  sampler_->SetEpoch(slot->epoch);
  for (int64_t i = 0; i < options_.batch_size; ++i) {
    const int64_t position = slot->index * options_.batch_size + i;
    slot->samples[static_cast<size_t>(i)] = position < sampler_->length() ? sampler_->At(position) : -1;
  }
}

void Loader::FillChunk(const Chunk& chunk) {
  Slot& slot = *chunk.slot;
  auto& failures = slot.failures[static_cast<size_t>(chunk.number)];
  failures.clear();
  const int64_t begin = chunk.number * kChunkSamples, end = std::min(begin + kChunkSamples, options_.batch_size);
  for (int64_t i = begin; i < end; ++i) {
    float* image = slot.images.get() + i * transform_.elements();
    int32_t* label = &slot.labels[static_cast<size_t>(i)];
    *label = -1;
    int64_t sample = slot.samples[static_cast<size_t>(i)];
    const int64_t tries = options_.train && options_.max_bad_samples > 0 ? kMaxReplacements : 1;
    for (int64_t attempt = 0; attempt < tries && sample >= 0 && *label < 0; ++attempt) {
      Status status = FillSample(slot.epoch, sample, image, label);
      if (!status.ok()) failures.push_back({sample, std::move(status)});
      sample = (sample + 1) % dataset_.size();
    }
    if (*label < 0) std::fill_n(image, transform_.elements(), 0.0f);
  }
}

Status Loader::FillSample(int64_t epoch, int64_t sample, float* image, int32_t* label) const {
  thread_local Sample read;
  try {
    SY_RETURN_IF_ERROR(dataset_.Read(sample, &read));
    if (read.label < 0 || read.label >= static_cast<int64_t>(dataset_.class_names().size())) {
      return DataLoss("{}: label {} is outside of {} classes", dataset_.Path(sample), read.label,
                      dataset_.class_names().size());
    }
    transform_.Apply(epoch, sample, &read.image, image);
  } catch (const std::exception& error) {  // out of memory, or a dataset of the user's that throws
    return Internal("{}: {}", dataset_.Path(sample), error.what());
  }
  *label = read.label;
  return OkStatus();
}

// Failures are counted when their batch is handed out, in its order, so that a run fails at the same batch every time.
Status Loader::CountFailures(const Slot& slot) {
  for (const auto& failures : slot.failures) {
    for (const Failure& failure : failures) {
      if (!bad_samples_.insert(failure.sample).second) continue;
      if (bad_samples() > options_.max_bad_samples) {
        return Annotate(failure.status, fmt::format("bad sample number {} (--max_bad_samples={})", bad_samples(),
                                                    options_.max_bad_samples));
      }
      LogWarning("skipping a bad sample: {}", Message(failure.status));
    }
  }
  if (!options_.train) return OkStatus();
  for (size_t i = 0; i < slot.labels.size(); ++i) {
    if (slot.labels[i] >= 0) continue;
    return DataLoss("{} and the {} samples after it cannot be read", dataset_.Path(slot.samples[i]),
                    kMaxReplacements - 1);
  }
  return OkStatus();
}

}  // namespace switchyard
