#include "core/train/batch_division.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fmt/ranges.h"

namespace switchyard {
namespace {

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    divisors.push_back(d);
    if (d * d != number) divisors.push_back(number / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

}  // namespace

std::string Alternatives(const std::vector<int64_t>& numbers) {
  if (numbers.size() < 2) return fmt::format("{}", fmt::join(numbers, ""));
  return fmt::format("{} or {}", fmt::join(numbers.begin(), numbers.end() - 1, ", "), numbers.back());
}

StatusOr<BatchDivision> DivideGlobalBatch(int64_t global_batch, int world, const BatchRequest& given, int64_t most,
                                          int64_t unit) {
  const int64_t batch = given.batch_size.value_or(unit), rounds = given.accumulation.value_or(1);
  if (global_batch < 1 || world < 1 || batch < 1 || rounds < 1) {
    return InvalidArgument("a global batch of {} cannot be divided over {} ranks into batches of {} and {} micro-steps",
                           global_batch, world, batch, rounds);
  }
  const std::string multiples =
      unit > 1 ? fmt::format(" in batches that are multiples of {}, as --sp, --mixup and --cutmix have them", unit)
               : "";
  const int64_t least = world * unit;
  if (global_batch % least != 0) {
    const std::string ranks = global_batch % unit == 0
                                  ? fmt::format("it can over {} of them", Alternatives(DivisorsOf(global_batch / unit)))
                                  : "nor over any other number of them; --sp=0, or --mixup=0 --cutmix=0, asks for none";
    return InvalidArgument(
        "the run's global batch of {} images cannot be divided over {} data-parallel rank{}{}; {}, or "
        "--global_batch_size={} changes it and with it the updates of an epoch",
        global_batch, world, world > 1 ? "s" : "", multiples, ranks, (global_batch + least - 1) / least * least);
  }
  const int64_t share = global_batch / world;
  std::vector<int64_t> batches, counts;  // that would do
  for (const int64_t d : DivisorsOf(share)) {
    if (d % unit == 0) batches.push_back(d);
    if (share / d % unit == 0) counts.push_back(d);
  }
  if (!given.batch_size && !given.accumulation) {
    int64_t largest = unit;
    for (const int64_t d : batches) {
      if (d <= most) largest = d;
    }
    return BatchDivision{largest, share / largest};
  }
  // Where both are given their product has to fit, where one is given the other follows.
  if (batch % unit == 0 && share % (batch * rounds) == 0) {
    const int64_t other = share / (batch * rounds);
    if (!given.accumulation) return BatchDivision{batch, other};
    if (!given.batch_size) return BatchDivision{other * unit, rounds};
    if (other == 1) return BatchDivision{batch, rounds};
  }
  std::vector<std::string> found, instead;
  if (given.batch_size) {
    found.push_back(fmt::format("--batch_size={}", batch));
    instead.push_back(fmt::format("--batch_size={}", Alternatives(batches)));
  }
  if (given.accumulation) {
    found.push_back(fmt::format("--accumulation={}", rounds));
    instead.push_back(fmt::format("--accumulation={}", Alternatives(counts)));
  }
  // With the batch that is given, else the one with which it comes nearest to the run's.
  const int64_t nearest =
      given.batch_size ? batch : std::max<int64_t>(1, (share + rounds * unit / 2) / (rounds * unit)) * unit;
  const std::string other_global =
      nearest % unit == 0 ? fmt::format(
                                "; --global_batch_size={} changes the global batch and with it the updates of an "
                                "epoch",
                                nearest * world * rounds)
                          : "";
  return InvalidArgument(
      "{} on {} rank{} does not give the run's global batch of {} images{}; leave it out, or divide the {} images of a "
      "rank by {}{}{}",
      fmt::join(found, " "), world, world > 1 ? "s" : "", global_batch, multiples, share,
      fmt::join(instead, " alone, or "), instead.size() > 1 ? " alone" : "", other_global);
}

std::vector<int64_t> MicroBatchesOfStages(int64_t images, int64_t unit, int64_t stages, int64_t chunks) {
  std::vector<int64_t> counts = DivisorsOf(images);
  std::erase_if(counts, [&](int64_t count) {
    return count < stages || (chunks > 1 && count % stages != 0) || images / count % unit != 0;
  });
  return counts;
}

std::string GlobalBatchesThatFit(int64_t samples, int world, int64_t wanted) {
  int64_t below = 0, above = 0;
  for (const int64_t d : DivisorsOf(samples)) {
    if (d % world != 0) continue;
    if (d <= wanted) below = d;
    if (d >= wanted && above == 0) above = d;
  }
  if (below == 0 && above == 0) return "";
  if (below == 0 || above == 0 || below == above) return std::to_string(std::max(below, above));
  return Alternatives({below, above});
}

}  // namespace switchyard
