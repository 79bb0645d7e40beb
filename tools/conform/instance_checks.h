// sy_plugin_create called again: instances of one backend side by side.
#pragma once

#include "core/runtime/plugins/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "instance/…".
void CheckInstances(Recorder& recorder, const Plugin& plugin, int device);

}  // namespace switchyard::conform
