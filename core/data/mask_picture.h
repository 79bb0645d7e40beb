// Masks as pictures: a colour for each class, PNG files whose palette has them, and masks laid over their images.
// Thread-safe: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "core/data/image.h"

namespace switchyard {

// Red, green and blue of a class by the colour map of PASCAL VOC: the bits of the number, three at a time from the
// lowest, become bits of the channels from the highest. Black for 0, a different colour for every class.
std::array<uint8_t, 3> ClassColor(uint8_t class_id);

// A PNG of 8 bits whose numbers are the classes and whose palette has their colours: DecodeMask gives `mask` back, a
// viewer shows the colours. mask: one channel, at least one pixel.
StatusOr<std::string> EncodeMask(const Image& mask);

// The mask (height, width) of an image that was fitted into a model's input (mask_transforms.h), from the input's
// scores (input_height, input_width, classes): the class with the largest one, the first of several, where scores
// between the centres of pixels are interpolated linearly. At most 255 classes.
Image MaskOfScores(std::span<const float> scores, int input_height, int input_width, int height, int width);

// (H, W, 3): half image, half colours of the mask, which has its size; the image alone where the mask is
// kIgnoredClass. image: 1 or 3 channels.
Image Overlay(const Image& image, const Image& mask);

}  // namespace switchyard
