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

StatusOr<BatchDivision> DivideGlobalBatch(int64_t global_batch, int world, const BatchDivision& given, int64_t most) {
  if (global_batch < 1 || world < 1 || given.batch_size < 0 || given.accumulation < 0) {
    return InvalidArgument("a global batch of {} cannot be divided over {} ranks into batches of {} and {} micro-steps",
                           global_batch, world, given.batch_size, given.accumulation);
  }
  if (global_batch % world != 0) {
    return InvalidArgument(
        "the run's global batch of {} images cannot be divided over {} ranks; it can over {} ranks, or "
        "--global_batch_size={} changes it and with it the updates of an epoch",
        global_batch, world, fmt::join(DivisorsOf(global_batch), ", "), (global_batch + world - 1) / world * world);
  }
  const int64_t share = global_batch / world;
  BatchDivision division = given;
  if (given.batch_size == 0 && given.accumulation == 0) {
    for (const int64_t d : DivisorsOf(share)) {
      if (d == 1 || d <= most) division.batch_size = d;
    }
    division.accumulation = share / division.batch_size;
    return division;
  }
  const bool by_batch = given.batch_size > 0;
  const int64_t divisor = by_batch ? given.batch_size : given.accumulation;
  const bool fits = share % divisor == 0;
  if (fits && by_batch && given.accumulation == 0) division.accumulation = share / divisor;
  if (fits && !by_batch) division.batch_size = share / divisor;
  if (division.batch_size * division.accumulation != share) {
    const std::string product =
        given.batch_size > 0 && given.accumulation > 0
            ? fmt::format("--batch_size={} --accumulation={}", given.batch_size, given.accumulation)
            : fmt::format("--{}={}", by_batch ? "batch_size" : "accumulation", divisor);
    return InvalidArgument(
        "{} on {} rank{} does not give the run's global batch of {} images; leave it out, or give one of them that "
        "divides the {} images of a rank: {}; --global_batch_size={} changes the global batch and with it the updates "
        "of an epoch",
        product, world, world > 1 ? "s" : "", global_batch, share, fmt::join(DivisorsOf(share), ", "),
        std::max<int64_t>(given.batch_size, 1) * world * std::max<int64_t>(given.accumulation, 1));
  }
  return division;
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
