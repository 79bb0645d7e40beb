// The reference device: host memory, synchronous, one launch at a time per binding. It shows the least that a backend
// must have. Thread-safe as device/2 demands: allocations are counted atomically, everything else belongs to its
// handle.
#pragma once

#include <cstdint>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/plugin.h"

struct sy_device {
  int32_t index;
  uint64_t memory_limit;
};

struct sy_buffer {
  char* address;
  uint64_t bytes;
  bool owned;  // false: imported memory that somebody else frees
  int32_t device;
};

namespace switchyard {

extern const sy_device_v2 kReferenceDevice;
extern const sy_memory_ext_v2 kReferenceMemory;
extern const sy_kernel_v2 kReferenceKernels;

// The address of `place`, of which `bytes` will be used; nullptr and a message where they do not lie inside its buffer.
char* Resolve(const sy_place& place, uint64_t bytes, sy_error* error);

}  // namespace switchyard
