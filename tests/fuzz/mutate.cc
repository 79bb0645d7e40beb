#include <algorithm>
#include <chrono>

#include "tests/fuzz/fuzz.h"

namespace switchyard {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014).
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

FuzzInput Mutate(const FuzzInput& one, const FuzzInput& other, uint64_t* random, size_t most) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(NextRandom(random) % limit); };
  FuzzInput input = one;
  const size_t changes = 1 + below(4);
  for (size_t change = 0; change < changes; ++change) {
    const size_t at = below(input.size() + 1), length = below(std::min<size_t>(input.size() - at, 64) + 1);
    const auto place = input.begin() + static_cast<long>(at);
    switch (input.empty() ? 4 : below(8)) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1 << below(8));
        break;
      case 1: {  // a number at its edges, of one to eight bytes, in either order
        constexpr uint64_t kNumbers[] = {0,      1,      0x7F,       0x80,       0xFF,
                                         0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, ~uint64_t{0} >> 1};
        const uint64_t number = kNumbers[below(std::size(kNumbers))] + below(3) - 1;
        const size_t bytes = size_t{1} << below(4);
        const bool big = below(2) == 0;
        for (size_t i = 0; i < bytes && at + i < input.size(); ++i) {
          input[at + i] = static_cast<uint8_t>(number >> 8 * (big ? bytes - 1 - i : i));
        }
        break;
      }
      case 2:
        input.erase(place, place + static_cast<long>(length));
        break;
      case 3: {  // a piece again, sometimes very often
        const FuzzInput piece(place, place + static_cast<long>(length));
        for (size_t times = below(8) == 0 ? below(2000) : 1; times > 0 && input.size() < most; --times) {
          input.insert(input.begin() + static_cast<long>(at), piece.begin(), piece.end());
        }
        break;
      }
      case 4: {  // characters that mean something to some parser
        constexpr char kCharacters[] = "{}[]\",:\\/.-+e0123456789*@=();\n\t\x1b\xC3";
        for (size_t times = 1 + below(8); times > 0; --times) {
          input.insert(input.begin() + static_cast<long>(at),
                       static_cast<uint8_t>(kCharacters[below(sizeof kCharacters)]));
        }
        break;
      }
      case 5:  // the rest of another
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<long>(below(other.size() + 1)), other.end());
        break;
      case 6: {  // a piece of another
        const size_t from = below(other.size() + 1), bytes = below(std::min<size_t>(other.size() - from, 256) + 1);
        input.insert(place, other.begin() + static_cast<long>(from), other.begin() + static_cast<long>(from + bytes));
        break;
      }
      default:
        input.resize(at);
    }
  }
  if (input.size() > most) input.resize(most);
  return input;
}

int64_t RunFuzzer(const FuzzTarget& target, uint64_t seed, double seconds, int64_t most, FuzzInput* current) {
  constexpr size_t kLargest = size_t{64} << 10;
  const auto start = std::chrono::steady_clock::now();
  std::vector<FuzzInput> corpus = target.seeds();
  int64_t count = 0;
  for (; count < most; ++count) {
    const auto pick = [&]() -> const FuzzInput& { return corpus[NextRandom(&seed) % corpus.size()]; };
    const bool is_seed = count < static_cast<int64_t>(corpus.size());
    *current = is_seed ? corpus[static_cast<size_t>(count)] : Mutate(pick(), pick(), &seed, kLargest);
    target.run(current->data(), current->size());
    // Some mutations are mutated further; without knowing what they reached, a few of them at random.
    if (!is_seed && NextRandom(&seed) % 64 == 0) {
      if (corpus.size() < 256) {
        corpus.push_back(*current);
      } else {
        const size_t kept = target.seeds().size();
        corpus[kept + NextRandom(&seed) % (corpus.size() - kept)] = *current;
      }
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (passed.count() > seconds) break;
  }
  return count;
}

}  // namespace switchyard
