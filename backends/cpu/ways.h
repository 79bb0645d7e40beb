// Ops that can be computed in several ways, of which none is the fastest on every CPU and at every shape. By default
// the first of them is taken that can be; where SY_TUNING_MEASURE allows, each is measured, once on a machine: choices
// are kept in the user's cache folder.
#pragma once

#include <functional>
#include <vector>

#include "backends/cpu/kernel.h"

namespace switchyard {

struct Way {
  const char* name;                     // one word, kept in the cache
  std::function<KernelPointer()> make;  // nullptr where it cannot be; all that are made compute the same
};

// nullptr where none can be made.
KernelPointer FirstOrFastest(const Request& request, const std::vector<Way>& ways);

}  // namespace switchyard
