// What has to be the same on all ranks of a run, compared before it begins. Collective; each rank gets the same
// verdict, which names the first difference.
#pragma once

#include "core/base/status.h"
#include "core/data/dataset.h"
#include "core/train/config.h"
#include "core/train/world.h"

namespace switchyard {

// InvalidArgument: what the run is differs. What devices decide for themselves (a bare --amp, an open loss scale) has
// to be decided in `config`.
Status VerifySettings(const TrainConfig& config, World& world);

// FailedPrecondition: nodes, which read data from places of their own, have other data there, by their number and
// Dataset::Checksum.
Status VerifyData(const Dataset& train, const Dataset& validation, World& world);

}  // namespace switchyard
