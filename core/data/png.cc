// PNG through libpng's row interface. Images: 16 bits are cut to 8, palettes and grey expanded to RGB, alpha dropped,
// gamma left alone, as PIL does for convert("RGB"). Masks: the numbers as they are stored, grey values or places in a
// palette.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

#include "core/data/image.h"

namespace switchyard {
namespace {

struct PngSource {
  std::span<const uint8_t> bytes;
  size_t position = 0;
  char text[160] = {};
  bool fits = true;  // false: sound, but not what a mask may be
};

const char* KindOfPng(int color_type) {
  switch (color_type) {
    case PNG_COLOR_TYPE_GRAY:
      return "grey";
    case PNG_COLOR_TYPE_PALETTE:
      return "palette";
    case PNG_COLOR_TYPE_GRAY_ALPHA:
      return "grey with alpha";
    case PNG_COLOR_TYPE_RGB:
      return "RGB";
    default:
      return "RGB with alpha";
  }
}

[[noreturn]] void FailPng(png_structp decoder, png_const_charp message) {
  auto* source = static_cast<PngSource*>(png_get_error_ptr(decoder));
  std::strncpy(source->text, message, sizeof source->text - 1);
  png_longjmp(decoder, 1);
}

void DropPngWarning(png_structp, png_const_charp) {}

void ReadPngBytes(png_structp decoder, png_bytep target, size_t count) {
  auto* source = static_cast<PngSource*>(png_get_io_ptr(decoder));
  if (count > source->bytes.size() - source->position) png_error(decoder, "ends too early");
  std::memcpy(target, source->bytes.data() + source->position, count);
  source->position += count;
}

// Numbers of up to 8 bits are left as they are, one a byte.
void KeepNumbers(png_structp decoder, png_infop info, PngSource* source) {
  const int color_type = png_get_color_type(decoder, info), depth = png_get_bit_depth(decoder, info);
  if ((color_type != PNG_COLOR_TYPE_GRAY && color_type != PNG_COLOR_TYPE_PALETTE) || depth > 8) {
    std::snprintf(source->text, sizeof source->text,
                  "expected a mask: a grey or palette PNG of at most 8 bits that holds class ids, found %s of %d bits",
                  KindOfPng(color_type), depth);
    source->fits = false;
    return;
  }
  png_set_packing(decoder);
}

void ExpandToRgb(png_structp decoder) {
  png_set_expand(decoder);
  png_set_strip_16(decoder);
  png_set_strip_alpha(decoder);
  png_set_gray_to_rgb(decoder);
}

// Everything that can leave by longjmp; it holds no object with a destructor. channels: 3 of an image, 1 of a mask.
bool ReadPng(png_structp decoder, png_infop info, int channels, PngSource* source, Image* image,
             std::vector<png_bytep>* rows) {
  if (setjmp(png_jmpbuf(decoder)) != 0) return false;
  png_set_read_fn(decoder, source, ReadPngBytes);
  png_read_info(decoder, info);
  const png_uint_32 width = png_get_image_width(decoder, info), height = png_get_image_height(decoder, info);
  if (int64_t{width} * height > kMaxPixels) png_error(decoder, "more pixels than the limit of 2^28");
  channels == 1 ? KeepNumbers(decoder, info, source) : ExpandToRgb(decoder);
  if (!source->fits) return false;
  png_set_interlace_handling(decoder);
  png_read_update_info(decoder, info);
  if (png_get_rowbytes(decoder, info) != static_cast<size_t>(channels) * width)
    png_error(decoder, "does not convert to RGB or single bytes");
  image->Reshape(static_cast<int>(height), static_cast<int>(width), channels);
  rows->resize(height);
  for (png_uint_32 y = 0; y < height; ++y) (*rows)[y] = image->Row(static_cast<int>(y));
  png_read_image(decoder, rows->data());
  png_read_end(decoder, nullptr);
  return true;
}

Status Decode(std::span<const uint8_t> bytes, int channels, Image* image) {
  thread_local std::vector<png_bytep> rows;
  PngSource source{bytes};
  png_structp decoder = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, FailPng, DropPngWarning);
  png_infop info = decoder == nullptr ? nullptr : png_create_info_struct(decoder);
  if (info == nullptr) {
    png_destroy_read_struct(&decoder, nullptr, nullptr);
    return ResourceExhausted("no memory for a PNG decoder");
  }
  bool read = false;
  try {
    read = ReadPng(decoder, info, channels, &source, image, &rows);
  } catch (const std::bad_alloc&) {  // thrown in ReadPng itself: no frame of the library is passed
    std::strcpy(source.text, "no memory for its pixels");
  }
  png_destroy_read_struct(&decoder, &info, nullptr);
  if (read) return OkStatus();
  const char* const text = source.text;
  return source.fits ? DataLoss("damaged PNG: {}", text) : InvalidArgument("{}", text);
}

}  // namespace

Status DecodePng(std::span<const uint8_t> bytes, Image* image) { return Decode(bytes, 3, image); }

Status DecodeMask(std::span<const uint8_t> bytes, Image* mask) {
  static constexpr uint8_t kSignature[] = {0x89, 'P', 'N', 'G'};
  if (bytes.size() < sizeof kSignature || std::memcmp(bytes.data(), kSignature, sizeof kSignature) != 0)
    return InvalidArgument("expected a mask as a PNG file, found another signature in its first bytes");
  return Decode(bytes, 1, mask);
}

}  // namespace switchyard
