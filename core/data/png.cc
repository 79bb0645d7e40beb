// PNG through libpng's row interface: 16 bits are cut to 8, palettes and grey expanded to RGB, alpha dropped, gamma
// left alone, as PIL does for convert("RGB").
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <new>

#include "core/data/image.h"

namespace switchyard {
namespace {

struct PngSource {
  std::span<const uint8_t> bytes;
  size_t position = 0;
  char text[160] = {};
};

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

// Everything that can leave by longjmp; it holds no object with a destructor.
bool ReadPng(png_structp decoder, png_infop info, PngSource* source, Image* image, std::vector<png_bytep>* rows) {
  if (setjmp(png_jmpbuf(decoder)) != 0) return false;
  png_set_read_fn(decoder, source, ReadPngBytes);
  png_read_info(decoder, info);
  const png_uint_32 width = png_get_image_width(decoder, info), height = png_get_image_height(decoder, info);
  if (int64_t{width} * height > kMaxPixels) png_error(decoder, "more pixels than the limit of 2^28");
  png_set_expand(decoder);
  png_set_strip_16(decoder);
  png_set_strip_alpha(decoder);
  png_set_gray_to_rgb(decoder);
  png_set_interlace_handling(decoder);
  png_read_update_info(decoder, info);
  if (png_get_rowbytes(decoder, info) != size_t{3} * width) png_error(decoder, "does not convert to RGB");
  image->Reshape(static_cast<int>(height), static_cast<int>(width), 3);
  rows->resize(height);
  for (png_uint_32 y = 0; y < height; ++y) (*rows)[y] = image->Row(static_cast<int>(y));
  png_read_image(decoder, rows->data());
  png_read_end(decoder, nullptr);
  return true;
}

}  // namespace

Status DecodePng(std::span<const uint8_t> bytes, Image* image) {
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
    read = ReadPng(decoder, info, &source, image, &rows);
  } catch (const std::bad_alloc&) {  // thrown in ReadPng itself: no frame of the library is passed
    std::strcpy(source.text, "no memory for its pixels");
  }
  png_destroy_read_struct(&decoder, &info, nullptr);
  return read ? OkStatus() : DataLoss("damaged PNG: {}", static_cast<const char*>(source.text));
}

}  // namespace switchyard
