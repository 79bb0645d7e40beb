// Pipeline parallelism: each rank of a pipeline group holds some consecutive blocks of the model, or several runs of
// such, with their parameters and optimizer state. A rank's update is one plan in which its stage's part stands once
// for each micro-batch, in the order of 1F1B (pipeline_schedule.h), with messages between: activations to later stages,
// gradients back. So the planner sees how long a micro-batch's activations are needed, and the scheduler what can run
// beside a message.
//
// Messages are values, between any two stages, so that connections that skip blocks need nothing of their own. What
// follows from the batch and constants alone (random masks, converted labels) each stage computes for itself. All ranks
// take messages in one order, by when their senders have computed them where only the stages' own time counts; a rank
// has computed before what it sends and needs later what it receives, hence ranks never wait for each other in a
// circle.
#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// The name of batch input `name` of micro-batch `micro_batch` in a plan that holds several.
std::string MicroBatchInput(const std::string& name, int micro_batch);

// The part of each block of the model, of `interleave` parts for each of the stages, by the FLOPs of the forward part:
// what stands behind a block and belongs to none counts as that block's. BuildError where there are fewer blocks than
// parts.
std::vector<int> PartsOfBlocks(const Graph& graph, int stages, int interleave);

}  // namespace switchyard
