// Writes a drawing down as SVG 1.1: plain elements and no scripts, so that any viewer and any README shows it.
#include <iterator>

#include "core/train/canvas.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

std::string Rgb(Color color) { return fmt::format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue); }

}  // namespace

std::string XmlText(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if ((static_cast<unsigned char>(c) < ' ' && c != '\n') || c == '\x7f') {
      escaped += ' ';  // control characters are not allowed in XML
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string ToSvg(const Drawing& drawing) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n",
      drawing.width, drawing.height);
  const auto out = std::back_inserter(svg);
  for (const DrawnShape& shape : drawing.shapes) {
    const std::string opacity = shape.opacity < 1 ? fmt::format(" opacity=\"{:g}\"", shape.opacity) : "";
    const std::string color = Rgb(shape.color);
    const Point& first = shape.points.front();
    switch (shape.kind) {
      case ShapeKind::kLine:
        fmt::format_to(
            out, "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" stroke-linejoin=\"round\"{} points=\"",
            color, shape.size, opacity);
        for (const Point& point : shape.points) fmt::format_to(out, "{:.1f},{:.1f} ", point.x, point.y);
        svg.back() = '"';
        svg += "/>\n";
        break;
      case ShapeKind::kRectangle: {
        const Point& second = shape.points.back();
        fmt::format_to(out, "<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"{}\"/>\n", first.x,
                       first.y, second.x - first.x, second.y - first.y, color);
        break;
      }
      case ShapeKind::kDisc:
        fmt::format_to(out, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"{}/>\n", first.x, first.y,
                       shape.size, color, opacity);
        break;
      case ShapeKind::kText: {
        const char* anchor = shape.align == Align::kLeft ? "start" : shape.align == Align::kCenter ? "middle" : "end";
        const std::string turn =
            shape.upwards ? fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", first.x, first.y) : "";
        fmt::format_to(
            out, "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" fill=\"{}\" text-anchor=\"{}\"{}{}>{}</text>\n",
            first.x, first.y, shape.size, color, anchor, shape.bold ? " font-weight=\"bold\"" : "", turn,
            XmlText(shape.text));
        break;
      }
    }
  }
  return svg + "</svg>\n";
}

}  // namespace switchyard
