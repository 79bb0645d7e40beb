// What a plugin must refuse, and how: SY_INVALID for a caller that broke a contract, SY_UNSUPPORTED for what a later
// edition may mean (core/abi/PROMISES.md, "What is refused"). One thread.
#pragma once

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "refusal/…", but for the one below.
void CheckRefusals(Recorder& recorder, const Plugin& plugin, Device& device);
// "refusal/places", in a process of its own: who does not look may crash.
Status RunBadPlaces(const Plugin& plugin, const nlohmann::json& task);

}  // namespace switchyard::conform
