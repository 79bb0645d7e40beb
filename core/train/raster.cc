// Paints a drawing into pixels. Every shape is a coverage mask, 0 to 1 per pixel, taken from the distance to the shape,
// and is blended once, so that the joints of a line do not show.
#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/train/canvas.h"

namespace switchyard {
namespace {

class Painter {
 public:
  Painter(int width, int height) : width_(width), height_(height), mask_(static_cast<size_t>(width) * height) {
    image_.width = width;
    image_.height = height;
    image_.rgb.assign(mask_.size() * 3, 255);
  }

  // The segment as a capsule of the given width; coverage joins what is there by the larger.
  void Segment(Point a, Point b, double line_width) {
    const double radius = line_width / 2, reach = radius + 1;
    Box box = Clip(std::min(a.x, b.x) - reach, std::min(a.y, b.y) - reach, std::max(a.x, b.x) + reach,
                   std::max(a.y, b.y) + reach);
    const double dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
    for (int y = box.top; y < box.bottom; ++y) {
      // Only the part of the row near the segment: a steep line crosses it in few pixels.
      int left = box.left, right = box.right;
      if (std::abs(dy) > 1e-9) {
        const double t0 = (y + 0.5 - reach - a.y) / dy, t1 = (y + 0.5 + reach - a.y) / dy;
        const double x0 = a.x + dx * std::clamp(t0, 0.0, 1.0), x1 = a.x + dx * std::clamp(t1, 0.0, 1.0);
        left = std::max(left, static_cast<int>(std::floor(std::min(x0, x1) - reach)));
        right = std::min(right, static_cast<int>(std::ceil(std::max(x0, x1) + reach)) + 1);
      }
      for (int x = left; x < right; ++x) {
        const double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
        const double t = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0.0;
        const double away_x = px - t * dx, away_y = py - t * dy;
        Cover(x, y, radius + 0.5 - std::sqrt(away_x * away_x + away_y * away_y));
      }
    }
    Extend(box);
  }

  // What an opaque rectangle covers whole is painted at once: the background is most of a drawing. The mask gets the rest.
  void Rectangle(Point a, Point b, Color color, double opacity) {
    const double left = std::min(a.x, b.x), right = std::max(a.x, b.x);
    const double top = std::min(a.y, b.y), bottom = std::max(a.y, b.y);
    const Box box = Clip(left, top, right + 1, bottom + 1);
    // Between these columns it covers the whole width of a pixel.
    const auto inner_left = static_cast<int>(std::clamp<double>(std::ceil(left), box.left, box.right));
    const auto inner_right = static_cast<int>(std::clamp<double>(std::floor(right), inner_left, box.right));
    std::vector<uint8_t> line;
    for (int x = inner_left; x < inner_right && opacity == 1; ++x) line.insert(line.end(), {color.red, color.green, color.blue});
    for (int y = box.top; y < box.bottom; ++y) {
      const double rows = std::max(std::min<double>(y + 1, bottom) - std::max<double>(y, top), 0.0);
      const auto cover_edge = [&](int from, int to) {
        for (int x = from; x < to; ++x) Cover(x, y, rows * (std::min<double>(x + 1, right) - std::max<double>(x, left)));
        Extend({from, y, to, y + 1});
      };
      cover_edge(box.left, inner_left);
      const size_t inner = static_cast<size_t>(y) * width_ + inner_left;
      if (rows == 1 && opacity == 1) {
        std::copy(line.begin(), line.end(), image_.rgb.begin() + static_cast<std::ptrdiff_t>(3 * inner));
      } else {
        std::fill_n(mask_.begin() + static_cast<std::ptrdiff_t>(inner), inner_right - inner_left, static_cast<float>(rows));
        Extend({inner_left, y, inner_right, y + 1});
      }
      cover_edge(inner_right, box.right);
    }
  }

  // Lays the colour over what the mask covers and clears the mask.
  void Blend(Color color, double opacity) {
    const uint8_t channels[3] = {color.red, color.green, color.blue};
    for (int y = dirty_.top; y < dirty_.bottom; ++y) {
      float* const row = mask_.data() + static_cast<size_t>(y) * width_;
      uint8_t* const pixels = image_.rgb.data() + static_cast<size_t>(y) * width_ * 3;
      for (int x = dirty_.left; x < dirty_.right; ++x) {
        if (row[x] <= 0) continue;
        uint8_t* const pixel = pixels + static_cast<size_t>(x) * 3;
        if (row[x] == 1 && opacity == 1) {  // what the sums below come to
          std::copy_n(channels, 3, pixel);
        } else {
          for (int c = 0; c < 3; ++c) {
            pixel[c] = static_cast<uint8_t>(pixel[c] + (channels[c] - pixel[c]) * row[x] * opacity + 0.5);
          }
        }
        row[x] = 0;
      }
    }
    dirty_ = {};
  }

