#include "core/nn/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "core/base/random.h"

namespace switchyard::nn {
namespace {

using Words = std::array<uint32_t, 4>;

// Blocks whose words are drawn together, so that the compiler draws several at once; integers have the same bits
// however they are computed.
constexpr uint64_t kTogether = 16, kBatch = 16 * kTogether;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SY_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SY_FOR_EACH_CPU
#endif

// words[w][i] = word w of block `first` + i at attempt 0, which is what RandomStream(key) yields; of `count` blocks,
// and of some behind them.
SY_FOR_EACH_CPU void DrawBatch(uint64_t key, uint64_t first, uint64_t count, uint32_t words[4][kBatch]) {
  for (uint64_t done = 0; done < count; done += kTogether) {
    for (uint64_t i = done; i < done + kTogether; ++i) {
      uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
      uint32_t c0 = static_cast<uint32_t>(first + i), c1 = static_cast<uint32_t>((first + i) >> 32), c2 = 0, c3 = 0;
      for (int round = 0; round < 10; ++round) PhiloxRound(k0, k1, c0, c1, c2, c3);
      words[0][i] = c0;
      words[1][i] = c1;
      words[2][i] = c2;
      words[3][i] = c3;
    }
  }
}

std::array<float, 4> Normals(const Words& words) {
  std::array<float, 4> z;
  for (int pair = 0; pair < 4; pair += 2) {
    const float radius = std::sqrt(-2 * std::log(1 - UnitFloat(words[pair])));
    const float angle = 2 * std::numbers::pi_v<float> * UnitFloat(words[pair + 1]);
    z[pair] = radius * std::cos(angle);
    z[pair + 1] = radius * std::sin(angle);
  }
  return z;
}

// Elements from `first` on of a tensor whose block b, four elements, is of_block(b, its words).
template <typename OfBlock>
void Fill(std::span<float> values, uint64_t first, uint64_t key, const OfBlock& of_block) {
  const uint64_t end = first + values.size(), blocks = (end + 3) / 4;
  uint32_t words[4][kBatch];
  for (uint64_t batch = first / 4; batch < blocks; batch += kBatch) {
    const uint64_t count = std::min(kBatch, blocks - batch);
    DrawBatch(key, batch, count, words);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t block = batch + i;
      const std::array<float, 4> drawn = of_block(block, Words{words[0][i], words[1][i], words[2][i], words[3][i]});
      const uint64_t last = std::min(end, 4 * block + 4);
      for (uint64_t at = std::max(first, 4 * block); at < last; ++at) values[at - first] = drawn[at - 4 * block];
    }
  }
}

// Normal values with standard deviation `deviation`; an element outside ±limit is drawn again, with the next attempt of
// its block.
void FillNormal(std::span<float> values, uint64_t first, uint64_t key, float deviation, float limit) {
  Fill(values, first, key, [&](uint64_t block, const Words& words) {
    std::array<float, 4> drawn = Normals(words);
    for (size_t lane = 0; lane < drawn.size(); ++lane) {
      drawn[lane] *= deviation;
      for (uint32_t attempt = 1; std::fabs(drawn[lane]) > limit; ++attempt) {
        const Words again = Philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), attempt, 0});
        drawn[lane] = deviation * Normals(again)[lane];
      }
    }
    return drawn;
  });
}

void FillUniform(std::span<float> values, uint64_t first, uint64_t key, float bound) {
  Fill(values, first, key, [&](uint64_t, const Words& words) {
    std::array<float, 4> drawn;
    for (size_t lane = 0; lane < drawn.size(); ++lane) drawn[lane] = -bound + (bound + bound) * UnitFloat(words[lane]);
    return drawn;
  });
}

}  // namespace

std::vector<float> InitialValues(const std::string& name, const TensorType& type, const Initializer& initializer,
                                 uint64_t seed) {
  return InitialElements(name, {{0, 0, type.elements()}}, initializer, seed);
}

std::vector<float> InitialElements(const std::string& name, const std::vector<PartRun>& runs,
                                   const Initializer& initializer, uint64_t seed) {
  std::vector<float> values(runs.empty() ? 0 : static_cast<size_t>(runs.back().at + runs.back().elements));
  const uint64_t key = Key(seed, HashName(name));
  for (const PartRun& run : runs) {
    const std::span<float> of_run(values.data() + run.at, static_cast<size_t>(run.elements));
    const auto first = static_cast<uint64_t>(run.whole);
    switch (initializer.kind) {
      case Initializer::kZeros:
        break;
      case Initializer::kConstant:
        std::fill(of_run.begin(), of_run.end(), initializer.value);
        break;
      case Initializer::kNormal:
        FillNormal(of_run, first, key, initializer.value, std::numeric_limits<float>::infinity());
        break;
      case Initializer::kTruncatedNormal:
        FillNormal(of_run, first, key, initializer.value, 2);
        break;
      case Initializer::kUniform:
        FillUniform(of_run, first, key, initializer.value);
        break;
    }
  }
  return values;
}

}  // namespace switchyard::nn
