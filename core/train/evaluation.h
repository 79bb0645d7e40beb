// Evaluation: the evaluation plan over every sample of a dataset, once whatever the number of ranks. Not thread-safe.
#pragma once

#include <absl/functional/function_ref.h>

#include <vector>

#include "core/data/loader.h"
#include "core/train/engine.h"

namespace switchyard {

// Runs the evaluation plan over all batches and calls read(labels, slot) for each in order, with the slot in which its
// outputs lie; the next batch is under way meanwhile. labels: (batch_size), -1 where padded.
using ReadOutputs = absl::FunctionRef<Status(const std::vector<int32_t>& labels, int slot)>;
Status EvaluateBatches(Engine& engine, Loader& batches, ReadOutputs read);

// The sums over all ranks. Collective.
StatusOr<EvaluationResult> EvaluateClasses(Engine& engine, Loader& batches);

// Class probabilities of the first `samples` samples; empty for one that could not be read. One rank.
StatusOr<std::vector<std::vector<double>>> PredictClasses(Engine& engine, Loader& batches, int64_t samples);

}  // namespace switchyard
