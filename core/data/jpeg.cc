// JPEG through libjpeg-turbo. The library reports by callbacks: errors leave by longjmp, and those warnings that mean
// lost pixels become errors too, since it would otherwise fill the rest of the image with grey.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <new>

// clang-format off
#include <jpeglib.h>  // needs cstdio
#include <jerror.h>   // needs jpeglib.h
// clang-format on

#include "core/data/image.h"

namespace switchyard {
namespace {

struct JpegErrors {
  jpeg_error_mgr base;  // first, so that the library's pointer is ours
  std::jmp_buf escape;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void FailJpeg(j_common_ptr decoder) {
  auto* errors = reinterpret_cast<JpegErrors*>(decoder->err);
  decoder->err->format_message(decoder, errors->text);
  std::longjmp(errors->escape, 1);
}

void JudgeJpegMessage(j_common_ptr decoder, int level) {
  if (level >= 0) return;  // a trace, not a warning
  switch (decoder->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;  // every pixel is still there
    default:
      FailJpeg(decoder);
  }
}

void DropJpegMessage(j_common_ptr) {}

// A scan of a few bytes goes over every coefficient of the image: a small file with thousands of them takes minutes.
// Real ones have about ten.
void LimitJpegScans(j_common_ptr decoder) {
  constexpr int kMostScans = 100;
  if (reinterpret_cast<j_decompress_ptr>(decoder)->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(decoder->err);
  std::snprintf(errors->text, sizeof errors->text, "more than %d scans", kMostScans);
  std::longjmp(errors->escape, 1);
}

// Inverted CMYK, as Adobe writes it, to RGB, with PIL's rounding; in place at the front of the row.
void CmykToRgb(uint8_t* row, int width) {
  for (int x = 0; x < width; ++x) {
    const uint8_t* in = row + 4 * x;
    const int light = in[3];
    const auto lit = [&](int ink) { return static_cast<uint8_t>(light - (2 * (255 - ink) * light + 255) / 510); };
    const uint8_t red = lit(in[0]), green = lit(in[1]), blue = lit(in[2]);
    row[3 * x] = red;
    row[3 * x + 1] = green;
    row[3 * x + 2] = blue;
  }
}

}  // namespace

Status DecodeJpeg(std::span<const uint8_t> bytes, Image* image) {
  thread_local std::vector<uint8_t> cmyk_row;
  jpeg_decompress_struct decoder;
  JpegErrors errors;
  decoder.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = FailJpeg;
  errors.base.emit_message = JudgeJpegMessage;
  errors.base.output_message = DropJpegMessage;
  if (setjmp(errors.escape) != 0) {
    jpeg_destroy_decompress(&decoder);
    return DataLoss("damaged JPEG: {}", static_cast<const char*>(errors.text));
  }
  jpeg_create_decompress(&decoder);
  jpeg_progress_mgr progress = {};
  progress.progress_monitor = LimitJpegScans;
  decoder.progress = &progress;
  jpeg_mem_src(&decoder, bytes.data(), bytes.size());
  jpeg_read_header(&decoder, TRUE);
  if (int64_t{decoder.image_width} * decoder.image_height > kMaxPixels) {
    const unsigned width = decoder.image_width, height = decoder.image_height;
    jpeg_destroy_decompress(&decoder);
    return ResourceExhausted("JPEG of {} x {} pixels is above the limit of {} pixels", width, height, kMaxPixels);
  }
  const bool cmyk = decoder.jpeg_color_space == JCS_CMYK || decoder.jpeg_color_space == JCS_YCCK;
  decoder.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&decoder);
  try {
    image->Reshape(static_cast<int>(decoder.output_height), static_cast<int>(decoder.output_width), 3);
    if (cmyk) cmyk_row.resize(size_t{decoder.output_width} * 4);
  } catch (const std::bad_alloc&) {
    const unsigned width = decoder.image_width, height = decoder.image_height;
    jpeg_destroy_decompress(&decoder);
    return ResourceExhausted("no memory for a JPEG of {} x {} pixels", width, height);
  }
  while (decoder.output_scanline < decoder.output_height) {
    uint8_t* target = image->Row(static_cast<int>(decoder.output_scanline));
    JSAMPROW row = cmyk ? cmyk_row.data() : target;
    jpeg_read_scanlines(&decoder, &row, 1);
    if (cmyk) {
      CmykToRgb(row, image->width);
      std::copy_n(row, size_t{3} * image->width, target);
    }
  }
  jpeg_finish_decompress(&decoder);
  jpeg_destroy_decompress(&decoder);
  return OkStatus();
}

}  // namespace switchyard
