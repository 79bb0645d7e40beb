// Colour changes on 8-bit images, after PIL's ImageEnhance and ImageOps and torchvision's adjust_hue.
// Thread-safe: free functions on the caller's image.
#pragma once

#include "core/base/random.h"
#include "core/data/image.h"

namespace switchyard {

// Each blends the image with another (black, its mean grey, its own grey): factor 1 changes nothing, 0 gives the other.
void AdjustBrightness(float factor, Image* image);
void AdjustContrast(float factor, Image* image);
void AdjustSaturation(float factor, Image* image);  // nothing on grey images
// Turns the hue by `turn` of the circle, in [-0.5, 0.5]; nothing on grey images.
void AdjustHue(float turn, Image* image);
// Blends with the image smoothed over 3 x 3 pixels (the centre five times), all but its border; above 1 sharpens.
void AdjustSharpness(float factor, Image* image);

void Invert(Image* image);
void Posterize(int bits, Image* image);      // keeps so many high bits, 0 to 8; 0 gives black
void Solarize(int threshold, Image* image);  // inverts values from the threshold on, 0 to 256
void SolarizeAdd(int add, Image* image);     // adds to values below 128, at most 255
// For each channel by itself: from its least and greatest value to 0 and 255; so that its histogram becomes flat.
void AutoContrast(Image* image);
void Equalize(Image* image);

// Ranges of random changes: factors from [1 − range, 1 + range], at least 0; the hue from [−hue, hue].
struct ColorJitter {
  float brightness = 0, contrast = 0, saturation = 0, hue = 0;
};
// The four in random order; nothing is drawn where all ranges are 0.
void JitterColor(const ColorJitter& jitter, RandomStream* random, Image* image);

}  // namespace switchyard
