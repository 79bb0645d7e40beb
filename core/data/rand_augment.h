// RandAugment (Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2019) as
// timm does it, with timm's words for it: rand-m9-mstd0.5-inc1. Its ops give the bytes of timm 1.0 with Pillow 13.
// Thread-safe: free functions on the caller's objects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/data/resize.h"

namespace switchyard {

struct RandAugment {
  int layers = 2;             // n: ops drawn for an image, with replacement
  double magnitude = 10;      // m: strength of the ops, on a scale that ends at 10
  double magnitude_std = 0;   // mstd: standard deviation of the strength; above 100: uniform from 0 to m
  double magnitude_max = 10;  // mmax: the strength is cut off there
  float probability = 0.5f;   // p: of each drawn op to be applied
  bool increasing = false;    // inc: all ops change the more the stronger they are; else some of them less
};

// InvalidArgument says what was expected.
StatusOr<RandAugment> ParseRandAugment(const std::string& words);

enum class AugmentOp {
  kAutoContrast,
  kEqualize,
  kInvert,
  kRotate,
  kPosterize,
  kSolarize,
  kSolarizeAdd,
  kColor,
  kContrast,
  kBrightness,
  kSharpness,
  kShearX,
  kShearY,
  kTranslateX,  // by a share of the width
  kTranslateY,
};
const std::vector<std::string>& AugmentOpNames();  // in that order

// How strong, and what ops that move pixels need: a filter, a colour for what comes from outside, and the mask of the
// image, if it has one.
struct AugmentStrength {
  double magnitude = 0;
  bool negate = false;  // ops of two directions
  bool increasing = false;
  Interpolation interpolation = Interpolation::kBilinear;
  std::span<const uint8_t> fill;  // a value for each channel
  Image* mask = nullptr;  // of the image's size: moved with it, by the nearest pixel, and kIgnoredClass from outside
};
void Apply(AugmentOp op, const AugmentStrength& strength, Image* image);

// Draws the ops and applies them; each that moves pixels draws one of the filters. mask: as above.
void Apply(const RandAugment& policy, std::span<const Interpolation> filters, std::span<const uint8_t> fill,
           RandomStream* random, Image* image, Image* mask = nullptr);

}  // namespace switchyard
