// Which gradients their kernels add to a bucket themselves (the ABI's `accumulate`), so that no sum of two tensors is
// computed beside: to what it holds of an earlier run, or of a micro-batch before in the same one. Internal to
// core/plan.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/base/status.h"
#include "core/graph/graph.h"

namespace switchyard {

// By node: a flag for each result that an `accumulate` node adds to its part of a bucket and that nobody else reads;
// empty where there is none. The result then lies in the bucket, for which its offset must be a multiple of
// `alignment` (bytes). Of several that are added one after the other to what the first of them is, all or none are
// flagged. can_add: whether node `id` has a kernel that adds the results of which `flags` says so. Control edges keep
// the order in which kernels write to one place.
using CanAdd = absl::FunctionRef<StatusOr<bool>(int id, const std::vector<uint8_t>& flags)>;
StatusOr<std::vector<std::vector<uint8_t>>> ResultsToAccumulate(Graph& graph, uint64_t alignment, CanAdd can_add);

// The result that accumulate node `id` adds, behind reshapes.
Ref AddedBy(const Graph& graph, int id);

// Makes accumulate node `id` an ordinary sum, for which backends have kernels.
void BecomeSum(Graph& graph, int id);

}  // namespace switchyard
