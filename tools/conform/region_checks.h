// region/2: small graphs are offered; what the plugin claims must be convex, and computes what the reference computes
// node by node.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "region/GRAPH".
void CheckRegions(Recorder& recorder, Device& device, Device& reference, uint64_t seed);

}  // namespace switchyard::conform
