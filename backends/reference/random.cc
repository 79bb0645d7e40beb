// dropout and drop_path by counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011).
#include <array>
#include <cstdint>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

using Words = std::array<uint32_t, 4>;

Words Philox(uint64_t key, Words counter) {
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ low, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ high, static_cast<uint32_t>(a)};
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

uint32_t Word(double integer) { return static_cast<uint32_t>(static_cast<int64_t>(integer)); }

void CheckDropout(Check& check) {
  const auto& attr = check.attributes<sy_dropout_attributes>();
  if (!check.Operands(3, 1) || !check.FloatsExcept({1, 2}) || !check.Rank("sample_ids", 1, 1)) return;
  check.Need(attr.p >= 0 && attr.p <= 1, Text("p must be in 0 … 1, found ", attr.p));
  const int64_t count = Count(check.InputDims(0)), samples = check.InputDims(1)[0];
  check.Need(count % samples == 0, Text(count, " elements cannot be divided into ", samples, " samples"));
  check.Input("step", 2, {2}) && check.Output("y", 0, check.InputDims(0));
}

void RunDropout(Call& call) {
  const auto& attr = call.attributes<sy_dropout_attributes>();
  const Array &x = call.input(0), &ids = call.input(1), &step = call.input(2);
  const int64_t size = x.size() / ids.size();
  for (int64_t sample = 0; sample < ids.size(); ++sample) {
    Words words{};
    for (int64_t i = 0; i < size; ++i) {
      const auto e = static_cast<uint64_t>(attr.per_sample ? 0 : i);
      if (i == 0 || (!attr.per_sample && e % 4 == 0)) {  // of one draw there are four words
        words = Philox(attr.key, {static_cast<uint32_t>(e / 4), Word(ids[sample]), Word(step[0]), Word(step[1])});
      }
      const bool keep = (words[e % 4] >> 8) * 0x1p-24 >= double{attr.p};
      const int64_t at = sample * size + i;
      call.output(0)[at] = keep ? x[at] / (1 - double{attr.p}) : 0;
    }
  }
}

const Operation kDropout{"dropout", sizeof(sy_dropout_attributes), CheckDropout, RunDropout};

}  // namespace
}  // namespace switchyard
