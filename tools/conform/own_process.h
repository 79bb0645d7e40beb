// What this process holds: for checks that nothing is kept. Thread-safe.
#pragma once

#include <cstdint>

namespace switchyard::conform {

uint64_t ResidentBytes();
uint64_t OpenDescriptors();
uint64_t Threads();

}  // namespace switchyard::conform
