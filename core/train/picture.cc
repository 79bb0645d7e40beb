#include "core/train/picture.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/train/canvas.h"
#include "core/train/file_calls.h"

namespace switchyard {

namespace {

constexpr size_t kReachesOfARun = 50;  // the median reaches over a fiftieth of the run each way

// The median of numbers that come and go.
class Median {
 public:
  void Add(double value) {
    (low_.empty() || value <= *low_.rbegin() ? low_ : high_).insert(value);
    Balance();
  }
  void Remove(double value) {  // one that was added
    const auto found = low_.find(value);
    if (found != low_.end()) {
      low_.erase(found);
    } else {
      high_.erase(high_.find(value));
    }
    Balance();
  }
  double Value() const {
    return low_.size() > high_.size() ? *low_.rbegin() : std::midpoint(*low_.rbegin(), *high_.begin());
  }

 private:
  void Balance() {  // the lower half has as many as the upper one, or one more
    if (low_.size() > high_.size() + 1) high_.insert(low_.extract(std::prev(low_.end())));
    if (low_.size() < high_.size()) low_.insert(high_.extract(high_.begin()));
  }
  std::multiset<double> low_, high_;
};

}  // namespace

Series RunningMedian(const Series& raw) {
  Series smooth = raw;
  const size_t count = raw.y.size(), most = count / kReachesOfARun;
  Median median;
  size_t begin = 0, end = 0;  // of the points in the median
  for (size_t i = 0; i < count; ++i) {
    const size_t reach = std::min(most, i);
    for (; end <= std::min(i + reach, count - 1); ++end) {
      if (std::isfinite(raw.y[end])) median.Add(raw.y[end]);
    }
    for (; begin < i - reach; ++begin) {
      if (std::isfinite(raw.y[begin])) median.Remove(raw.y[begin]);
    }
    if (std::isfinite(raw.y[i])) smooth.y[i] = median.Value();
  }
  return smooth;
}

bool WorthSmoothing(const Series& raw) { return raw.y.size() >= kReachesOfARun; }

Chart LossChart(const std::string& title, const std::string& x_label, Series train_loss, Series validation_loss,
                Series accuracy, AveragedCurves averaged) {
  constexpr int kColor = 3;  // of averages
  Chart chart{title, x_label, {}};
  Panel loss{"loss", {}};
  train_loss.color = 0;
  train_loss.name = "training loss";
  train_loss.faint = WorthSmoothing(train_loss);
  if (!train_loss.y.empty()) loss.series.push_back(train_loss);
  if (train_loss.faint) {
    Series median = RunningMedian(train_loss);
    median.name = "its running median";
    median.faint = false;
    loss.series.push_back(median);
  }
  if (!validation_loss.y.empty()) {
    validation_loss.name = "validation loss";
    validation_loss.color = 1;
    loss.series.push_back(validation_loss);
  }
  const auto of_averages = [](const Series& series, const std::string& what) {
    Series named = series;
    named.name = what + " of the averaged weights";
    named.color = kColor;
    return named;
  };
  if (!averaged.validation_loss.y.empty())
    loss.series.push_back(of_averages(averaged.validation_loss, "validation loss"));
  chart.panels.push_back(loss);
  if (!accuracy.y.empty()) {
    if (accuracy.name.empty()) accuracy.name = "validation accuracy";
    accuracy.color = 2;
    chart.panels.push_back({accuracy.name, {accuracy}});
    if (!averaged.accuracy.y.empty())
      chart.panels.back().series.push_back(of_averages(averaged.accuracy, accuracy.name));
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
