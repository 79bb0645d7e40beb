// Evaluation: the evaluation plan over every sample of a dataset, once whatever the number of ranks. Not thread-safe.
#pragma once

#include <vector>

#include "core/data/loader.h"
#include "core/train/engine.h"
#include "core/train/task.h"

namespace switchyard {

// The task's metrics over all samples of all ranks. Collective.
// averaged: of the averaged weights.
StatusOr<EvaluationResult> EvaluateSamples(Engine& engine, const Task& task, Loader& batches, bool averaged = false);

// What the task predicts for each of the first `samples` samples; empty for one that could not be read. One rank.
StatusOr<std::vector<std::vector<double>>> PredictSamples(Engine& engine, const Task& task, Loader& batches,
                                                          int64_t samples);

}  // namespace switchyard
