// How training images are varied. A dataset names the one that suits it; `--augmentation=` chooses another.
// Thread-safe: pure functions.
#pragma once

#include <string>

#include "core/base/status.h"

namespace switchyard {

enum class Augmentation {
  kNone,         // none: the same image in every epoch, prepared as for evaluation
  kCrop,         // crop: padded, then cropped at random (digits, where a mirrored image is another class)
  kCropFlip,     // crop_flip: the same and mirrored with probability 0.5 (small photographs)
  kResizedCrop,  // resized_crop: a random part, resized, mirrored with probability 0.5 (photographs)
  kScaleCrop,    // scale_crop: at a random scale, cropped, mirrored with probability 0.5 (images with masks alone)
};

bool Mirrors(Augmentation augmentation);
std::string AugmentationName(Augmentation augmentation);
StatusOr<Augmentation> ParseAugmentation(const std::string& name);

// InvalidArgument, with the option's name, outside of [low, high].
Status CheckRange(const char* option, float value, float low, float high);

}  // namespace switchyard
