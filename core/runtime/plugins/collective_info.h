// What a collective plugin says of itself, checked. Plain values.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/abi/collective.h"

namespace switchyard {

inline constexpr char kHostMemory[] = "host";  // as memory kinds name ordinary memory of the process

struct CollectiveInfo {
  bool completes_on_stream = false;
  uint32_t flags = 0;  // SY_COLLECTIVE_*
  std::vector<std::string> memory_kinds;
  std::string libraries;  // under the plugin, with their versions, for people; "": it says nothing
  bool Reaches(const std::string& kind) const {
    return !kind.empty() && std::find(memory_kinds.begin(), memory_kinds.end(), kind) != memory_kinds.end();
  }
};

}  // namespace switchyard
