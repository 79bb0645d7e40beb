// Rotation, shear and translation of 8-bit images, with the bytes of PIL's Image.transform (Pillow 13).
// Thread-safe: free functions on the caller's objects.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/data/resize.h"

namespace switchyard {

// Where a pixel of the result comes from: (a x + b y + c, d x + e y + f) in the image, x and y at pixel centres.
using AffineMap = std::array<double, 6>;

// Counterclockwise around the centre.
AffineMap Rotation(double degrees, int height, int width);

// `out` gets the size of `in`. What comes from outside is `fill`, a value for each channel. Pixels next to the border
// take it for their neighbours beyond. Not antialiased.
void Warp(const Image& in, const AffineMap& map, Interpolation interpolation, std::span<const uint8_t> fill,
          Image* out);
// The same for masks, whose numbers cannot be averaged: each is that of the pixel in which the place lies.
void WarpNearest(const Image& in, const AffineMap& map, uint8_t fill, Image* out);

}  // namespace switchyard
