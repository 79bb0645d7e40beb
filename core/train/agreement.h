// What has to be the same on all ranks of a run, compared before it begins. Collective; each rank gets the same
// verdict, which names the first difference.
#pragma once

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/data/dataset.h"
#include "core/train/config.h"
#include "core/train/world.h"

namespace switchyard {

// InvalidArgument: what the run is differs. What devices decide for themselves (a bare --amp, an open loss scale) has
// to be decided in `config`.
Status VerifySettings(const TrainConfig& config, World& world);

// FailedPrecondition: ranks, each of which reads the data for itself, have others, by their number and
// Dataset::Checksum. data: "training" and "validation", as far as they are read, with what a rank has.
Status VerifyData(const std::vector<std::pair<const char*, const Dataset*>>& data, World& world);

}  // namespace switchyard
