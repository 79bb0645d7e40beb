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
  bool flips = false;            // kU8: of a training batch the device mirrors the images that "flips" marks
};

// Adds the batch input "flips" u8 (B) and gives it; nothing where input.flips is not set.
Value AddFlips(nn::Context& context, const ImageInput& input);
// x (B, H, W, …) with the rows of marked samples in reverse order; x itself without flips.
Value Flipped(const Value& x, const Value& flips);

// Adds the batch input "images" (B, H, W, C) and gives it as f32: (pixel / 255 − mean) / std where it travels as bytes,
// which are flipped first.
Value AddImages(nn::Context& context, const ImageInput& input, const Value& flips = {});

// The same of a training batch that the device mixes (core/data/mixing.h), with the bits of one whose bytes the loader
// has mixed. Adds the batch inputs "images" u8, "partners" i32 (B), "partner_rows" i32 (B, H) and "partner_columns" u8
// (B, W·C) of core/data/labelled_images.h.
Value AddMixedImages(nn::Context& context, const ImageInput& input, const Value& flips = {});

// The picture that a row of "images" is.
Raster PictureOf(const ImageInput& input, const void* row);

// Whether a device has kernels for all that AddImages, or AddMixedImages, puts behind bytes, and for Flipped of images
// and of their masks, i32 (B, H, W).
bool TakesBytes(const ImageInput& input, const CanPrepare& can_prepare);
bool MixesBytes(const ImageInput& input, const CanPrepare& can_prepare);
bool FlipsBytes(const ImageInput& input, const CanPrepare& can_prepare);

}  // namespace switchyard
