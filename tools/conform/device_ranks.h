// Two processes that drive the device at once and exchange what lies in its memory: what data-parallel training asks of
// a backend.
#pragma once

#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/conform.h"

namespace switchyard::conform {

// Starts the two ranks. kUnimplemented where there is only one device and it cannot be shared.
Status CheckDeviceRanks(const Plugin& plugin, const Options& options);

// In the child.
Status RunDeviceRank(const Plugin& plugin, const nlohmann::json& task);

}  // namespace switchyard::conform
