// Subgraphs that a plugin compiles whole (region/2). The plugin is shown the lowered graph, marks the nodes that it
// wants, and prepares each marked region; here every region that it could prepare becomes one node with the op
// "region", and the rest of the planner treats it like any other kernel. A region that the plugin then refuses stays as
// its single nodes. Internal to core/plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph/op.h"
#include "core/plan/kernels.h"

namespace switchyard {

struct ClaimedRegion {
  Kernel* kernel = nullptr;  // owned by the cache
  int nodes = 0;
  Cost cost;  // FLOPs of its nodes; bytes of its inputs and outputs
};

struct RegionGraph {
  Graph graph;
  std::map<int, ClaimedRegion> regions;  // by id of the "region" node
};

// The graph as it is where the plugin has no region/2. Errors: a claim that is not convex, or that holds a node which
// was not offered.
StatusOr<RegionGraph> ClaimRegions(Graph graph, KernelCache& cache);

}  // namespace switchyard
