#include "core/nn/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/base/random.h"

namespace switchyard::nn {
namespace {

// The four words of block `block` at attempt `attempt`; attempt 0 is what RandomStream(key) yields.
std::array<uint32_t, 4> Words(uint64_t key, uint64_t block, uint32_t attempt) {
  return Philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), attempt, 0});
}

std::array<float, 4> Normals(const std::array<uint32_t, 4>& words) {
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
  for (uint64_t block = 0; 4 * block < count; ++block) {
    const std::array<float, 4> z = Normals(Words(key, block, 0));
    const uint64_t end = std::min<uint64_t>(4, count - 4 * block);
    for (uint64_t lane = 0; lane < end; ++lane) {
      float value = deviation * z[lane];
      for (uint32_t attempt = 1; std::fabs(value) > limit; ++attempt) {
        value = deviation * Normals(Words(key, block, attempt))[lane];
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
