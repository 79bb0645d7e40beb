// From the settings of a run to its loaders. Pure; any thread.
#pragma once

#include <memory>

#include "core/data/loader.h"
#include "core/train/config.h"
#include "core/train/world.h"

namespace switchyard {

// The loader of one rank: shuffled for training, every sample once for evaluation.
StatusOr<std::unique_ptr<Loader>> MakeLoader(const TrainConfig& config, std::unique_ptr<const SampleSource> source,
                                             const World& world, bool train);

}  // namespace switchyard
