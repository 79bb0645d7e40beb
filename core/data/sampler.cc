#include "core/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/random.h"

namespace switchyard {
namespace {

Status CheckSamplerArguments(int64_t size, int rank, int world) {
  if (size < 1) return InvalidArgument("expected a dataset of at least one sample, found {}", size);
  if (size >= int64_t{1} << 32) return InvalidArgument("expected fewer than 2^32 samples, found {}", size);
  if (world < 1 || rank < 0 || rank >= world) {
    return InvalidArgument("expected a rank of 0 to world - 1, found rank {} of a world of {}", rank, world);
  }
  return OkStatus();
}

}  // namespace

StatusOr<DistributedSampler> DistributedSampler::Create(const Options& options) {
  SY_RETURN_IF_ERROR(CheckSamplerArguments(options.size, options.rank, options.world));
  if (options.drop_last && options.size < options.world) {
    return InvalidArgument("drop_last leaves nothing of {} samples on {} ranks", options.size, options.world);
  }
  return DistributedSampler(options);
}

DistributedSampler::DistributedSampler(const Options& options)
    : options_(options),
      length_(options.drop_last ? options.size / options.world : (options.size + options.world - 1) / options.world),
      order_(static_cast<size_t>(options.size)) {
  SetEpoch(0);
}

int64_t DistributedSampler::At(int64_t position) const {
  return order_[static_cast<size_t>((options_.rank + position * options_.world) % options_.size)];
}

void DistributedSampler::SetEpoch(int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (!options_.shuffle) return;
  RandomStream random(Key(options_.seed, HashName("shuffle"), epoch));
  for (size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[random.Below(static_cast<uint32_t>(i + 1))]);  // Fisher and Yates
  }
}

StatusOr<EvaluationSampler> EvaluationSampler::Create(int64_t size, int rank, int world,
                                                      const std::vector<int64_t>& wholes) {
  SY_RETURN_IF_ERROR(CheckSamplerArguments(size, rank, world));
  const bool whole = wholes.empty();
  const int64_t count = whole ? size : static_cast<int64_t>(wholes.size());
  const auto first = [&](int64_t i) { return whole ? i : i < count ? wholes[static_cast<size_t>(i)] : size; };
  for (int64_t i = 0; i < count; ++i) {
    if (first(i) >= first(i + 1) || first(0) != 0)
      return InvalidArgument("expected wholes that ascend from 0 and lie within {} samples", size);
  }
  EvaluationSampler sampler;
  std::vector<int64_t> samples(static_cast<size_t>(world));  // by rank
  for (int64_t i = 0; i < count; ++i) {
    samples[static_cast<size_t>(i % world)] += first(i + 1) - first(i);
    for (int64_t sample = first(i); i % world == rank && sample < first(i + 1); ++sample)
      sampler.own_.push_back(sample);
  }
  sampler.length_ = *std::max_element(samples.begin(), samples.end());
  return sampler;
}

}  // namespace switchyard
