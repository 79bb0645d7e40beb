// State that differs between the ranks of a data group, in a checkpoint: one tensor `each_rank/<name in the graph>`
// (ranks, …) fp32 for each, by data rank. It is what ranks leave out of the gradients that they send
// (core/parallel/power_sgd.h), and with --broadcast_buffers=0 the state of the model itself. The steps begun so far
// must have ended.
#pragma once

#include <cstdint>
#include <string>

#include "core/train/checkpoint.h"
#include "core/train/engine.h"

namespace switchyard {

inline constexpr char kEachRank[] = "each_rank/";

// of_model: state of the model is such, where several ranks divide the data.
bool IsOfEachRank(const Layout::Entry& entry, bool of_model, int data_ranks);

// Of the state of a run that differs between ranks, of all of them; 0: it has none.
uint64_t BytesOfEachRank(const Layout& layout, bool of_model, int data_ranks);

// By name in the graph, on rank 0; none elsewhere. Collective.
StatusOr<HostTensors> GatherEachRank(Engine& engine, bool of_model);

// Takes this rank's own up from such tensors of a checkpoint's state, where they have one for each rank there is now.
// Of another number of ranks, state of the model stays as it is, and of what gradients have left out each gets the
// mean: the sum over ranks that counts goes on as it was. What this run has no use for is not read, and the first rank
// warns of what is lost by that. Host memory holds one tensor at a time, of all ranks. DataLoss where one is no such
// state, or has another shape. folder: of the checkpoint, for messages. Local.
Status RestoreEachRank(Engine& engine, const SavedTensors& state, bool of_model, const std::string& folder);

}  // namespace switchyard
