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

StatusOr<BatchDivision> DivideGlobalBatch(int64_t global_batch, int world, const BatchRequest& given, int64_t most,
                                          int64_t unit) {
  const int64_t batch = given.batch_size.value_or(1), rounds = given.accumulation.value_or(1);
  if (global_batch < 1 || world < 1 || batch < 1 || rounds < 1) {
    return InvalidArgument("a global batch of {} cannot be divided over {} ranks into batches of {} and {} micro-steps",
                           global_batch, world, batch, rounds);
  }
  if (global_batch % world != 0) {
    return InvalidArgument(
        "the run's global batch of {} images cannot be divided over {} ranks; it can over {} ranks, or "
        "--global_batch_size={} changes it and with it the updates of an epoch",
        global_batch, world, fmt::join(DivisorsOf(global_batch), ", "), (global_batch + world - 1) / world * world);
  }
  const int64_t share = global_batch / world;
  if (!given.batch_size && !given.accumulation) {
    if (share % unit != 0) unit = 1;
    int64_t largest = unit;
    for (const int64_t d : DivisorsOf(share)) {
      if (d <= most && d % unit == 0) largest = d;
    }
    return BatchDivision{largest, share / largest};
  }
  // Where both are given their product has to fit, where one is given the other follows.
  if (share % (batch * rounds) == 0) {
    const int64_t other = share / (batch * rounds);
    if (!given.accumulation) return BatchDivision{batch, other};
    if (!given.batch_size) return BatchDivision{other, rounds};
    if (other == 1) return BatchDivision{batch, rounds};
  }
  const std::string product = given.batch_size && given.accumulation
                                  ? fmt::format("--batch_size={} --accumulation={}", batch, rounds)
                              : given.batch_size ? fmt::format("--batch_size={}", batch)
                                                 : fmt::format("--accumulation={}", rounds);
  return InvalidArgument(
      "{} on {} rank{} does not give the run's global batch of {} images; leave it out, or give one of them that "
      "divides the {} images of a rank: {}; --global_batch_size={} changes the global batch and with it the updates "
      "of an epoch",
      product, world, world > 1 ? "s" : "", global_batch, share, fmt::join(DivisorsOf(share), ", "),
      batch * world * rounds);
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
  return fmt::format("{} or {}", below, above);
}

}  // namespace switchyard
