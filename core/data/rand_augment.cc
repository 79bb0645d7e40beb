#include "core/data/rand_augment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/data/affine.h"
#include "core/data/color.h"
#include "core/data/dataset.h"

namespace switchyard {
namespace {

constexpr double kFullMagnitude = 10;

void WarpInPlace(const AffineMap& map, const AugmentStrength& s, Image* image) {
  thread_local Image warped;
  Warp(*image, map, s.interpolation, s.fill, &warped);
  std::swap(*image, warped);
  if (s.mask == nullptr) return;
  WarpNearest(*s.mask, map, kIgnoredClass, &warped);
  std::swap(*s.mask, warped);
}

}  // namespace

StatusOr<RandAugment> ParseRandAugment(const std::string& words) {
  RandAugment policy;
  const auto wrong = [&](const std::string& word) {
    return InvalidArgument(
        "expected RandAugment as timm writes it, rand-m9-mstd0.5-inc1, with any of n (1 to 15), m (0 to 100), mstd (0 "
        "or more), mmax (1 to 100), p (0 to 1), inc (0 or 1), found \"{}\" in \"{}\"",
        word, words);
  };
  const std::vector<std::string> parts = absl::StrSplit(words, '-');
  if (parts[0] != "rand") return wrong(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t digits = parts[i].find_first_of("0123456789");
    const std::string key = parts[i].substr(0, digits);
    double value = 0;
    if (digits == std::string::npos || !absl::SimpleAtod(parts[i].substr(digits), &value)) return wrong(parts[i]);
    const bool whole = value == static_cast<double>(static_cast<int>(std::min(value, 1e6)));
    if (key == "n" && whole && value >= 1 && value <= 15) {
      policy.layers = static_cast<int>(value);
    } else if (key == "m" && value <= 100) {
      policy.magnitude = value;
    } else if (key == "mstd") {
      policy.magnitude_std = value;
    } else if (key == "mmax" && value >= 1 && value <= 100) {
      policy.magnitude_max = value;
    } else if (key == "p" && value <= 1) {
      policy.probability = static_cast<float>(value);
    } else if (key == "inc" && whole && value <= 1) {
      policy.increasing = value == 1;
    } else {
      return wrong(parts[i]);
    }
  }
  return policy;
}

const std::vector<std::string>& AugmentOpNames() {
  static const auto& names = *new std::vector<std::string>{
      "AutoContrast", "Equalize",   "Invert",    "Rotate", "Posterize", "Solarize",      "SolarizeAdd",  "Color",
      "Contrast",     "Brightness", "Sharpness", "ShearX", "ShearY",    "TranslateXRel", "TranslateYRel"};
  return names;
}

void Apply(AugmentOp op, const AugmentStrength& s, Image* image) {
  const double level = s.magnitude / kFullMagnitude, both_ways = s.negate ? -level : level;
  const auto factor = static_cast<float>(s.increasing ? std::max(0.1, 1 + (both_ways * 0.9)) : level * 1.8 + 0.1);
  const auto steps = [&](int most) { return static_cast<int>(level * most); };
  switch (op) {
    case AugmentOp::kAutoContrast:
      return AutoContrast(image);
    case AugmentOp::kEqualize:
      return Equalize(image);
    case AugmentOp::kInvert:
      return Invert(image);
    case AugmentOp::kRotate:
      return WarpInPlace(Rotation(both_ways * 30, image->height, image->width), s, image);
    case AugmentOp::kPosterize:
      return Posterize(std::clamp(s.increasing ? 4 - steps(4) : steps(4), 0, 8), image);
    case AugmentOp::kSolarize:
      return Solarize(s.increasing ? 256 - std::min(256, steps(256)) : std::min(256, steps(256)), image);
    case AugmentOp::kSolarizeAdd:
      return SolarizeAdd(std::min(128, steps(110)), image);
    case AugmentOp::kColor:
      return AdjustSaturation(factor, image);
    case AugmentOp::kContrast:
      return AdjustContrast(factor, image);
    case AugmentOp::kBrightness:
      return AdjustBrightness(factor, image);
    case AugmentOp::kSharpness:
      return AdjustSharpness(factor, image);
    case AugmentOp::kShearX:
      return WarpInPlace({1, both_ways * 0.3, 0, 0, 1, 0}, s, image);
    case AugmentOp::kShearY:
      return WarpInPlace({1, 0, 0, both_ways * 0.3, 1, 0}, s, image);
    case AugmentOp::kTranslateX:
      return WarpInPlace({1, 0, both_ways * 0.45 * image->width, 0, 1, 0}, s, image);
    case AugmentOp::kTranslateY:
      return WarpInPlace({1, 0, 0, 0, 1, both_ways * 0.45 * image->height}, s, image);
  }
}

void Apply(const RandAugment& policy, std::span<const Interpolation> filters, std::span<const uint8_t> fill,
           RandomStream* random, Image* image, Image* mask) {
  for (int layer = 0; layer < policy.layers; ++layer) {
    const auto op = static_cast<AugmentOp>(random->Below(static_cast<uint32_t>(AugmentOpNames().size())));
    if (random->Uniform() >= policy.probability) continue;
    AugmentStrength strength{
        .magnitude = policy.magnitude, .increasing = policy.increasing, .fill = fill, .mask = mask};
    if (policy.magnitude_std > 100) {
      strength.magnitude *= random->Uniform();
    } else if (policy.magnitude_std > 0) {
      strength.magnitude += policy.magnitude_std * random->Normal();
    }
    strength.magnitude = std::clamp(strength.magnitude, 0.0, policy.magnitude_max);
    strength.negate = random->Uniform() < 0.5f;
    strength.interpolation = filters[random->Below(static_cast<uint32_t>(filters.size()))];
    Apply(op, strength, image);
  }
}

}  // namespace switchyard