  Raster Take() { return std::move(image_); }

 private:
  struct Box {
    int left = 0, top = 0, right = 0, bottom = 0;
  };

  Box Clip(double left, double top, double right, double bottom) const {
    const auto within = [](double value, int limit) {
      return static_cast<int>(std::clamp(std::floor(value), 0.0, static_cast<double>(limit)));
    };
    return {within(left, width_), within(top, height_), within(right + 1, width_), within(bottom + 1, height_)};
  }

  void Extend(const Box& box) {
    if (box.left >= box.right || box.top >= box.bottom) return;
    if (dirty_.left >= dirty_.right) {
      dirty_ = box;
      return;
    }
    dirty_ = {std::min(dirty_.left, box.left), std::min(dirty_.top, box.top), std::max(dirty_.right, box.right),
              std::max(dirty_.bottom, box.bottom)};
  }

  void Cover(int x, int y, double coverage) {
    float& cell = mask_[static_cast<size_t>(y) * width_ + x];
    cell = std::max(cell, static_cast<float>(std::clamp(coverage, 0.0, 1.0)));
  }

  int width_, height_;
  std::vector<float> mask_;
  Box dirty_;
  Raster image_;
};

void PaintText(Painter* painter, const DrawnShape& shape, double scale) {
  const double size = shape.size * scale, width = TextWidth(shape.text, size);
  const double shift = shape.align == Align::kLeft ? 0 : shape.align == Align::kCenter ? -width / 2 : -width;
  const Point origin = {shape.points[0].x * scale, shape.points[0].y * scale};
  const double line_width = size * (shape.bold ? 0.135 : 0.095);
  for (const auto& stroke : TextStrokes(shape.text, size)) {
    std::vector<Point> placed;
    for (const Point& point : stroke) {
      const double along = point.x + shift;
      placed.push_back(shape.upwards ? Point{origin.x + point.y, origin.y - along}
                                     : Point{origin.x + along, origin.y + point.y});
    }
    const double width_here = placed.size() == 1 ? line_width * 1.4 : line_width;  // dots are a little fatter
    for (size_t i = 0; i + 1 < placed.size() || i == 0; ++i) {
      painter->Segment(placed[i], placed[std::min(i + 1, placed.size() - 1)], width_here);
    }
  }
}

// Do most pixels equal the one to their left, as in a drawing?
bool IsFlat(const Raster& image) {
  const std::vector<uint8_t>& rgb = image.rgb;
  const size_t most = rgb.size() / 3 / 2;
  size_t equal = 0;
  for (size_t p = 3; p + 2 < rgb.size() && equal <= most; p += 3)
    equal += rgb[p] == rgb[p - 3] && rgb[p + 1] == rgb[p - 2] && rgb[p + 2] == rgb[p - 1];
  return equal > most;
}

}  // namespace

Raster Rasterise(const Drawing& drawing, double scale) {
  Painter painter(std::max(1, static_cast<int>(std::lround(drawing.width * scale))),
                  std::max(1, static_cast<int>(std::lround(drawing.height * scale))));
  const auto scaled = [&](const Point& point) { return Point{point.x * scale, point.y * scale}; };
  for (const DrawnShape& shape : drawing.shapes) {
    switch (shape.kind) {
      case ShapeKind::kLine:
        for (size_t i = 0; i + 1 < shape.points.size(); ++i) {
          painter.Segment(scaled(shape.points[i]), scaled(shape.points[i + 1]), shape.size * scale);
        }
        break;
      case ShapeKind::kRectangle:
        painter.Rectangle(scaled(shape.points[0]), scaled(shape.points[1]), shape.color, shape.opacity);
        break;
      case ShapeKind::kDisc:
        painter.Segment(scaled(shape.points[0]), scaled(shape.points[0]), 2 * shape.size * scale);
        break;
      case ShapeKind::kText:
        PaintText(&painter, shape, scale);
        break;
    }
    painter.Blend(shape.color, shape.opacity);
  }
  return painter.Take();
}

StatusOr<std::string> EncodePng(const Raster& image) {
  if (image.width < 1 || image.height < 1 ||
      image.rgb.size() != static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3) {
    return InvalidArgument("a PNG of {} × {} pixels needs 3 bytes for each, found {} bytes", image.width, image.height,
                           image.rgb.size());
  }
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGB;
  // No filters, which take four fifths of the time: they make photographs smaller, and save a drawing some 20 kB.
  if (IsFlat(image)) png.flags |= PNG_IMAGE_FLAG_FAST;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string encoded(bytes, '\0');
  if (png_image_write_to_memory(&png, encoded.data(), &bytes, 0, image.rgb.data(), 0, nullptr) == 0) {
    return Internal("libpng could not encode {} × {} pixels: {}", image.width, image.height, png.message);
  }
  encoded.resize(bytes);
  return encoded;
}

}  // namespace switchyard
