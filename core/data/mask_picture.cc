#include "core/data/mask_picture.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/mask_transforms.h"

namespace switchyard {
namespace {

[[noreturn]] void FailMask(png_structp encoder, png_const_charp) { png_longjmp(encoder, 1); }
void DropMaskWarning(png_structp, png_const_charp) {}
void AppendMaskBytes(png_structp encoder, png_bytep bytes, size_t count) {
  static_cast<std::string*>(png_get_io_ptr(encoder))->append(reinterpret_cast<const char*>(bytes), count);
}

// Everything that can leave by longjmp; it holds no object with a destructor.
bool WriteMask(png_structp encoder, png_infop info, const Image& mask, const png_color* palette, std::string* png) {
  if (setjmp(png_jmpbuf(encoder)) != 0) return false;
  png_set_write_fn(encoder, png, AppendMaskBytes, nullptr);
  png_set_IHDR(encoder, info, static_cast<png_uint_32>(mask.width), static_cast<png_uint_32>(mask.height), 8,
               PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_PLTE(encoder, info, palette, 256);
  png_write_info(encoder, info);
  for (int y = 0; y < mask.height; ++y) png_write_row(encoder, mask.Row(y));
  png_write_end(encoder, nullptr);
  return true;
}

}  // namespace

std::array<uint8_t, 3> ClassColor(uint8_t class_id) {
  std::array<uint8_t, 3> color = {};
  for (int bit = 7, rest = class_id; rest != 0; --bit, rest >>= 3) {
    for (size_t c = 0; c < color.size(); ++c) color[c] = static_cast<uint8_t>(color[c] | ((rest >> c & 1) << bit));
  }
  return color;
}

StatusOr<std::string> EncodeMask(const Image& mask) {
  std::array<png_color, 256> palette;
  for (size_t c = 0; c < palette.size(); ++c) {
    const auto [red, green, blue] = ClassColor(static_cast<uint8_t>(c));
    palette[c] = {red, green, blue};
  }
  std::string png;
  png_structp encoder = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, FailMask, DropMaskWarning);
  png_infop info = encoder == nullptr ? nullptr : png_create_info_struct(encoder);
  const bool written = info != nullptr && WriteMask(encoder, info, mask, palette.data(), &png);
  png_destroy_write_struct(&encoder, &info);
  if (!written) return ResourceExhausted("cannot encode a mask of {} x {} pixels as PNG", mask.width, mask.height);
  return png;
}

namespace {

// Between which two places of a fitted extent a place of the image lies, and how near it is to the second.
struct Between {
  size_t first = 0, second = 0;
  float share = 0;
};

std::vector<Between> PlacesBetween(int extent, int fitted) {
  std::vector<Between> places(static_cast<size_t>(extent));
  for (size_t i = 0; i < places.size(); ++i) {
    const float at = (static_cast<float>(i) + 0.5f) * static_cast<float>(fitted) / static_cast<float>(extent) - 0.5f;
    const float inside = std::clamp(at, 0.0f, static_cast<float>(fitted - 1));
    places[i].first = static_cast<size_t>(inside);
    places[i].second = std::min(places[i].first + 1, static_cast<size_t>(fitted - 1));
    places[i].share = inside - static_cast<float>(places[i].first);
  }
  return places;
}

}  // namespace

Image MaskOfScores(std::span<const float> scores, int input_height, int input_width, int height, int width) {
  const size_t classes = scores.size() / static_cast<size_t>(input_height) / static_cast<size_t>(input_width);
  const size_t row_length = static_cast<size_t>(input_width) * classes;
  const auto [fitted_height, fitted_width] = FittedSize(height, width, input_height, input_width);
  const std::vector<Between> rows = PlacesBetween(height, fitted_height), columns = PlacesBetween(width, fitted_width);
  std::vector<float> row(static_cast<size_t>(fitted_width) * classes);
  Image mask;
  mask.Reshape(height, width, 1);
  for (int y = 0; y < height; ++y) {
    const Between& at = rows[static_cast<size_t>(y)];
    const float *const above = &scores[at.first * row_length], *const below = &scores[at.second * row_length];
    for (size_t i = 0; i < row.size(); ++i) row[i] = above[i] + at.share * (below[i] - above[i]);
    for (int x = 0; x < width; ++x) {
      const Between& between = columns[static_cast<size_t>(x)];
      const float *const left = &row[between.first * classes], *const right = &row[between.second * classes];
      const auto score = [&](size_t c) { return left[c] + between.share * (right[c] - left[c]); };
      size_t best = 0;
      for (size_t c = 1; c < classes; ++c) {
        if (score(c) > score(best)) best = c;
      }
      mask.Row(y)[x] = static_cast<uint8_t>(best);
    }
  }
  return mask;
}

Image Overlay(const Image& image, const Image& mask) {
  Image result = image;
  ConvertChannels(3, &result);
  for (size_t i = 0; i < mask.bytes.size(); ++i) {
    if (mask.bytes[i] == kIgnoredClass) continue;
    const auto color = ClassColor(mask.bytes[i]);
    for (size_t c = 0; c < 3; ++c) {
      uint8_t& value = result.bytes[3 * i + c];
      value = static_cast<uint8_t>((value + color[c] + 1) / 2);
    }
  }
  return result;
}

}  // namespace switchyard
