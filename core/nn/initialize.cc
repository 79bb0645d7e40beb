#include "core/nn/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/base/random.h"

namespace switchyard::nn {
namespace {

using Words = std::array<uint32_t, 4>;

// Blocks whose words are drawn together, so that the compiler draws several at once; integers have the same bits
// however they are computed.
constexpr uint64_t kBatch = 256;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SY_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SY_FOR_EACH_CPU
#endif

// words[w][i] = word w of block `first` + i at attempt 0, which is what RandomStream(key) yields.
SY_FOR_EACH_CPU void DrawBatch(uint64_t key, uint64_t first, uint32_t words[4][kBatch]) {
  for (uint64_t i = 0; i < kBatch; ++i) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    uint32_t c0 = static_cast<uint32_t>(first + i), c1 = static_cast<uint32_t>((first + i) >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) PhiloxRound(k0, k1, c0, c1, c2, c3);
    words[0][i] = c0;
    words[1][i] = c1;
    words[2][i] = c2;
    words[3][i] = c3;
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

// Normal values with standard deviation `deviation`; an element outside ±limit is drawn again, with the next attempt of
// its block.
void FillNormal(std::vector<float>& values, uint64_t key, float deviation, float limit) {
  const uint64_t count = values.size();
  uint32_t words[4][kBatch];
  for (uint64_t block = 0; 4 * block < count; ++block) {
    const uint64_t i = block % kBatch;
    if (i == 0) DrawBatch(key, block, words);
    const std::array<float, 4> z = Normals({words[0][i], words[1][i], words[2][i], words[3][i]});
    const uint64_t end = std::min<uint64_t>(4, count - 4 * block);
    for (uint64_t lane = 0; lane < end; ++lane) {
      float value = deviation * z[lane];
      for (uint32_t attempt = 1; std::fabs(value) > limit; ++attempt) {
        const Words again = Philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), attempt, 0});
        value = deviation * Normals(again)[lane];
      }
      values[4 * block + lane] = value;
    }
  }
}

void FillUniform(std::vector<float>& values, uint64_t key, float bound) {
  RandomStream stream(key);
  for (float& value : values) value = stream.Uniform(-bound, bound);
}

}  // namespace

std::vector<float> InitialValues(const std::string& name, const TensorType& type, const Initializer& initializer,
                                 uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(type.elements()));
  const uint64_t key = Key(seed, HashName(name));
  switch (initializer.kind) {
    case Initializer::kZeros:
      break;
    case Initializer::kConstant:
      std::fill(values.begin(), values.end(), initializer.value);
      break;
    case Initializer::kNormal:
      FillNormal(values, key, initializer.value, std::numeric_limits<float>::infinity());
      break;
    case Initializer::kTruncatedNormal:
      FillNormal(values, key, initializer.value, 2);
      break;
    case Initializer::kUniform:
      FillUniform(values, key, initializer.value);
      break;
  }
  return values;
}

}  // namespace switchyard::nn
