#include "core/train/axis.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"

namespace switchyard {
namespace {

// A step of 1, 2 or 5 × 10^k with about `count` steps in the range.
double NiceStep(double range, int count) {
  const double raw = range / count, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power * 1.0001) return factor * power;
  }
  return 10 * power;
}

}  // namespace

double Axis::At(double value) const {
  const double v = logarithmic ? std::log10(value) : value;
  return from + (to - from) * ((v - low) / (high - low));
}

Axis MakeAxis(double low, double high, bool may_be_logarithmic, int count) {
  Axis axis;
  if (low > high) return MakeAxis(0, 1, false, count);  // no values at all
  if (may_be_logarithmic && low > 0 && high / low > 1000) {
    axis.logarithmic = true;
    axis.low = std::floor(std::log10(low) * 4) / 4;
    axis.high = std::ceil(std::log10(high) * 4) / 4;
    const int every = std::max(1, static_cast<int>(std::ceil((axis.high - axis.low) / count)));
    for (int decade = static_cast<int>(std::ceil(axis.low)); decade <= axis.high; decade += every) {
      axis.ticks.push_back(std::pow(10.0, decade));
    }
    return axis;
  }
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low <= std::max(size * 1e-9, 1e-290)) {  // one value: room around it
    const double room = size > 1e-280 ? size * 0.1 : 1.0;
    low -= room;
    high += room;
  }
  const double step = NiceStep(high - low, count);  // the axis ends on whole steps
  axis.low = std::floor(low / step) * step;
  axis.high = std::ceil(high / step) * step;
  for (double i = 0; i < 64 && axis.low + i * step <= axis.high + step * 0.001; ++i) {
    axis.ticks.push_back(axis.low + i * step);
  }
  return axis;
}

std::string TickText(double value, const Axis& axis) {
  const double span = axis.logarithmic ? value : axis.high - axis.low;
  if (std::abs(value) < span * 1e-9) return "0";
  const double size = std::abs(value);
  if (size >= 1e6 || size < 1e-3) return fmt::format("{:.3g}", value);
  std::string text = fmt::format("{:.6f}", value);
  text.resize(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace switchyard
