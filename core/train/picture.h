// Pictures of a run: line charts of loss, accuracy and the like, as SVG for a browser and as PNG for everywhere else.
// A chart is one or more panels below one another over a common x axis. Points that are not finite break the line; a
// panel whose positive values span more than three decades gets a logarithmic axis; a long series is thinned to what
// can be seen. An empty panel is drawn empty and says so.
//
// Thread-safe: pure functions, but for SaveChart, which writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct Raster {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;  // (height, width, 3)
};

StatusOr<std::string> EncodePng(const Raster& image);  // the bytes of the file

struct Series {
  std::string name;  // "" keeps it out of the legend
  std::vector<double> x;
  std::vector<double> y;  // as long as x
  int color = 0;          // index into the chart's palette, any number ≥ 0
  bool faint = false;     // drawn thin and pale: the raw values behind a smoothed line
};

struct Panel {
  std::string y_label;
  std::vector<Series> series;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::vector<Panel> panels;
};

// Every point as the median of those around it, a fiftieth of the series to each side, at its beginning, where losses
// fall fast, as many before as after, and at its end what there is: it does not lag behind them, and a spike bends it
// nowhere. Values that are not finite stay, and count for no other.
Series RunningMedian(const Series& raw);
bool WorthSmoothing(const Series& raw);  // a short series is shown as it is

// The picture at the end of a run: training loss, raw and its running median, with the validation loss; below it the
// accuracy, where there is one; in both panels that of averaged weights too, where a run has them. Points are (x, y) of
// each series; colours and faintness are set here.
struct AveragedCurves {
  Series validation_loss, accuracy;
};
Chart LossChart(const std::string& title, const std::string& x_label, Series train_loss, Series validation_loss,
                Series accuracy, AveragedCurves averaged = {});

// 960 wide, 420 high for the first panel and 260 for each further one, and more where a legend needs several rows.
std::string RenderSvg(const Chart& chart);
Raster RenderImage(const Chart& chart, double scale = 2.0);  // pixels per unit of the SVG

// By the ending of `path`: .svg or .png. The file is replaced as a whole.
Status SaveChart(const Chart& chart, const std::string& path);

}  // namespace switchyard
