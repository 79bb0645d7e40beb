// Collective plugins, with data on several ranks, each a process of its own.
#pragma once

#include "core/runtime/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "collective/FUNCTION/…/N_ranks": every dtype × reduction, in place and not, counts 0, 1, odd, large, owned
// memory, split; ranks that disagree; a rank that is killed. Ranks are started directly, or by mpirun where the plugin
// refuses that.
void CheckCollective(Recorder& recorder, const Plugin& plugin, const Options& options);

}  // namespace switchyard::conform
