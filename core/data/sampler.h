// Which samples a rank takes, in which order. Training: every rank the same number, in a new order each epoch.
// Evaluation: every sample exactly once over all ranks. Orders are pure functions of (seed, epoch), so that a run can
// be taken up at any position. Thread-safe: const members are; SetEpoch needs the caller's care.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual int64_t length() const = 0;  // positions of this rank in one epoch; equal on every rank
  // The sample at `position`, 0 <= position < length(), in the current epoch; -1 for padding.
  virtual int64_t At(int64_t position) const = 0;
  virtual void SetEpoch(int64_t epoch) = 0;
};

// n = ceil(size / world) positions per rank of a permutation of (seed, epoch), padded with its own leading indices,
// repeated if it is shorter than the padding. Rank r takes r, r + world, … With drop_last, n = floor(size / world) and
// nothing is padded.
class DistributedSampler : public Sampler {
 public:
  struct Options {
    int64_t size = 0;  // samples of the dataset
    int rank = 0, world = 1;
    bool shuffle = true, drop_last = false;
    uint64_t seed = 42;
  };
  // InvalidArgument for an empty dataset, a rank outside the world, or drop_last with fewer samples than ranks.
  static StatusOr<DistributedSampler> Create(const Options& options);

  int64_t length() const override { return length_; }
  int64_t At(int64_t position) const override;
  void SetEpoch(int64_t epoch) override;

 private:
  explicit DistributedSampler(const Options& options);
  Options options_;
  int64_t length_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // a permutation of [0, size)
};

// ceil(size / world) positions in the dataset's order; a rank whose samples end earlier gets -1 there.
class EvaluationSampler : public Sampler {
 public:
  static StatusOr<EvaluationSampler> Create(int64_t size, int rank, int world);

  int64_t length() const override { return (size_ + world_ - 1) / world_; }
  int64_t At(int64_t position) const override {
    const int64_t index = rank_ + position * world_;
    return index < size_ ? index : -1;
  }
  void SetEpoch(int64_t) override {}

 private:
  EvaluationSampler(int64_t size, int rank, int world) : size_(size), rank_(rank), world_(world) {}
  int64_t size_;
  int rank_, world_;
};

}  // namespace switchyard
