// One axis of a chart: its range of values, its ticks and where a value lies. Private to core/train.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// A range of values, linear or decadic, onto a range of positions.
struct Axis {
  double low = 0, high = 1;  // values, or their logarithms
  bool logarithmic = false;
  double from = 0, to = 1;  // positions
  std::vector<double> ticks;

  double At(double value) const;
};

// Ends on whole steps, about `count` of them; `low` > `high` where there are no values at all.
Axis MakeAxis(double low, double high, bool may_be_logarithmic, int count);

std::string TickText(double value, const Axis& axis);

}  // namespace switchyard
