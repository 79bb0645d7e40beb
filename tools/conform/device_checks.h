// The promises of device/2: memory, copies, out-of-memory, leaks, threads; and for asynchronous devices order, events
// and non-blocking calls.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "device/…".
void CheckDevice(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed);
// Checks "threads/…": several threads with kernels, streams and memory of their own.
void CheckThreadsAtWork(Recorder& recorder, Device& device, uint64_t seed);
// Checks "async/…", unsupported on a synchronous device, for this reason.
constexpr char kSynchronous[] = "a synchronous device";
void CheckAsync(Recorder& recorder, Device& device, uint64_t seed);

// In a process of its own, since a driver may crash on it: a copy beyond the end of a buffer. kUnimplemented where the
// plugin does not notice.
Status RunStickyError(const Plugin& plugin, const nlohmann::json& task);

}  // namespace switchyard::conform
