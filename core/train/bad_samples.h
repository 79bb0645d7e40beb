// The samples that each rank of a run has skipped, as a checkpoint's record keeps them, so that --max_bad_samples,
// which is of each rank, counts them once over all of its parts of a run.
#pragma once

#include <cstdint>
#include <set>

#include "core/train/world.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// The indices of every rank, a list for each; empty where none has any. Collective.
StatusOr<nlohmann::json> GatherBadSamples(World& world, const std::set<int64_t>& own);

// The share of rank `rank` of `world` in such a list, which another number of ranks may have left; null: none.
// InvalidArgument where it is something else.
StatusOr<std::set<int64_t>> ShareOfBadSamples(const nlohmann::json& lists, int rank, int world);

}  // namespace switchyard
