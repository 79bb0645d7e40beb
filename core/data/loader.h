// Batches, prepared ahead by threads. The loader keeps a ring of batch buffers: threads fill the samples of the next
// batches, Next() hands out the oldest. What a batch holds depends on (seed, epoch, position) and never on the number
// of threads or their timing, and a run can be taken up at any batch of any epoch. Thread-safe: no; one thread calls
// Start and Next. What a sample is made of is its source's business.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/data/sampler.h"
#include "core/data/samples.h"

namespace switchyard {

struct LoaderOptions {
  int64_t batch_size = 0;  // of this rank
  bool train = false;      // training: shuffled, the last partial batch dropped. Evaluation: in order, padded.
  int rank = 0, world = 1;
  uint64_t seed = 42;
  bool drop_last = false;       // training: see DistributedSampler
  int workers = 4;              // threads; 0: samples are prepared inside Next()
  int prefetch = 2;             // batches prepared ahead
  int64_t max_bad_samples = 0;  // different samples that may fail to read before Next() fails
};

// Points into the loader; valid until the next call of Next, Start or the destructor.
struct Batch {
  std::span<const void* const> tensors;  // as the source has them, each (batch_size, …) and 64-byte aligned
  std::span<const uint8_t> filled;       // (batch_size): 0 where evaluation is padded or a sample bad; the row is empty
  std::span<const int64_t> samples;      // (batch_size): their indices in the source; of evaluation, -1 for padding
  const int32_t* sample_ids = nullptr;   // (batch_size): position in the global batch, i * world + rank
  int64_t count = 0;                     // of rows that are filled
  int64_t epoch = 0, index = 0;          // this is batch `index` of `epoch`
  double wait_seconds = 0;               // that Next() waited for it
};

class Loader {
 public:
  static StatusOr<std::unique_ptr<Loader>> Create(std::unique_ptr<const SampleSource> source,
                                                  const LoaderOptions& options);
  ~Loader();  // at any time; waits for a few samples per thread
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  const LoaderOptions& options() const { return options_; }
  const SampleSource& source() const { return *source_; }

  // From batch `first_batch` of `first_epoch` to the end of epoch `end_epoch` - 1, without a pause in between. Drops
  // what was prepared before. InvalidArgument where that lies outside.
  Status Start(int64_t first_epoch, int64_t first_batch, int64_t end_epoch);
  // One epoch from its first batch: for evaluation.
  Status StartEpoch(int64_t epoch) { return Start(epoch, 0, epoch + 1); }

  // False at the end. In training a bad sample is replaced by the next good one; each is logged once with its path.
  // Fails once more than max_bad_samples were met, and then again at every call.
  StatusOr<bool> Next(Batch* batch);

  // The samples that could not be read so far, by index; of wholes the first sample of each. Those of a run that goes
  // on are given back before it starts: they count towards max_bad_samples and are not logged again.
  const std::set<int64_t>& bad_samples() const { return bad_samples_; }
  void RestoreBadSamples(const std::set<int64_t>& samples) { bad_samples_ = samples; }

 private:
  struct Failure {
    int64_t sample;
    Status status;
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  struct Slot {
    std::vector<std::unique_ptr<std::byte[], FreeMemory>> memory;  // of each tensor
    std::vector<const void*> tensors;                              // the same, as a batch shows them
    std::vector<uint8_t> filled;
    std::vector<int64_t> samples;                // of the source; -1 for padding
    std::vector<std::vector<Failure>> failures;  // by chunk
    int64_t epoch = 0, index = 0;
    int64_t chunks_filled = 0;
    bool ready = false;  // all of them, and the batch as a whole
    Status status;       // of preparing it, but for samples that cannot be read
  };
  struct Chunk {
    Slot* slot = nullptr;
    int64_t number = 0;
  };

  Loader(std::unique_ptr<const SampleSource> source, const LoaderOptions& options, std::unique_ptr<Sampler> sampler,
         int64_t batches_per_epoch);
  Status AddSlot();
  void Work();
  bool ChunkAvailable() const;
  Chunk ClaimChunk();         // with mutex_ held
  void OpenSlot(Slot* slot);  // with mutex_ held
  Status FillChunk(const Chunk& chunk);
  Status FinishBatch(const Slot& slot) const;
  Status FillSample(int64_t epoch, int64_t sample, std::span<void* const> rows) const;
  int64_t WholeOf(int64_t sample) const;
  Status CountFailures(const Slot& slot);

  const std::unique_ptr<const SampleSource> source_;
  std::vector<size_t> row_bytes_;      // of each tensor
  const std::vector<int64_t> wholes_;  // of evaluation, by their first samples; empty: each sample is one
  const LoaderOptions options_;
  const int64_t batches_per_epoch_, chunks_per_batch_;
  std::unique_ptr<Sampler> sampler_;
  std::vector<int32_t> sample_ids_;
  std::set<int64_t> bad_samples_;
  Status failed_;
  bool handed_out_ = false;  // the caller looks at the slot of batch released_

  std::mutex mutex_;
  std::condition_variable chunk_available_, batch_ready_;
  bool stop_ = false;
  std::vector<Slot> slots_;  // batch k of this start lives in slot k % slots
  int64_t first_batch_ = 0;  // counted over all epochs
  int64_t total_ = 0;        // batches of this start
  int64_t opened_ = 0;       // batches whose last chunk was claimed
  int64_t next_chunk_ = 0;   // of batch opened_
  int64_t released_ = 0;     // batches that the caller is done with
  int64_t in_flight_ = 0;    // chunks being filled
  std::vector<std::thread> threads_;
};

}  // namespace switchyard
