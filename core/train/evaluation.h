// Evaluation: the evaluation plan over every sample of a dataset, once whatever the number of ranks. Not thread-safe.
#pragma once

#include <vector>

#include "core/data/loader.h"
#include "core/train/engine.h"
#include "core/train/stopping.h"
#include "core/train/task.h"

namespace switchyard {

// The task's metrics over all samples of all ranks. Collective.
// averaged: of the averaged weights. stops: is it to end here? Asked on all ranks behind each batch, with the same
// answer on all; where it says so, the evaluation ends with Cancelled.
StatusOr<EvaluationResult> EvaluateSamples(Engine& engine, const Task& task, Loader& batches, bool averaged = false,
                                           const StopAsked& stops = nullptr);

// Calls `read` with what the task predicts for each sample, in order; an error ends it. One rank.
Status PredictSamples(Engine& engine, const Task& task, Loader& batches, ReadPrediction read);

// Up to `count` samples, evenly spaced, with what the task predicts, as Task::Show gives them; what cannot be read is
// left out. Local: each rank that calls it looks at the same samples.
StatusOr<std::vector<Example>> ExamplesOf(Engine& engine, const Task& task, const SampleSource& samples,
                                          const std::vector<std::string>& names, int count);

}  // namespace switchyard
