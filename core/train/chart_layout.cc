// Where everything of a chart lies: panels below one another, axes, curves, legends.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/train/axis.h"
#include "core/train/canvas.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr double kWidth = 960, kFirstHeight = 420, kNextHeight = 260;
constexpr double kLeft = 84, kRight = 28, kTitleHeight = 44, kLegendHeight = 30, kAxisHeight = 34, kXLabelHeight = 22;
constexpr double kTextSize = 13, kLegendRowHeight = 18, kSwatch = 22, kBetweenEntries = 22;
constexpr size_t kMostLegendRows = 6;
constexpr Color kInk{31, 41, 55}, kMuted{100, 108, 122}, kGrid{229, 231, 235}, kFrame{156, 163, 175};
constexpr Color kPalette[] = {{37, 99, 235}, {234, 88, 12}, {22, 163, 74}, {147, 51, 234},
                              {220, 38, 38}, {8, 145, 178}, {202, 138, 4}, {219, 39, 119}};

// Beyond the palette's end hues a golden section of the circle apart, which never meet again, dark and light by turns.
Color PaletteColor(int index) {
  const auto place = static_cast<size_t>(index);
  if (place < std::size(kPalette)) return kPalette[place];
  constexpr double kGolden = 0.6180339887498949, kLightness[] = {0.30, 0.58, 0.44}, kSaturation = 0.75;
  const double turn = static_cast<double>(place) * kGolden, lightness = kLightness[place % std::size(kLightness)];
  const auto part = [&](double shift) {  // of HSL
    const double at = std::fmod(turn + shift, 1.0) * 12;
    const double away = std::clamp(std::min(at - 3, 9 - at), -1.0, 1.0);
    return static_cast<uint8_t>(255 * (lightness - kSaturation * std::min(lightness, 1 - lightness) * away));
  };
  return {part(0), part(8.0 / 12), part(4.0 / 12)};
}

