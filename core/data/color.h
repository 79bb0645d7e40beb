// Colour changes on 8-bit images, after PIL's ImageEnhance and torchvision's adjust_hue.
// Thread-safe: free functions on the caller's image.
#pragma once

#include "core/data/image.h"

namespace switchyard {

// Each blends the image with another (black, its mean grey, its own grey): factor 1 changes nothing, 0 gives the other.
void AdjustBrightness(float factor, Image* image);
void AdjustContrast(float factor, Image* image);
void AdjustSaturation(float factor, Image* image);  // nothing on grey images
// Turns the hue by `turn` of the circle, in [-0.5, 0.5]; nothing on grey images.
void AdjustHue(float turn, Image* image);

}  // namespace switchyard
