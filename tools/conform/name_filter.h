// Which checks somebody means: a list of patterns, with commas between. A pattern with * or ? must fit the whole name
// (* stands for anything, slashes included), one without need only be a part of it. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace switchyard::conform {

class NameFilter {
 public:
  explicit NameFilter(const std::string& patterns = "");  // "": every name
  bool Matches(const std::string& name) const;
  bool empty() const { return patterns_.empty(); }

 private:
  std::vector<std::string> patterns_;
};

}  // namespace switchyard::conform
