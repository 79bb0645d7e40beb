// The order of a graph in which regions stand for their nodes. Internal to core/plan.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace switchyard {

// An item is a node (≥ 0) or a region (-1 - index), each after everything that it reads. Where ranks send each other
// messages, what communicates keeps the order in which it was built: a region that would have to run both before and
// behind a collective for that is taken apart (its members' region_of becomes -1). By node, region_of is the index into
// `regions`, or -1. Error: a region that would have to run before itself; it names `plugin`.
StatusOr<std::vector<int>> OrderWithRegions(const Graph& graph, const std::vector<std::vector<int>>& regions,
                                            std::vector<int>& region_of, const std::string& plugin);

}  // namespace switchyard