// Not NaN, not infinite, and not so near the end of the range of doubles that an axis has no room around it.
bool Plottable(double x, double y) {
  constexpr double kLimit = 1e300;
  return std::abs(x) < kLimit && std::abs(y) < kLimit;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

size_t Points(const Series& series) { return std::min(series.x.size(), series.y.size()); }

// The series as lines between its gaps. Where many points fall on one unit of the x axis, its first, lowest, highest
// and last stay.
std::vector<std::vector<Point>> Lines(const Series& series, const Axis& x_axis, const Axis& y_axis) {
  std::vector<std::vector<Point>> lines(1);
  std::vector<Point> column;
  const auto flush = [&] {
    if (column.size() > 4) {
      const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
      auto [low, high] = std::minmax_element(column.begin(), column.end(), by_y);
      if (high < low) std::swap(low, high);
      lines.back().insert(lines.back().end(), {column.front(), *low, *high, column.back()});
    } else {
      lines.back().insert(lines.back().end(), column.begin(), column.end());
    }
    column.clear();
  };
  for (size_t i = 0; i < Points(series); ++i) {
    if (!Plottable(series.x[i], series.y[i])) {
      flush();
      if (!lines.back().empty()) lines.emplace_back();
      continue;
    }
    const Point point = {x_axis.At(series.x[i]), y_axis.At(series.y[i])};
    if (!column.empty() && std::floor(column.front().x) != std::floor(point.x)) flush();
    column.push_back(point);
  }
  flush();
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

class Layout {
 public:
  explicit Layout(const Chart& chart) : chart_(chart) {
    drawing_.width = kWidth;
    drawing_.height = kFirstHeight + kNextHeight * (static_cast<double>(std::max<size_t>(chart.panels.size(), 1)) - 1);
    for (const Panel& panel : chart.panels) drawing_.height += FurtherLegendRows(panel);
  }

  Drawing Draw() {
    Rectangle({0, 0}, {drawing_.width, drawing_.height}, {255, 255, 255});
    Text({kLeft, 30}, chart_.title, 18, kInk, Align::kLeft, /*bold=*/true);
    Range x_range;
    bool whole = true;  // updates, which have no halves
    for (const Panel& panel : chart_.panels) {
      for (const Series& series : panel.series) {
        for (size_t i = 0; i < Points(series); ++i) {
          if (!Plottable(series.x[i], series.y[i])) continue;
          x_range.Include(series.x[i]);
          whole = whole && series.x[i] == std::floor(series.x[i]);
        }
      }
    }
    Axis x_axis = MakeAxis(x_range.low, x_range.high, false, 9);
    if (x_range.low < x_range.high) {  // the curve fills the width; ticks outside of it go
      x_axis.low = x_range.low;
      x_axis.high = x_range.high;
      std::erase_if(x_axis.ticks, [&](double tick) { return tick < x_axis.low || tick > x_axis.high; });
    }
    if (whole) std::erase_if(x_axis.ticks, [](double tick) { return std::abs(tick - std::round(tick)) > 1e-6; });
    x_axis.from = kLeft;
    x_axis.to = kWidth - kRight;
    double top = kTitleHeight, legends = 0;
    for (size_t i = 0; i < chart_.panels.size(); ++i) {
      const bool last = i + 1 == chart_.panels.size();
      legends += FurtherLegendRows(chart_.panels[i]);
      const double bottom =
          kFirstHeight + kNextHeight * static_cast<double>(i) + legends - kAxisHeight - (last ? kXLabelHeight : 0);
      DrawPanel(chart_.panels[i], x_axis, top, bottom);
      top = bottom + kAxisHeight;
    }
    Text({(kLeft + kWidth - kRight) / 2, drawing_.height - 12}, chart_.x_label, kTextSize, kMuted, Align::kCenter);
    return std::move(drawing_);
  }

 private:
  void DrawPanel(const Panel& panel, const Axis& x_axis, double top, double bottom) {
    const double plot_top = top + kLegendHeight + FurtherLegendRows(panel);
    Range range;
    for (const Series& series : panel.series) {
      for (size_t i = 0; i < Points(series); ++i) {
        if (Plottable(series.x[i], series.y[i])) range.Include(series.y[i]);
      }
    }
    const bool empty = range.low > range.high;
    Axis y_axis = MakeAxis(range.low, range.high, true, bottom - plot_top > 220 ? 6 : 4);
    y_axis.from = bottom;
    y_axis.to = plot_top;

    for (const double tick : y_axis.ticks) {
      const double y = y_axis.At(tick);
      Line({{kLeft, y}, {kWidth - kRight, y}}, kGrid, 1);
      Text({kLeft - 8, y + 4.5}, TickText(tick, y_axis), kTextSize, kMuted, Align::kRight);
    }
    for (const double tick : x_axis.ticks) {
      const double x = x_axis.At(tick);
      Line({{x, bottom}, {x, bottom + 5}}, kFrame, 1);
      Text({x, bottom + 20}, TickText(tick, x_axis), kTextSize, kMuted, Align::kCenter);
    }
    Line({{kLeft, bottom}, {kWidth - kRight, bottom}}, kFrame, 1.2);
    UpwardText({20, (plot_top + bottom) / 2}, panel.y_label);
    if (empty)
      Text({(kLeft + kWidth - kRight) / 2, (plot_top + bottom) / 2}, "no values yet", kTextSize, kMuted,
           Align::kCenter);

    for (const bool faint : {true, false}) {  // what is faint lies behind
      for (const Series& series : panel.series) {
        if (series.faint == faint) DrawSeries(series, x_axis, y_axis);
      }
    }
    DrawLegend(panel, top + 16);
  }

  void DrawSeries(const Series& series, const Axis& x_axis, const Axis& y_axis) {
    const Color color = PaletteColor(series.color);
    const auto lines = Lines(series, x_axis, y_axis);
    size_t points = 0;
    for (const auto& line : lines) points += line.size();
    for (const auto& line : lines) {
      if (line.size() > 1) Line(line, color, series.faint ? 1.2 : 2.2, series.faint ? 0.35 : 1.0);
      if (line.size() > 1 && (points > 40 || series.faint)) continue;
      for (const Point& point : line) Disc(point, series.faint ? 2 : 3.2, color, series.faint ? 0.35 : 1.0);
    }
  }

  struct Legend {
    std::vector<std::vector<const Series*>> rows;
    size_t more = 0;  // series that found no room
  };
  // The named series in rows that fit above the plot, in their order.
  static Legend LegendOf(const Panel& panel) {
    std::vector<std::vector<const Series*>> rows(1);
    double used = 0;
    for (const Series& series : panel.series) {
      if (series.name.empty()) continue;
      const double width = EntryWidth(series);
      if (!rows.back().empty() && used + width > kWidth - kLeft - kRight) {
        rows.emplace_back();
        used = 0;
      }
      rows.back().push_back(&series);
      used += width;
    }
    Legend legend;
    if (rows.size() > kMostLegendRows) {  // the last row says how many more there are
      for (size_t row = kMostLegendRows - 1; row < rows.size(); ++row) legend.more += rows[row].size();
      rows.resize(kMostLegendRows - 1);
    }
    legend.rows = std::move(rows);
    return legend;
  }
  // SVG texts are set in the viewer's font, wider or narrower than ours: the swatch keeps some distance.
  static double EntryWidth(const Series& series) {
    return TextWidth(series.name, kTextSize) * 1.06 + kSwatch + 7 + kBetweenEntries;
  }
  static double FurtherLegendRows(const Panel& panel) {  // their height
    const Legend legend = LegendOf(panel);
    return kLegendRowHeight * static_cast<double>(legend.rows.size() - (legend.more > 0 ? 0 : 1));
  }

  // To the right, above the plot.
  void DrawLegend(const Panel& panel, double y) {
    const Legend legend = LegendOf(panel);
    for (const auto& row : legend.rows) {
      double x = kWidth - kRight + kBetweenEntries;
      for (const Series* series : row) x -= EntryWidth(*series);
      for (const Series* series : row) {
        Line({{x, y}, {x + kSwatch, y}}, PaletteColor(series->color), series->faint ? 1.5 : 2.6,
             series->faint ? 0.45 : 1.0);
        Text({x + kSwatch + 7, y + 4.5}, series->name, kTextSize, kInk, Align::kLeft);
        x += EntryWidth(*series);
      }
      y += kLegendRowHeight;
    }
    if (legend.more > 0)
      Text({kWidth - kRight, y + 4.5}, fmt::format("and {} more", legend.more), kTextSize, kMuted, Align::kRight);
  }

  DrawnShape& Add(ShapeKind kind, std::vector<Point> points, Color color, double size) {
    DrawnShape& shape = drawing_.shapes.emplace_back();
    shape.kind = kind;
    shape.points = std::move(points);
    shape.color = color;
    shape.size = size;
    return shape;
  }
  void Line(std::vector<Point> points, Color color, double width, double opacity = 1.0) {
    Add(ShapeKind::kLine, std::move(points), color, width).opacity = opacity;
  }
  void Rectangle(Point a, Point b, Color color) { Add(ShapeKind::kRectangle, {a, b}, color, 0); }
  void Disc(Point center, double radius, Color color, double opacity) {
    Add(ShapeKind::kDisc, {center}, color, radius).opacity = opacity;
  }
  void Text(Point at, const std::string& text, double size, Color color, Align align, bool bold = false) {
    if (text.empty()) return;
    DrawnShape& shape = Add(ShapeKind::kText, {at}, color, size);
    shape.text = text;
    shape.align = align;
    shape.bold = bold;
  }
  void UpwardText(Point at, const std::string& text) {
    if (text.empty()) return;
    Text(at, text, kTextSize, kMuted, Align::kCenter);
    drawing_.shapes.back().upwards = true;
  }

  const Chart& chart_;
  Drawing drawing_;
};

}  // namespace

Drawing LayOut(const Chart& chart) { return Layout(chart).Draw(); }

}  // namespace switchyard
