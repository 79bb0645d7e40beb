// The promises of device/1: memory, copies, out-of-memory, leaks, threads; and for asynchronous devices order, events
// and non-blocking calls.
#pragma once

#include <cstdint>

#include "core/runtime/device.h"
#include "core/runtime/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "device/…", and "async/…" (unsupported on a synchronous device).
void CheckDevice(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed);

// Run in a process of its own, since a driver may crash on it: a copy beyond the end of a buffer. kUnimplemented where
// the plugin does not notice.
Status CheckStickyError(Device& device);

}  // namespace switchyard::conform
