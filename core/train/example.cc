#include "core/train/example.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "core/base/text.h"
#include "core/train/canvas.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr int kCellSide = 96, kCellGap = 8, kCellsInRow = 4, kCaptionHeight = 18;
constexpr double kCaptionFont = 11;

bool IsEmpty(const Raster& image) { return image.width < 1 || image.height < 1; }

// Into the middle of a square of kCellSide pixels at (left, top): the nearest pixel, so that small images stay sharp.
void Paste(const Raster& image, int left, int top, Raster* sheet) {
  if (IsEmpty(image)) return;
  const double scale = static_cast<double>(kCellSide) / std::max(image.width, image.height);
  const int width = std::max(1, static_cast<int>(image.width * scale)),
            height = std::max(1, static_cast<int>(image.height * scale));
  left += (kCellSide - width) / 2;
  top += (kCellSide - height) / 2;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const int64_t from_y = int64_t{y} * image.height / height, from_x = int64_t{x} * image.width / width;
      const uint8_t* const from = &image.rgb[static_cast<size_t>(3 * (from_y * image.width + from_x))];
      std::copy(from, from + 3, &sheet->rgb[static_cast<size_t>(3 * (int64_t{top + y} * sheet->width + left + x))]);
    }
  }
}

// As much of a text as there is room for above the next column.
std::string Fitting(std::string text) {
  text = Printable(text);
  if (TextWidth(text, kCaptionFont) <= kCellSide) return text;
  while (!text.empty() && TextWidth(text + "...", kCaptionFont) > kCellSide) {
    do text.pop_back();
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80);  // whole characters
  }
  return text + "...";
}

std::string Caption(const Example& example, SheetOf what) {
  if (what == SheetOf::kTruth) return example.truth;
  if (what == SheetOf::kImages || example.predicted.empty()) return "";
  return fmt::format("{:.0f} % {}", 100 * example.probability, example.predicted);
}

StatusOr<std::string> ImageElement(const Raster& image, const std::string& what) {
  SY_ASSIGN_OR_RETURN(const std::string png, EncodePng(image));
  // Debian's Abseil has a string_view of its own.
  std::string encoded;
  absl::Base64Escape(absl::string_view(png.data(), png.size()), &encoded);
  return fmt::format("<img alt=\"{}\" title=\"{}\" src=\"data:image/png;base64,{}\">", what, what, encoded);
}

std::string Text(std::span<const ClassInColor> legend) {
  std::string html = "<p class=\"legend\">";
  for (const auto& [name, color] : legend)
    html += fmt::format("<span><i style=\"background:rgb({},{},{})\"></i>{}</span>\n", color[0], color[1], color[2],
                        XmlText(Printable(name)));
  return html + "</p>\n";
}

}  // namespace

Raster ExampleSheet(std::span<const Example> examples, SheetOf what) {
  const int count = static_cast<int>(examples.size()), rows = std::max(1, (count + kCellsInRow - 1) / kCellsInRow);
  const int caption = what == SheetOf::kImages ? 0 : kCaptionHeight;
  Drawing drawing;
  drawing.width = kCellsInRow * (kCellSide + kCellGap) + kCellGap;
  drawing.height = rows * (kCellSide + caption + kCellGap) + kCellGap;
  const auto left = [](int i) { return kCellGap + i % kCellsInRow * (kCellSide + kCellGap); };
  const auto top = [caption](int i) { return kCellGap + i / kCellsInRow * (kCellSide + caption + kCellGap); };
  for (int i = 0; i < count; ++i) {
    const Example& example = examples[static_cast<size_t>(i)];
    DrawnShape text;
    text.kind = ShapeKind::kText;
    text.text = Fitting(Caption(example, what));
    text.size = kCaptionFont;
    text.points = {{static_cast<double>(left(i)), static_cast<double>(top(i) + kCellSide + caption - 5)}};
    const bool wrong = what == SheetOf::kPredicted && example.predicted != example.truth;
    text.color = wrong ? Color{200, 30, 30} : Color{31, 41, 55};
    drawing.shapes.push_back(text);
  }
  Raster sheet = Rasterise(drawing, 1);
  for (int i = 0; i < count; ++i) {
    const Example& example = examples[static_cast<size_t>(i)];
    const Raster& mask = what == SheetOf::kTruth ? example.truth_mask : example.predicted_mask;
    Paste(what == SheetOf::kImages || IsEmpty(mask) ? example.image : mask, left(i), top(i), &sheet);
  }
  return sheet;
}

std::string ExampleFigures(std::span<const Example> examples, std::span<const ClassInColor> legend) {
  std::string html;
  if (!examples.empty() && !IsEmpty(examples[0].truth_mask))
    html += "<p>From top to bottom: the image, the true mask, the predicted one. Light grey counts nowhere.</p>\n" +
            Text(legend);
  html += "<div class=\"examples\">\n";
  for (const Example& example : examples) {
    html += "<figure>";
    const std::pair<const Raster*, const char*> pictures[] = {
        {&example.image, "image"}, {&example.truth_mask, "true mask"}, {&example.predicted_mask, "predicted mask"}};
    for (const auto& [picture, what] : pictures) {
      if (!IsEmpty(*picture)) html += ImageElement(*picture, what).value_or("");
    }
    if (!example.predicted.empty()) {
      const bool right = example.predicted == example.truth;
      html += fmt::format("<figcaption><b class=\"{}\">{}</b> {:.1f}&nbsp;%<br>{}</figcaption>",
                          right ? "right" : "wrong", XmlText(Printable(example.predicted)), 100 * example.probability,
                          right ? "" : "is " + XmlText(Printable(example.truth)));
    }
    html += "</figure>\n";
  }
  return html + "</div>\n";
}

std::string NoExampleFigures(const std::string& why) {
  return fmt::format("<p>None: {}</p>\n", XmlText(PrintableLines(why, 2000)));
}

}  // namespace switchyard
