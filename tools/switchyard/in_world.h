// The body of a command that several ranks run together.
#pragma once

#include <absl/functional/function_ref.h>

#include "tools/switchyard/run_setup.h"

namespace switchyard {

// Joins the world that the settings ask for and runs `body` in it. A rank that cannot go on tells the others why, and
// leaves without waiting for them: then this does not return.
Status InWorld(const TrainConfig& config, absl::FunctionRef<Status(World&)> body);

}  // namespace switchyard
