#include "core/train/picture.h"

#include <cmath>
#include <filesystem>

#include "core/train/canvas.h"
#include "core/train/file_calls.h"

namespace switchyard {

Series Smoothed(const Series& raw, double weight) {
  Series smooth = raw;
  const auto pass = [weight](auto begin, auto end) {
    double average = 0, share = 1;
    for (auto value = begin; value != end; ++value) {
      if (!std::isfinite(*value)) continue;
      average = weight * average + (1 - weight) * *value;
      share *= weight;
      *value = average / (1 - share);
    }
  };
  pass(smooth.y.begin(), smooth.y.end());
  pass(smooth.y.rbegin(), smooth.y.rend());
  return smooth;
}

Chart LossChart(const std::string& title, const std::string& x_label, Series train_loss, Series validation_loss,
                Series accuracy) {
  Chart chart{title, x_label, {}};
  Panel loss{"loss", {}};
  train_loss.color = 0;
  // Over about a fiftieth of the run each way; a short run is shown as it is.
  const double window = static_cast<double>(train_loss.y.size()) / 50;
  if (window > 1) {
    Series smooth = Smoothed(train_loss, 1 - 1 / window);
    smooth.name = "training loss";
    train_loss.name.clear();
    train_loss.faint = true;
    loss.series.push_back(train_loss);
    loss.series.push_back(smooth);
  } else if (!train_loss.y.empty()) {
    train_loss.name = "training loss";
    loss.series.push_back(train_loss);
  }
  if (!validation_loss.y.empty()) {
    validation_loss.name = "validation loss";
    validation_loss.color = 1;
    loss.series.push_back(validation_loss);
  }
  chart.panels.push_back(loss);
  if (!accuracy.y.empty()) {
    if (accuracy.name.empty()) accuracy.name = "validation accuracy";
    accuracy.color = 2;
    chart.panels.push_back({accuracy.name, {accuracy}});
  }
  return chart;
}

std::string RenderSvg(const Chart& chart) { return ToSvg(LayOut(chart)); }

Raster RenderImage(const Chart& chart, double scale) { return Rasterise(LayOut(chart), scale); }

Status SaveChart(const Chart& chart, const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  std::string content;
  if (extension == ".svg") {
    content = RenderSvg(chart);
  } else if (extension == ".png") {
    SY_ASSIGN_OR_RETURN(content, EncodePng(RenderImage(chart)));
  } else {
    return InvalidArgument("cannot draw {}: expected a name that ends in .svg or .png", path);
  }
  SY_ASSIGN_OR_RETURN(const PlaceInFolder place, MakePlace(path));
  return place.folder.Replace(place.name, {BytesOf(content)});
}

}  // namespace switchyard
