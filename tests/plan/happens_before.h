// What a schedule orders, read off it.
#pragma once

#include <vector>

#include "core/plan/schedule.h"

namespace switchyard {

// By step, and last of all for the run's end: has an earlier step finished when this one begins? The last column is the
// start of the run.
using HappensBefore = std::vector<std::vector<bool>>;

inline HappensBefore OrderOf(const StepSchedule& schedule) {
  const size_t count = schedule.steps.size();
  HappensBefore order(count + 1, std::vector<bool>(count + 1, false));
  std::vector<int> previous(static_cast<size_t>(schedule.streams()), -1);
  const auto learn = [&](size_t step, int earlier) {
    if (earlier == kRunStart) {
      order[step][count] = true;
      return;
    }
    const auto from = static_cast<size_t>(earlier);
    order[step][from] = true;
    for (size_t i = 0; i <= count; ++i) order[step][i] = order[step][i] || order[from][i];
  };
  for (size_t i = 0; i <= count; ++i) {
    const int stream = i == count ? kComputeStream : schedule.steps[i].stream;
    int& before = previous[static_cast<size_t>(stream)];
    if (before >= 0) learn(i, before);
    if (stream == kComputeStream) learn(i, kRunStart);
    for (const int earlier : i == count ? schedule.at_end : schedule.steps[i].waits) learn(i, earlier);
    before = static_cast<int>(i);
  }
  return order;
}

}  // namespace switchyard
