// Cropping, and resizing with a filter as wide as the reduction (antialiased), in fixed point: on every machine the
// same bytes as Pillow 13's Image.resize, which torchvision and Hugging Face use. Pillow up to 12 always resizes rows
// before columns; where 13 begins with the columns, the two differ by at most one grey level. Thread-safe: free
// functions on the caller's objects; scratch memory is kept per thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/data/image.h"

namespace switchyard {

// A rectangle of an image.
struct ImageView {
  const uint8_t* data = nullptr;  // its first pixel
  int height = 0, width = 0, channels = 0;
  size_t row_bytes = 0;  // from one row to the next
};

inline ImageView Crop(const Image& image, int top, int left, int height, int width) {
  const size_t row_bytes = static_cast<size_t>(image.width) * image.channels;
  return {image.Row(top) + static_cast<size_t>(left) * image.channels, height, width, image.channels, row_bytes};
}
inline ImageView Whole(const Image& image) { return Crop(image, 0, 0, image.height, image.width); }

enum class Interpolation {
  kBilinear,  // bilinear
  kBicubic,   // bicubic: Keys' cubic convolution with a = -0.5
};

std::string InterpolationName(Interpolation interpolation);
StatusOr<Interpolation> ParseInterpolation(const std::string& name);

// `out` becomes (height, width, in.channels), all at least 1; it is not the image that `in` looks at.
void Resize(const ImageView& in, int height, int width, Interpolation interpolation, Image* out);

// The same by nearest neighbours, which never makes a number that was not there: for masks. Sample points are the
// pixels' centres, as those of Pillow's NEAREST; one that lies exactly between two pixels takes the further one, where
// Pillow, which adds up rounded steps, often takes the nearer.
void ResizeNearest(const Image& in, int height, int width, Image* out);

// The rectangle at (top, left), which may lie partly or wholly outside; `fill` there, by channel. `out` is not `in`.
void CropPadded(const Image& in, int top, int left, int height, int width, const std::array<uint8_t, 3>& fill,
                Image* out);

}  // namespace switchyard
