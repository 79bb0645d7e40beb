#include "tools/conform/name_filter.h"

#include <fnmatch.h>

#include <algorithm>

namespace switchyard::conform {

NameFilter::NameFilter(const std::string& patterns) {
  for (size_t begin = 0; begin < patterns.size();) {
    const size_t end = std::min(patterns.find(',', begin), patterns.size());
    if (end > begin) patterns_.push_back(patterns.substr(begin, end - begin));
    begin = end + 1;
  }
}

bool NameFilter::Matches(const std::string& name) const {
  return patterns_.empty() || std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
           if (pattern.find_first_of("*?[") == std::string::npos) return name.find(pattern) != std::string::npos;
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

}  // namespace switchyard::conform
