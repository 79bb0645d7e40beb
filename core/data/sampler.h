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

// Each sample once over all ranks, in the dataset's order: rank r takes wholes r, r + world, …, where a whole is one
// sample, or those from wholes[i] to before wholes[i + 1]. As many positions as the rank with the most samples has; the
// others get -1 at their end.
class EvaluationSampler : public Sampler {
 public:
  // wholes: ascending from 0; empty: each sample is a whole.
  static StatusOr<EvaluationSampler> Create(int64_t size, int rank, int world, const std::vector<int64_t>& wholes = {});

  int64_t length() const override { return length_; }
  int64_t At(int64_t position) const override {
    return position < static_cast<int64_t>(own_.size()) ? own_[static_cast<size_t>(position)] : -1;
  }
  void SetEpoch(int64_t) override {}

 private:
  EvaluationSampler() = default;
  std::vector<int64_t> own_;  // samples of this rank
  int64_t length_ = 0;
};

}  // namespace switchyard
