// State of the model itself that differs between the ranks of a data group (--broadcast_buffers=0), in a checkpoint:
// one tensor `each_rank/<name in the graph>` (ranks, …) fp32 for each, by data rank. The steps begun so far must have
// ended.
#pragma once

#include <string>

#include "core/train/checkpoint.h"
#include "core/train/engine.h"

namespace switchyard {

inline constexpr char kEachRank[] = "each_rank/";

// By name in the graph, on rank 0; none elsewhere. Collective.
StatusOr<HostTensors> GatherEachRank(Engine& engine);

// Takes this rank's own up from such a tensor where it has one for each rank there is now; else changes nothing.
// DataLoss where it is none of the model's state, or has another shape. folder: of the checkpoint, for the message.
// Local.
Status RestoreEachRank(Engine& engine, const NamedTensor& tensor, const std::string& folder);

}  // namespace switchyard
