// The body of a command that several ranks run together.
#pragma once

#include <absl/functional/function_ref.h>

#include "tools/switchyard/run_setup.h"

namespace switchyard {

// Joins the world that the settings ask for and runs `body` in it: of `ranks` as RanksOf found them, in each of them
// that is a thread of this process, at the same time (core/train/replicas.h). A rank that cannot go on tells the others
// why. A process of several leaves without waiting for the others: then this does not return.
Status InWorld(const TrainConfig& config, const ProcessMap& ranks, absl::FunctionRef<Status(World&)> body);

// The error with which a command ends. Ranks that fail before they have joined the world, as over a wrong folder, meet
// here for a moment: what rank 0 says the others do not say again. Those that did not fail learn of it.
void SayFailure(const Status& failure);

}  // namespace switchyard
