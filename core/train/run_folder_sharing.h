// Ranks agree on a run folder: what rank 0 has made of it, and whether all see it and can write there. Collective.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/train/world.h"

namespace switchyard {

// What rank 0 has to say to all in *text, or its error, `status`, which every rank then returns.
Status TellAll(World& world, const Status& status, std::string* text);

// Whether each rank can write into the folder what rank 0 reads there. Each tries, for who cannot would fail the run at
// its first checkpoint. Rank 0 warns where one cannot, and says why. FailedPrecondition: rank 0 itself cannot.
StatusOr<bool> EveryRankShares(World& world, const std::string& run_folder);

}  // namespace switchyard
