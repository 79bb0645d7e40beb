#include "backends/cpu/window.h"

#include <algorithm>
#include <utility>

namespace switchyard {

void WindowMap::AddAxis(AxisTerms terms, int64_t from_extent, int64_t taps) {
  axes_[0] = std::move(axes_[1]);
  axes_[1] = std::move(axes_[2]);
  axes_[2] = {std::move(terms), from_extent, taps};
}

AxisTerms WindowMap::Inverted(const AxisTerms& terms, int64_t extent) {
  AxisTerms inverted(static_cast<size_t>(extent));
  for (size_t place = 0; place < terms.size(); ++place)
    for (const AxisTerm& term : terms[place])
      inverted[static_cast<size_t>(term.at)].push_back({static_cast<int64_t>(place), term.weight, term.tap});
  return inverted;
}

int64_t WindowMap::most_terms() const {
  int64_t most = 1;
  for (const Axis& axis : axes_) {
    size_t longest = 0;
    for (const auto& terms : axis.terms) longest = std::max(longest, terms.size());
    most *= static_cast<int64_t>(longest);
  }
  return most;
}

int64_t WindowMap::Fill(int64_t place, int64_t first, int64_t columns, WindowTerm* terms) const {
  const auto& [deep, high, wide] = axes_;
  const int64_t w = place % wide.Places(), h = place / wide.Places() % high.Places();
  const int64_t d = place / wide.Places() / high.Places();
  WindowTerm* next = terms;
  for (const AxisTerm& i : deep.terms[static_cast<size_t>(d)]) {
    for (const AxisTerm& j : high.terms[static_cast<size_t>(h)]) {
      const int64_t row = first + (i.at * high.from + j.at) * wide.from, tap = (i.tap * high.taps + j.tap) * wide.taps;
      const double weight = i.weight * j.weight;
      for (const AxisTerm& k : wide.terms[static_cast<size_t>(w)])
        *next++ = {(row + k.at) * columns, static_cast<float>(weight * k.weight), static_cast<int32_t>(tap + k.tap)};
    }
  }
  return next - terms;
}

}  // namespace switchyard
