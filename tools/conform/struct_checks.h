// Does the plugin read and write only what the size of a struct covers, and answer nonsense with an error? Speaks to
// the interfaces directly.
#pragma once

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "struct/…".
void CheckStructs(Recorder& recorder, const Plugin& plugin, Device& device);

}  // namespace switchyard::conform
