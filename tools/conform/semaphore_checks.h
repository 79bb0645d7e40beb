// semaphore/1, where a plugin offers it: a count that host and streams raise and wait for. One thread.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "semaphore/…", but for the one that spoils a stream.
void CheckSemaphores(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed);
// Those of them that a device without streams can keep, too (semaphore_host_checks.cc).
Status CheckHostCount(Device& device, const sy_semaphore_v1& api);
Status CheckNoStreams(Device& device, const sy_semaphore_v1& api);
Status CheckTimeout(Device& device, const sy_semaphore_v1& api);
Status CheckSeveralWaiters(Device& device, const sy_semaphore_v1& api);
Status CheckSemaphoreThreads(Device& device, const sy_semaphore_v1& api);
Status CheckDestroy(Device& device, const sy_semaphore_v1& api);
// "semaphore/failed_stream", in a process of its own: who waits for what a failed stream was to raise is let go.
Status RunFailedSignal(const Plugin& plugin, const nlohmann::json& task);

}  // namespace switchyard::conform
