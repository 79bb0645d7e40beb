// Images as the input of a graph: bytes as they are stored, made floats on the device, or floats that the host has
// normalised already. Both give the same bits where the device rounds divisions as IEEE 754 asks. Pure functions.
#pragma once

#include <vector>

#include "core/graph/passes/rewrite.h"
#include "core/nn/context.h"
#include "core/train/picture.h"

namespace switchyard {

struct ImageInput {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  DType dtype = DType::kF32;     // as it travels: kU8, or kF32, which the host has normalised
  std::vector<float> mean, std;  // kU8: of pixels in [0, 1]; one number, or one per channel
};

// Adds the batch input "images" (B, H, W, C) and gives it as f32: (pixel / 255 − mean) / std where it travels as bytes.
Value AddImages(nn::Context& context, const ImageInput& input);

// The picture that a row of "images" is.
Raster PictureOf(const ImageInput& input, const void* row);

// Whether a device has kernels for all that AddImages puts behind bytes.
bool TakesBytes(const ImageInput& input, const CanPrepare& can_prepare);

}  // namespace switchyard
