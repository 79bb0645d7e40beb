// Memory in its corners: unaligned host addresses, copies inside one buffer, a device that is full; and memory_ext/2:
// native addresses, memory of somebody else, host memory for quick copies.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "memory/…".
void CheckMemory(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed);

}  // namespace switchyard::conform
