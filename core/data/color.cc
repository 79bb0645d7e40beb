#include "core/data/color.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace switchyard {
namespace {

uint8_t Blend(float other, float value, float factor) {
  return static_cast<uint8_t>(std::clamp(other + factor * (value - other), 0.0f, 255.0f));
}

// Blends every byte with one value, by table.
void BlendWith(float other, float factor, Image* image) {
  std::array<uint8_t, 256> table;
  for (int value = 0; value < 256; ++value) table[value] = Blend(other, static_cast<float>(value), factor);
  for (uint8_t& byte : image->bytes) byte = table[byte];
}

}  // namespace

void AdjustBrightness(float factor, Image* image) { BlendWith(0, factor, image); }

void AdjustContrast(float factor, Image* image) {
  int64_t sum = 0;
  const uint8_t* p = image->bytes.data();
  const auto pixels = static_cast<int64_t>(image->height) * image->width;
  for (int64_t i = 0; i < pixels; ++i, p += image->channels)
    sum += image->channels == 1 ? p[0] : Luma(p[0], p[1], p[2]);
  BlendWith(std::floor(static_cast<float>(sum) / static_cast<float>(pixels) + 0.5f), factor, image);
}

void AdjustSaturation(float factor, Image* image) {
  if (image->channels != 3) return;
  for (size_t i = 0; i < image->bytes.size(); i += 3) {
    uint8_t* p = &image->bytes[i];
    const float grey = Luma(p[0], p[1], p[2]);
    for (int c = 0; c < 3; ++c) p[c] = Blend(grey, p[c], factor);
  }
}

void AdjustHue(float turn, Image* image) {
  if (image->channels != 3) return;
  for (size_t i = 0; i < image->bytes.size(); i += 3) {
    uint8_t* p = &image->bytes[i];
    const float high = std::max({p[0], p[1], p[2]}), low = std::min({p[0], p[1], p[2]}), chroma = high - low;
    if (chroma == 0) continue;
    // Hue in sixths of the circle (A. R. Smith, "Color gamut transform pairs", 1978).
    float hue = high == p[0]   ? static_cast<float>(p[1] - p[2]) / chroma
                : high == p[1] ? static_cast<float>(p[2] - p[0]) / chroma + 2
                               : static_cast<float>(p[0] - p[1]) / chroma + 4;
    hue += 6 * turn;
    for (int c = 0; c < 3; ++c) {
      float k = std::fmod(hue + static_cast<float>(5 - 2 * c), 6.0f);  // red 5, green 3, blue 1
      if (k < 0) k += 6;
      const float value = high - chroma * std::clamp(std::min(k, 4 - k), 0.0f, 1.0f);
      p[c] = static_cast<uint8_t>(std::clamp(value + 0.5f, 0.0f, 255.0f));
    }
  }
}

void JitterColor(const ColorJitter& jitter, RandomStream* random, Image* image) {
  if (!(jitter.brightness > 0 || jitter.contrast > 0 || jitter.saturation > 0 || jitter.hue > 0)) return;
  std::array<int, 4> order = {0, 1, 2, 3};
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[random->Below(static_cast<uint32_t>(i + 1))]);
  }
  const auto factor = [random](float range) { return random->Uniform(std::max(0.0f, 1 - range), 1 + range); };
  for (const int change : order) {
    if (change == 0 && jitter.brightness > 0) AdjustBrightness(factor(jitter.brightness), image);
    if (change == 1 && jitter.contrast > 0) AdjustContrast(factor(jitter.contrast), image);
    if (change == 2 && jitter.saturation > 0) AdjustSaturation(factor(jitter.saturation), image);
    if (change == 3 && jitter.hue > 0) AdjustHue(random->Uniform(-jitter.hue, jitter.hue), image);
  }
}

}  // namespace switchyard
