#include "backends/interposers/validate/timelines.h"

#include <algorithm>

namespace switchyard {

void Timelines::Order(uint64_t line, uint64_t at, uint64_t other, uint64_t item) {
  if (Finished(line, at)) {
    Complete(other, item);
  } else if (!Finished(other, item)) {
    lines_[line].waits.push_back({at, other, item});
  }
}

void Timelines::Complete(uint64_t line, uint64_t item) {
  if (Finished(line, item)) return;
  lines_[line].completed = item;
  std::vector<Waiting>& waits = lines_[line].waits;
  const auto kept = std::partition(waits.begin(), waits.end(), [&](const Waiting& wait) { return wait.at > item; });
  const std::vector<Waiting> reached(kept, waits.end());
  waits.erase(kept, waits.end());
  for (const Waiting& wait : reached) Complete(wait.other, wait.item);
}

Timelines::Past Timelines::Before(uint64_t line, uint64_t item) const {
  Past last = {{line, item}};
  std::vector<uint64_t> changed = {line};
  while (!changed.empty()) {
    const uint64_t from = changed.back();
    changed.pop_back();
    for (const Waiting& wait : lines_[from].waits) {
      if (wait.at > last[from] || last[wait.other] >= wait.item) continue;
      last[wait.other] = wait.item;
      changed.push_back(wait.other);
    }
  }
  return last;
}

}  // namespace switchyard
