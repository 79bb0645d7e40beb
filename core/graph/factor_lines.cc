#include "core/graph/factor_lines.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {

std::string AxisNames(const std::string& prefix, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(fmt::format("{}{}", prefix, i));
  return fmt::format("{}", fmt::join(names, " "));
}

std::string BroadcastNames(const std::string& prefix, const Shape& from, const Shape& to) {
  std::vector<std::string> names;
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i)
    names.push_back(from[i] == to[lead + i] ? fmt::format("{}{}", prefix, lead + i) : "1");
  return fmt::format("{}", fmt::join(names, " "));
}

std::string ReshapeLine(const Shape& from, const Shape& to) {
  // A walk over both shapes from outside: the smaller of what is left of two dimensions is an axis where it divides the
  // larger. Where it does not, all stays whole until both have as many elements again.
  struct Side {
    const Shape& shape;
    size_t next = 0;
    int64_t left = 1;  // of the last dimension
    std::vector<std::string> dimensions;
    bool Take() {
      while (left == 1 && next < shape.size()) {
        left = shape[next++];
        dimensions.emplace_back(left == 1 ? "1" : "");
      }
      return left != 1;
    }
    void Append(const std::string& name) {
      std::string& last = dimensions.back();
      last += (last.empty() ? "" : " ") + name;
    }
    std::string Text() const {
      std::string text;
      for (const std::string& names : dimensions) {
        const bool packed = names.find(' ') != std::string::npos;
        text += fmt::format("{}{}", text.empty() ? "" : " ", packed ? "(" + names + ")" : names);
      }
      return text;
    }
  };
  Side a{from}, b{to};
  for (int axis = 0; a.Take() && b.Take();) {
    const int64_t smaller = std::min(a.left, b.left);
    if (std::max(a.left, b.left) % smaller == 0) {
      const std::string name = fmt::format("x{}", axis++);
      for (Side* side : {&a, &b}) {
        side->Append(name);
        side->left /= smaller;
      }
      continue;
    }
    a.Append("_");
    b.Append("_");
    while (a.left != b.left) {
      Side& behind = a.left < b.left ? a : b;
      const int64_t before = std::exchange(behind.left, 1);
      if (!behind.Take()) break;
      behind.Append("_");
      behind.left *= before;
    }
    a.left = b.left = 1;
  }
  a.Take(), b.Take();
  return a.Text() + " -> " + b.Text();
}

}  // namespace switchyard
