// All checks of a backend that run in one process: structs, memory, ops, gradients, training, streams, optional
// interfaces, speed. A plugin may crash or hang in any of them, so they run in a child process; the one that takes it
// down has failed, and another child goes on behind it.
#pragma once

#include <memory>

#include "core/runtime/plugins/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Adds the results to `recorder`. kNotFound where there is no reference plugin to compare with.
Status CheckBackend(Recorder& recorder, const std::shared_ptr<Plugin>& plugin, const Options& options);

// In the child.
Status RunBackendChecks(const std::shared_ptr<Plugin>& plugin, const nlohmann::json& task, ResultLog& log);

}  // namespace switchyard::conform
