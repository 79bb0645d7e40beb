// Counts C++ allocations of this thread while an AllocationCount lives. Linking allocation_count.cc replaces operator
// new of the whole program; plugins and C libraries have allocators of their own and are not counted.
#pragma once

#include <cstdint>

namespace switchyard {

class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount();
  int64_t value() const;
};

}  // namespace switchyard
