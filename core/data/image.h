// A decoded image, rows of interleaved 8-bit channels, and the decoders that make one from JPEG or PNG bytes.
// Thread-safe: free functions on the caller's objects. Errors carry no file name; the caller knows it and adds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct Image {
  int height = 0, width = 0, channels = 0;
  std::vector<uint8_t> bytes;  // (height, width, channels)

  // Sets the shape; content is unspecified. Keeps memory, so that a reused Image does not allocate.
  void Reshape(int h, int w, int c) {
    height = h, width = w, channels = c;
    bytes.resize(static_cast<size_t>(h) * w * c);
  }
  const uint8_t* Row(int y) const { return bytes.data() + static_cast<size_t>(y) * width * channels; }
  uint8_t* Row(int y) { return bytes.data() + static_cast<size_t>(y) * width * channels; }
};

// Decodes JPEG or PNG, told apart by their first bytes, to three channels (RGB; alpha is dropped, grey is repeated).
// InvalidArgument for anything else; DataLoss where the bytes are damaged or end too early; ResourceExhausted above
// kMaxPixels.
Status DecodeImage(std::span<const uint8_t> bytes, Image* image);
inline constexpr int64_t kMaxPixels = int64_t{1} << 28;

Status DecodeJpeg(std::span<const uint8_t> bytes, Image* image);
Status DecodePng(std::span<const uint8_t> bytes, Image* image);

// Decodes a mask, a PNG of at most 8 bits: to one channel, grey values or, where it has a palette, places in it. Errors
// as those of DecodeImage; InvalidArgument for colours and 16 bits.
Status DecodeMask(std::span<const uint8_t> bytes, Image* mask);

// Grey value of a colour: ITU-R BT.601 luma in 16-bit fixed point, rounded.
inline uint8_t Luma(int r, int g, int b) {
  return static_cast<uint8_t>((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16);
}

// Converts in place between one and three channels. `channels` is 1 or 3, as is image->channels.
void ConvertChannels(int channels, Image* image);

}  // namespace switchyard
