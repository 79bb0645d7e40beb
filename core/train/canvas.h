// What a chart is made of once it is laid out: a list of shapes in drawing order, which SVG writes down and the
// rasteriser paints. Private to core/train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/train/picture.h"

namespace switchyard {

struct Color {
  uint8_t red = 0, green = 0, blue = 0;
};

struct Point {
  double x = 0, y = 0;  // y downwards
};

enum class ShapeKind { kLine, kRectangle, kDisc, kText };
enum class Align { kLeft, kCenter, kRight };

struct DrawnShape {
  ShapeKind kind = ShapeKind::kLine;
  std::vector<Point> points;  // line: its corners; rectangle: two opposite ones; disc: centre; text: on the baseline
  Color color;
  double opacity = 1.0;
  double size = 1.0;  // line: width; disc: radius; text: height of the font
  std::string text;
  Align align = Align::kLeft;
  bool upwards = false;  // text turned by 90° to read from bottom to top
  bool bold = false;
};

struct Drawing {
  double width = 0, height = 0;
  std::vector<DrawnShape> shapes;
};

Drawing LayOut(const Chart& chart);
std::string ToSvg(const Drawing& drawing);
std::string XmlText(const std::string& text);  // as it stands in SVG and HTML
Raster Rasterise(const Drawing& drawing, double scale);

// Width of a text in the stroke font, for a font of the given height. UTF-8; what it has no glyph for is a box.
double TextWidth(const std::string& text, double size);
// The strokes of the text from (0, 0) on the baseline, y downwards.
std::vector<std::vector<Point>> TextStrokes(const std::string& text, double size);

}  // namespace switchyard
