// How an image becomes what a trained model eats when nothing is random: the pixels that accuracy is measured on. It
// belongs to the trained weights and not to the training's augmentation: it is saved with every checkpoint, and `eval`,
// `predict` and the exported preprocessor_config.json all follow it. Plain data; thread-safe.
#pragma once

#include <vector>

#include "core/base/status.h"
#include "core/data/resize.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// Where the middle lies if a crop leaves an odd number of pixels around it.
enum class CropOffset {
  kDown,     // half of them, rounded down: Hugging Face
  kHalfEven  // half of them, rounded to the next number, a half to the even one: torchvision and timm
};

struct EvaluationTransform {
  int image_size = 224;  // pixels; the result is square
  int channels = 3;      // of the result: 1 or 3
  // Pixels that the shorter side is resized to, at least image_size, before the centre is taken (the longer side keeps
  // the proportion, rounded down). 0: the whole image is stretched to the square.
  int resize = 256;
  Interpolation interpolation = Interpolation::kBilinear;
  std::vector<float> mean = {0.5f}, std = {0.5f};  // of pixels in [0, 1]; one number, or one per channel
  CropOffset crop_offset = CropOffset::kDown;

  friend bool operator==(const EvaluationTransform&, const EvaluationTransform&) = default;
};

inline constexpr char kCropOffsetKey[] = "crop_offset";  // in JSON, with one of these names
const char* CropOffsetName(CropOffset offset);
StatusOr<CropOffset> ParseCropOffset(const nlohmann::json& name);

// The shorter side of which a centred crop of image_size keeps the share `crop_ratio`, in [0.1, 1].
int ResizeForCrop(int image_size, float crop_ratio);

// InvalidArgument names the field that is out of its range.
Status Check(const EvaluationTransform& transform);

// {"image_size", "channels", "resize", "interpolation", "mean", "std"}, every one of them there, and "crop_offset",
// which is "down" where it is missing. InvalidArgument names the field that is missing, of another type or out of its
// range.
nlohmann::json ToJson(const EvaluationTransform& transform);
StatusOr<EvaluationTransform> EvaluationTransformFromJson(const nlohmann::json& json);

}  // namespace switchyard
