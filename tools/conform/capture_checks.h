// capture/2 and profiler/2, where a plugin offers them: what is recorded runs only when it is launched, as often as it
// is launched, on whatever stream; and the profiler's spans have the kernels' tags, streams and times.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "capture/…" and "profiler/…".
void CheckCapture(Recorder& recorder, Device& device);
void CheckProfiler(Recorder& recorder, const Plugin& plugin, Device& device);

}  // namespace switchyard::conform
