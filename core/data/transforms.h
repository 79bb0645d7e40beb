// From a decoded image to what a model eats: geometry, colour, normalisation. The result is a pure function of
// (seed, epoch, index), whatever thread, rank or world it is computed on.
// Thread-safe: a Transform is immutable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/data/augmentation.h"
#include "core/data/evaluation_transform.h"
#include "core/data/image.h"
#include "core/data/rand_augment.h"
#include "core/data/random_erasing.h"

namespace switchyard {

struct TransformOptions {
  EvaluationTransform evaluation;  // also what the training geometries end in: size, channels, filter, normalisation
  bool train = false;              // false: the evaluation geometry, nothing random
  Augmentation augmentation = Augmentation::kResizedCrop;
  int crop_padding = 4;                    // pixels; kCrop and kCropFlip
  float min_scale = 0.08f, max_scale = 1;  // share of the image's area; kResizedCrop
  float flip_probability = 0.5f;  // kCropFlip and kResizedCrop
  // Colour jitter in training: factors from [1 - b, 1 + b], hue from [-hue, hue] of the circle (at most 0.5).
  float brightness = 0, contrast = 0, saturation = 0, hue = 0;
  // Filters of training, one drawn for each image and for each op that moves pixels; empty: that of evaluation.
  std::vector<Interpolation> filters;
  // In training, in this order: RandAugment, colour jitter, erasing.
  std::optional<RandAugment> rand_augment;
  RandomErasing erasing;
  uint64_t seed = 42;
};

class Transform {
 public:
  static StatusOr<Transform> Create(const TransformOptions& options);  // InvalidArgument names the wrong option

  // Writes (image_size, image_size, channels): floats, (pixel / 255 - mean) / std, or the pixels as bytes, before that
  // normalisation. `image` has 1 or 3 channels and is used as scratch. `index` is the sample's index in the dataset.
  // flip: where given, rows are written as they are, and it says whether someone is to reverse them.
  void Apply(int64_t epoch, int64_t index, Image* image, float* out) const;
  void ApplyBytes(int64_t epoch, int64_t index, Image* image, uint8_t* out, bool* flip = nullptr) const;

  // ResourceExhausted where so narrow an image would become larger than kMaxPixels on its way: it is not to be applied.
  Status CheckExtents(const Image& image) const;

  const TransformOptions& options() const { return options_; }
  int64_t elements() const {
    const EvaluationTransform& e = options_.evaluation;
    return int64_t{1} * e.image_size * e.image_size * e.channels;
  }

 private:
  explicit Transform(const TransformOptions& options);
  // All but normalisation. The result is memory of the calling thread's; it is to be read from right to left where
  // *mirrored.
  const Image& Prepare(int64_t epoch, int64_t index, Image* image, bool* mirrored) const;
  void Vary(RandomStream* random, Image* image) const;  // what comes after the geometry in training
  TransformOptions options_;
  std::vector<float> mean_, std_;                   // per channel
  std::vector<uint8_t> mean_bytes_;                 // the mean as a pixel
  std::vector<std::array<float, 256>> normalized_;  // per channel, the result for each byte
};

// Usual statistics of pixels in [0, 1].
inline const std::vector<float> kImageNetMean = {0.485f, 0.456f, 0.406f}, kImageNetStd = {0.229f, 0.224f, 0.225f};

}  // namespace switchyard
