// Collective plugins, with data on several ranks, each a process of its own.
#pragma once

#include "core/runtime/plugins/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "collective/FUNCTION/…/N_ranks". Ranks are started directly, or by mpirun where the plugin refuses that. A
// status only where no rank could be started at all.
Status CheckCollective(Recorder& recorder, const Plugin& plugin, const Options& options);

}  // namespace switchyard::conform
