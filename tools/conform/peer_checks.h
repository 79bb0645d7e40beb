// peer/1, where a plugin offers it: memory that other devices and other processes copy from and to. One thread.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Why there is nothing to try.
constexpr char kNoPeers[] = "no peer/1: memory reaches other devices by way of the host";

// Checks "peer/…" of one process.
void CheckPeers(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed);
// Those of two processes: memory used from both, and either of them killed meanwhile.
void CheckPeerProcesses(Recorder& recorder, const Plugin& plugin, const Options& options);
// In each of the two.
Status RunPeerProcess(const Plugin& plugin, const nlohmann::json& task);

}  // namespace switchyard::conform
