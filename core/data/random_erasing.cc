#include "core/data/random_erasing.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/names.h"

namespace switchyard {
namespace {

struct Rectangle {
  int top = 0, left = 0, height = 0, width = 0;
};

// False where ten draws did not fit.
bool DrawErased(const Image& image, int count, RandomStream* random, Rectangle* r) {
  constexpr float kMinArea = 0.02f, kMaxArea = 1.0f / 3;
  const float most = std::log(1 / 0.3f), area = static_cast<float>(image.height) * static_cast<float>(image.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const float part = random->Uniform(kMinArea, kMaxArea) * area / static_cast<float>(count);
    const float aspect = std::exp(random->Uniform(-most, most));
    r->height = static_cast<int>(std::lround(std::sqrt(part * aspect)));
    r->width = static_cast<int>(std::lround(std::sqrt(part / aspect)));
    if (r->height >= image.height || r->width >= image.width) continue;
    r->top = static_cast<int>(random->Below(static_cast<uint32_t>(image.height - r->height + 1)));
    r->left = static_cast<int>(random->Below(static_cast<uint32_t>(image.width - r->width + 1)));
    return true;
  }
  return false;
}

}  // namespace

StatusOr<EraseMode> ParseEraseMode(const std::string& name) {
  static const auto& names = *new std::vector<std::string>{"const", "rand", "pixel"};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<EraseMode>(found - names.begin());
  return InvalidArgument("unknown erase mode {}{}; expected one of {}", name, DidYouMean(name, names),
                         fmt::join(names, ", "));
}

void Erase(const RandomErasing& erasing, std::span<const float> mean, std::span<const float> std, RandomStream* random,
           Image* image) {
  if (random->Uniform() >= erasing.probability) return;
  const auto channels = static_cast<size_t>(image->channels);
  const auto byte = [&](size_t c, float noise) {
    return static_cast<uint8_t>(std::clamp(std::lround((mean[c] + std[c] * noise) * 255), 0l, 255l));
  };
  const int count = 1 + static_cast<int>(random->Below(static_cast<uint32_t>(erasing.max_count)));
  for (int i = 0; i < count; ++i) {
    Rectangle r;
    if (!DrawErased(*image, count, random, &r)) continue;
    std::array<uint8_t, 3> color = {};
    for (size_t c = 0; c < channels; ++c) {
      color[c] = byte(c, erasing.mode == EraseMode::kRand ? random->Normal() : 0.0f);
    }
    for (int y = r.top; y < r.top + r.height; ++y) {
      uint8_t* p = image->Row(y) + r.left * channels;
      for (size_t k = 0; k < r.width * channels; ++k) {
        const size_t c = k % channels;
        p[k] = erasing.mode == EraseMode::kPixel ? byte(c, random->Normal()) : color[c];
      }
    }
  }
}

}  // namespace switchyard
