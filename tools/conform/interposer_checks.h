// A plugin that goes around others (interpose/2): what it makes of the reference plugin still works, and an argument
// that makes no sense is refused. One thread.
#pragma once

#include <memory>

#include "core/runtime/plugins/plugin.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "interposer/…", in this process.
Status CheckInterposer(Recorder& recorder, const Plugin& interposer);

}  // namespace switchyard::conform
