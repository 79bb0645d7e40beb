// What the level Fast asks for: native kernels for every op, a half-precision dtype, and cheap launches. A miss counts
// as unsupported, not as a failure.
#pragma once

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "fast/all_ops", "fast/half" and "fast/launch".
void CheckSpeed(Recorder& recorder, Device& device);

}  // namespace switchyard::conform
