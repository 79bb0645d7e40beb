#include "core/data/image.h"

namespace switchyard {

Status DecodeImage(std::span<const uint8_t> bytes, Image* image) {
  if (bytes.empty()) return DataLoss("expected a JPEG or PNG image, found an empty file");
  if (bytes.size() >= 2 && bytes[0] == 0xFF && bytes[1] == 0xD8) return DecodeJpeg(bytes, image);
  if (bytes.size() >= 4 && bytes[0] == 0x89 && bytes[1] == 'P' && bytes[2] == 'N' && bytes[3] == 'G') {
    return DecodePng(bytes, image);
  }
  return InvalidArgument("expected a JPEG or PNG image, found neither signature in its first bytes");
}

void ConvertChannels(int channels, Image* image) {
  const size_t pixels = static_cast<size_t>(image->height) * image->width;
  if (image->channels == channels) return;
  if (channels == 1) {
    uint8_t* p = image->bytes.data();
    for (size_t i = 0; i < pixels; ++i) p[i] = Luma(p[3 * i], p[3 * i + 1], p[3 * i + 2]);
    image->bytes.resize(pixels);
  } else {
    image->bytes.resize(pixels * 3);
    uint8_t* p = image->bytes.data();
    for (size_t i = pixels; i-- > 0;) p[3 * i] = p[3 * i + 1] = p[3 * i + 2] = p[i];
  }
  image->channels = channels;
}

}  // namespace switchyard
