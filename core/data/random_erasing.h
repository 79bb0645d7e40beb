// Random erasing (Zhong et al., "Random erasing data augmentation", 2017): rectangles of noise or of one colour, as
// timm draws them: 0.02 to 1/3 of the image's area, shared by all of an image's rectangles, sides in the ratio of 0.3
// to 1/0.3. Thread-safe: free functions on the caller's objects.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/random.h"
#include "core/data/image.h"

namespace switchyard {

// Normal noise has the mean and standard deviation by which pixels are normalised, rounded to bytes and cut off where
// they end.
enum class EraseMode {
  kConst,  // const: the mean
  kRand,   // rand: a colour of normal noise for each rectangle
  kPixel,  // pixel: normal noise in each pixel
};
StatusOr<EraseMode> ParseEraseMode(const std::string& name);

struct RandomErasing {
  float probability = 0;
  EraseMode mode = EraseMode::kConst;
  int max_count = 1;  // rectangles: from 1 to so many, drawn for each image
};

// mean, std: of pixels in [0, 1], for each channel.
void Erase(const RandomErasing& erasing, std::span<const float> mean, std::span<const float> std, RandomStream* random,
           Image* image);

}  // namespace switchyard
