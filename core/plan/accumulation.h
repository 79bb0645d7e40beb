// Which gradients their kernels add to a bucket themselves (the ABI's `accumulate`), so that no sum of two tensors is
// computed beside. Internal to core/plan.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// By node: a flag for each result that an `accumulate` node adds to its part of a bucket and that nobody else reads;
// empty where there is none. The result then lies in the bucket, for which its offset must be a multiple of
// `alignment` (bytes).
std::vector<std::vector<uint8_t>> ResultsToAccumulate(const Graph& graph, uint64_t alignment);

// The result that accumulate node `id` adds, behind reshapes.
Ref AddedBy(const Graph& graph, int id);

// Makes accumulate node `id` an ordinary sum, for which backends have kernels.
void BecomeSum(Graph& graph, int id);

}  // namespace switchyard
