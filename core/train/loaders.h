// From the settings of a run to its loaders. Pure; any thread.
#pragma once

#include <memory>

#include "core/data/loader.h"
#include "core/train/trainer.h"

namespace switchyard {

// The loader of one rank: shuffled and augmented for training, every sample once for evaluation. `data` must outlive
// it.
StatusOr<std::unique_ptr<Loader>> MakeLoader(const TrainConfig& config, const EvaluationTransform& evaluation,
                                             const Dataset& data, const World& world, bool train);

}  // namespace switchyard
