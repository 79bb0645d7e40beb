#include "core/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace switchyard {
namespace {

constexpr size_t kAlignment = 64;     // bytes
constexpr int64_t kChunkSamples = 8;  // prepared by one thread at a time

}  // namespace

void Loader::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

StatusOr<std::unique_ptr<Loader>> Loader::Create(std::unique_ptr<const SampleSource> source,
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
                            {source->size(), options.rank, options.world, true, options.drop_last, options.seed}));
    sampler = std::make_unique<DistributedSampler>(std::move(created));
    batches = sampler->length() / options.batch_size;
    if (batches == 0) {
      return InvalidArgument(
          "{}: {} training sample{} on {} rank{} are {} per rank, less than one batch of {}; use a smaller "
          "--batch_size",
          source->name(), source->size(), source->size() == 1 ? "" : "s", options.world, options.world == 1 ? "" : "s",
          sampler->length(), options.batch_size);
    }
  } else {
    SY_ASSIGN_OR_RETURN(const EvaluationSampler created,
                        EvaluationSampler::Create(source->size(), options.rank, options.world, source->wholes()));
    sampler = std::make_unique<EvaluationSampler>(created);
    batches = (sampler->length() + options.batch_size - 1) / options.batch_size;
  }
  std::unique_ptr<Loader> loader(new Loader(std::move(source), options, std::move(sampler), batches));
  const int slots = options.workers == 0 ? 1 : options.prefetch + 1;
  for (int i = 0; i < slots; ++i) SY_RETURN_IF_ERROR(loader->AddSlot());
  for (int i = 0; i < options.workers; ++i) loader->threads_.emplace_back([raw = loader.get()] { raw->Work(); });
  return loader;
}

Status Loader::AddSlot() {
  Slot slot;
  const auto samples = static_cast<size_t>(options_.batch_size);
  for (const size_t row : row_bytes_) {
    const size_t bytes = (samples * row + kAlignment - 1) / kAlignment * kAlignment;
    slot.memory.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
    if (slot.memory.back() == nullptr)
      return ResourceExhausted("no memory for a batch of {} bytes; use a smaller --batch_size or --prefetch", bytes);
    slot.tensors.push_back(slot.memory.back().get());
  }
  slot.filled.resize(samples);
  slot.samples.resize(samples);
  slot.failures.resize(static_cast<size_t>(chunks_per_batch_));
  slots_.push_back(std::move(slot));
  return OkStatus();
}

Loader::Loader(std::unique_ptr<const SampleSource> source, const LoaderOptions& options,
               std::unique_ptr<Sampler> sampler, int64_t batches_per_epoch)
    : source_(std::move(source)),
      wholes_(options.train ? std::vector<int64_t>() : source_->wholes()),
      options_(options),
      batches_per_epoch_(batches_per_epoch),
      chunks_per_batch_((options.batch_size + kChunkSamples - 1) / kChunkSamples),
      sampler_(std::move(sampler)) {
  for (const SampleTensor& tensor : source_->tensors()) row_bytes_.push_back(static_cast<size_t>(tensor.row.bytes()));
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
  const auto ready = [&] { return (opened_ > released_) && slot.ready; };
  if (options_.workers == 0) {
    for (int64_t i = 0; i < chunks_per_batch_; ++i) {
      const Chunk chunk = ClaimChunk();
      slot.status.Update(FillChunk(chunk));
    }
    slot.status.Update(FinishBatch(slot));
  } else {
    batch_ready_.wait(lock, ready);
  }
  handed_out_ = true;
  lock.unlock();

  failed_ = slot.status.ok() ? CountFailures(slot) : slot.status;
  SY_RETURN_IF_ERROR(failed_);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  const int64_t count = std::count(slot.filled.begin(), slot.filled.end(), 1);
  *batch = {slot.tensors, slot.filled, slot.samples, sample_ids_.data(), count, slot.epoch, slot.index, waited.count()};
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
    const Status filled = FillChunk(chunk);
    lock.lock();
    chunk.slot->status.Update(filled);
    const bool last = ++chunk.slot->chunks_filled == chunks_per_batch_;
    if (last) {
      lock.unlock();
      const Status finished = FinishBatch(*chunk.slot);
      lock.lock();
      chunk.slot->status.Update(finished);
      chunk.slot->ready = true;
    }
    --in_flight_;
    if (last || in_flight_ == 0) batch_ready_.notify_all();
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
  slot->chunks_filled = 0;
  slot->ready = false;
  slot->status = OkStatus();
  sampler_->SetEpoch(slot->epoch);
  for (int64_t i = 0; i < options_.batch_size; ++i) {
    const int64_t position = slot->index * options_.batch_size + i;
    slot->samples[static_cast<size_t>(i)] = position < sampler_->length() ? sampler_->At(position) : -1;
  }
}

}  // namespace switchyard
