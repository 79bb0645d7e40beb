// From an image and its mask to what a segmentation model eats: one geometry for both, colour for the image alone. The
// result is a pure function of (seed, epoch, index), whatever thread, rank or world it is computed on.
//
// Evaluation fits the image into the model's input, in its proportions, at the top left; the rest is padding: the mean
// colour, and kIgnoredClass in the mask. Training takes the fitted image times a random scale and crops the input from
// it at random, with the same padding where it is smaller: models see things in the sizes that evaluation shows. What
// RandAugment then moves, it moves in both, with that padding where nothing was; erasing leaves the mask as it is, as
// torchvision's transforms v2 do: what is hidden has to be told from what is around it.
// Thread-safe: a MaskTransform is immutable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/data/augmentation.h"
#include "core/data/image.h"
#include "core/data/rand_augment.h"
#include "core/data/random_erasing.h"
#include "core/data/resize.h"

namespace switchyard {

struct MaskTransformOptions {
  int height = 0, width = 0, channels = 3;                 // of the model's input
  Interpolation interpolation = Interpolation::kBilinear;  // of the image; masks take the nearest pixel
  std::vector<float> mean = {0.5f}, std = {0.5f};          // of pixels in [0, 1]; one number, or one per channel
  bool train = false;                                      // false: the evaluation geometry, nothing random
  Augmentation augmentation = Augmentation::kScaleCrop;    // or kNone: the evaluation geometry in training too
  float min_scale = 0.5f, max_scale = 2;                   // Chen et al. 2018
  float flip_probability = 0.5f;
  // Colour jitter in training: factors from [1 − b, 1 + b].
  float brightness = 0, contrast = 0, saturation = 0;
  // In training, in this order behind the crop.
  std::optional<RandAugment> rand_augment;
  RandomErasing erasing;
  uint64_t seed = 42;
};

// Height and width of an image that is fitted into an input: at least 1, at most the input's.
std::array<int, 2> FittedSize(int height, int width, int input_height, int input_width);

class MaskTransform {
 public:
  // InvalidArgument names the wrong option.
  static StatusOr<MaskTransform> Create(const MaskTransformOptions& options);

  // Writes the pixels (height, width, channels), as floats (pixel / 255 − mean) / std or as bytes before that, and the
  // classes (height, width), −1 where they are kIgnoredClass. Image and mask have the same size and are used as
  // scratch. index: of the sample in the dataset. flip: where given, rows of both are written as they are, and it says
  // whether someone is to reverse them.
  void Apply(int64_t epoch, int64_t index, Image* image, Image* mask, float* pixels, int32_t* classes) const;
  void ApplyBytes(int64_t epoch, int64_t index, Image* image, Image* mask, uint8_t* pixels, int32_t* classes,
                  bool* flip = nullptr) const;

  const MaskTransformOptions& options() const { return options_; }

 private:
  explicit MaskTransform(const MaskTransformOptions& options);
  template <typename Write>
  void Prepare(int64_t epoch, int64_t index, Image* image, Image* mask, int32_t* classes, bool* flip,
               const Write& write) const;
  MaskTransformOptions options_;
  std::vector<float> mean_, std_;                   // per channel
  std::array<uint8_t, 3> padding_ = {};             // the mean colour
  std::vector<std::array<float, 256>> normalized_;  // per channel, the result for each byte
};

}  // namespace switchyard
