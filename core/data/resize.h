// Bilinear resizing with a filter as wide as the reduction (antialiased), in fixed point: the same bytes as PIL's
// Image.resize(…, BILINEAR), which torchvision uses, on every machine.
// Thread-safe: a free function on the caller's objects; scratch memory is kept per thread.
#pragma once

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

// `out` becomes (height, width, in.channels), all at least 1; it is not the image that `in` looks at.
void ResizeBilinear(const ImageView& in, int height, int width, Image* out);

}  // namespace switchyard
