#include "core/data/mask_transforms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/random.h"
#include "core/data/color.h"
#include "core/data/dataset.h"

namespace switchyard {
namespace {

int Scaled(int extent, double scale) { return std::max(1, static_cast<int>(std::lround(extent * scale))); }

// Where a window of `extent` begins in `size`: anywhere inside, or so that all of `size` lies in it.
int RandomBegin(int size, int extent, RandomStream* random) {
  const int low = std::min(0, size - extent), high = std::max(0, size - extent);
  return low + static_cast<int>(random->Below(static_cast<uint32_t>(high - low + 1)));
}

}  // namespace

std::array<int, 2> FittedSize(int height, int width, int input_height, int input_width) {
  const double scale = std::min(static_cast<double>(input_height) / height, static_cast<double>(input_width) / width);
  return {std::min(input_height, Scaled(height, scale)), std::min(input_width, Scaled(width, scale))};
}

StatusOr<MaskTransform> MaskTransform::Create(const MaskTransformOptions& o) {
  constexpr int kMostPixels = 8192;
  if (o.height < 1 || o.width < 1 || o.height > kMostPixels || o.width > kMostPixels)
    return InvalidArgument("input: expected 1 to {} pixels in height and width, found {} x {}", kMostPixels, o.height,
                           o.width);
  if (o.channels != 1 && o.channels != 3) return InvalidArgument("channels: expected 1 or 3, found {}", o.channels);
  for (const auto* numbers : {&o.mean, &o.std}) {
    if (numbers->size() != 1 && numbers->size() != static_cast<size_t>(o.channels))
      return InvalidArgument("mean and std: expected one number or {} (one per channel), found {}", o.channels,
                             numbers->size());
  }
  if (o.augmentation != Augmentation::kNone && o.augmentation != Augmentation::kScaleCrop)
    return InvalidArgument("--augmentation={}: images with masks take none or scale_crop",
                           AugmentationName(o.augmentation));
  SY_RETURN_IF_ERROR(CheckRange("max_scale", o.max_scale, 0.01f, 100));
  SY_RETURN_IF_ERROR(CheckRange("min_scale", o.min_scale, 0.01f, o.max_scale));
  SY_RETURN_IF_ERROR(CheckRange("flip_probability", o.flip_probability, 0, 1));
  for (const float jitter : {o.brightness, o.contrast, o.saturation})
    SY_RETURN_IF_ERROR(CheckRange("colour jitter", jitter, 0, 10));
  SY_RETURN_IF_ERROR(CheckRange("erase_prob", o.erasing.probability, 0, 1));
  SY_RETURN_IF_ERROR(CheckRange("erase_count", static_cast<float>(o.erasing.max_count), 1, 1024));
  return MaskTransform(o);
}

MaskTransform::MaskTransform(const MaskTransformOptions& options) : options_(options) {
  for (size_t c = 0; c < static_cast<size_t>(options_.channels); ++c) {
    const float mean = mean_.emplace_back(options_.mean[options_.mean.size() == 1 ? 0 : c]);
    const float std = std_.emplace_back(options_.std[options_.std.size() == 1 ? 0 : c]);
    padding_[c] = static_cast<uint8_t>(std::clamp(std::lround(255 * mean), 0L, 255L));
    auto& table = normalized_.emplace_back();
    for (int value = 0; value < 256; ++value) {
      table[static_cast<size_t>(value)] = (static_cast<float>(value) / 255.0f - mean) / std;
    }
  }
}

// Calls write(byte, channel) for each byte of the image, in the order of the result.
template <typename Write>
void MaskTransform::Prepare(int64_t epoch, int64_t index, Image* image, Image* mask, int32_t* classes, bool* flip,
                            const Write& write) const {
  thread_local Image resized, resized_mask, cropped, cropped_mask;
  const MaskTransformOptions& o = options_;
  const bool random_geometry = o.train && o.augmentation != Augmentation::kNone;
  RandomStream random(Key(o.seed, HashName("mask_augment"), epoch, index));
  ConvertChannels(o.channels, image);
  auto [height, width] = FittedSize(image->height, image->width, o.height, o.width);
  int top = 0, left = 0;
  bool mirrored = false;
  if (random_geometry) {
    const double scale = random.Uniform(o.min_scale, o.max_scale);
    height = Scaled(height, scale), width = Scaled(width, scale);
    top = RandomBegin(height, o.height, &random), left = RandomBegin(width, o.width, &random);
    mirrored = random.Uniform() < o.flip_probability;
  }
  if (flip != nullptr) *flip = std::exchange(mirrored, false);
  Resize(Whole(*image), height, width, o.interpolation, &resized);
  ResizeNearest(*mask, height, width, &resized_mask);
  if (o.train) JitterColor({o.brightness, o.contrast, o.saturation, 0}, &random, &resized);
  CropPadded(resized, top, left, o.height, o.width, padding_, &cropped);
  CropPadded(resized_mask, top, left, o.height, o.width, {kIgnoredClass}, &cropped_mask);
  if (o.train && o.rand_augment) {
    switchyard::Apply(*o.rand_augment, {&o.interpolation, 1}, std::span(padding_).first(mean_.size()), &random,
                      &cropped, &cropped_mask);
  }
  if (o.train && o.erasing.probability > 0) Erase(o.erasing, mean_, std_, &random, &cropped);
  for (int y = 0; y < o.height; ++y) {
    for (int i = 0; i < o.width; ++i) {
      const int x = mirrored ? o.width - 1 - i : i;
      const uint8_t* const pixel = cropped.Row(y) + static_cast<size_t>(x) * o.channels;
      for (size_t c = 0; c < static_cast<size_t>(o.channels); ++c) write(pixel[c], c);
      const uint8_t id = cropped_mask.Row(y)[x];
      *classes++ = id == kIgnoredClass ? -1 : id;
    }
  }
}

void MaskTransform::Apply(int64_t epoch, int64_t index, Image* image, Image* mask, float* pixels,
                          int32_t* classes) const {
  Prepare(epoch, index, image, mask, classes, nullptr,
          [&](uint8_t byte, size_t c) { *pixels++ = normalized_[c][byte]; });
}

void MaskTransform::ApplyBytes(int64_t epoch, int64_t index, Image* image, Image* mask, uint8_t* pixels,
                               int32_t* classes, bool* flip) const {
  Prepare(epoch, index, image, mask, classes, flip, [&](uint8_t byte, size_t) { *pixels++ = byte; });
}

}  // namespace switchyard
