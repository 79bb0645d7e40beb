#include "core/data/color.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace switchyard {
namespace {

uint8_t BlendByte(float other, float value, float factor) {
  return static_cast<uint8_t>(std::clamp(other + factor * (value - other), 0.0f, 255.0f));
}

using Table = std::array<uint8_t, 256>;

// Every byte becomes value_of(byte).
template <typename ValueOf>
void MapBytes(const ValueOf& value_of, Image* image) {
  Table table;
  for (int value = 0; value < 256; ++value) table[value] = static_cast<uint8_t>(value_of(value));
  for (uint8_t& byte : image->bytes) byte = table[byte];
}

void BlendWith(float other, float factor, Image* image) {
  MapBytes([=](int value) { return BlendByte(other, static_cast<float>(value), factor); }, image);
}

// Each channel through the table that table_of makes from its histogram.
template <typename TableOf>
void MapChannels(const TableOf& table_of, Image* image) {
  const auto channels = static_cast<size_t>(image->channels);
  for (size_t c = 0; c < channels; ++c) {
    std::array<int64_t, 256> histogram = {};
    for (size_t i = c; i < image->bytes.size(); i += channels) ++histogram[image->bytes[i]];
    const Table table = table_of(histogram);
    for (size_t i = c; i < image->bytes.size(); i += channels) image->bytes[i] = table[image->bytes[i]];
  }
}

Table SameBytes() {
  Table table;
  for (int value = 0; value < 256; ++value) table[value] = static_cast<uint8_t>(value);
  return table;
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
    for (int c = 0; c < 3; ++c) p[c] = BlendByte(grey, p[c], factor);
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

void AdjustSharpness(float factor, Image* image) {
  if (image->height < 3 || image->width < 3) return;
  thread_local Image original;
  original = *image;
  const auto channels = static_cast<size_t>(image->channels), row = image->width * channels;
  for (int y = 1; y + 1 < image->height; ++y) {
    const uint8_t *above = original.Row(y - 1), *here = original.Row(y), *below = original.Row(y + 1);
    uint8_t* out = image->Row(y);
    for (size_t i = channels; i < row - channels; ++i) {
      const size_t l = i - channels, r = i + channels;
      const int sum = above[l] + above[i] + above[r] + here[l] + 5 * here[i] + here[r] + below[l] + below[i] + below[r];
      const int smooth = (2 * sum + 13) / 26;  // the mean of 13, rounded
      out[i] = BlendByte(static_cast<float>(smooth), here[i], factor);
    }
  }
}

void Invert(Image* image) {
  for (uint8_t& byte : image->bytes) byte = static_cast<uint8_t>(255 - byte);
}

void Posterize(int bits, Image* image) {
  const int mask = 0xFF << (8 - bits);
  for (uint8_t& byte : image->bytes) byte = static_cast<uint8_t>(byte & mask);
}

void Solarize(int threshold, Image* image) {
  MapBytes([=](int value) { return value < threshold ? value : 255 - value; }, image);
}

void SolarizeAdd(int add, Image* image) {
  MapBytes([=](int value) { return value < 128 ? std::min(255, value + add) : value; }, image);
}

void AutoContrast(Image* image) {
  const auto stretch = [](const std::array<int64_t, 256>& histogram) {
    Table table = SameBytes();
    int low = 0, high = 255;
    while (low < 255 && histogram[low] == 0) ++low;
    while (high > 0 && histogram[high] == 0) --high;
    if (high <= low) return table;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int value = 0; value < 256; ++value) {
      table[value] = static_cast<uint8_t>(std::clamp(static_cast<int>(value * scale + offset), 0, 255));
    }
    return table;
  };
  MapChannels(stretch, image);
}

void Equalize(Image* image) {
  const auto flatten = [](const std::array<int64_t, 256>& histogram) {
    Table table = SameBytes();
    int64_t pixels = 0, last = 0;  // last: how many have the greatest value
    for (const int64_t count : histogram) {
      pixels += count;
      if (count != 0) last = count;
    }
    const int64_t step = (pixels - last) / 255;
    if (step == 0) return table;
    int64_t below = step / 2;
    for (size_t value = 0; value < 256; ++value) {
      table[value] = static_cast<uint8_t>(std::min<int64_t>(below / step, 255));
      below += histogram[value];
    }
    return table;
  };
  MapChannels(flatten, image);
}

}  // namespace switchyard
