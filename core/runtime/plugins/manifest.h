// The manifest beside a plugin's library: its name, kind, version and priority, read before anything is loaded.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {

// Fills in what the file at `path` says of the candidate, and the file name of its library. InvalidArgument or
// FailedPrecondition where it cannot be read, is no manifest or is of another version of the interface.
Status ParseManifest(const std::string& path, Candidate& candidate, std::string& library);

}  // namespace switchyard
