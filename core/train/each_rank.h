// State that differs between the ranks of a data group, in a checkpoint: one tensor `each_rank/<name in the graph>`
// (ranks, …) fp32 for each, by data rank. It is what ranks leave out of the gradients that they send
// (core/parallel/power_sgd.h), and with --broadcast_buffers=0 the state of the model itself. The steps begun so far
// must have ended.
#pragma once

#include <string>

#include "core/train/checkpoint.h"
#include "core/train/engine.h"

namespace switchyard {

inline constexpr char kEachRank[] = "each_rank/";

// Has the run state that differs between ranks? of_model: that of the model is such, where several ranks divide the
// data.
bool KeepsEachRank(const Engine& engine, bool of_model);

// By name in the graph, on rank 0; none elsewhere. Collective.
StatusOr<HostTensors> GatherEachRank(Engine& engine, bool of_model);

// Takes this rank's own up from such a tensor where it has one for each rank there is now. Of another number of ranks,
// state of the model stays as it is, and of what gradients have left out each gets the mean: the sum over ranks that
// counts goes on as it was. What this run has no use for is left. DataLoss where it is no such state, or has another
// shape. folder: of the checkpoint, for the message. Local.
Status RestoreEachRank(Engine& engine, const NamedTensor& tensor, bool of_model, const std::string& folder);

}  // namespace switchyard
