// In which order a graph's nodes are submitted. As built, which is a legal order, but for collectives, buckets of
// gradients and what the update phase computes for them alone (casts of gradients, sums into a bucket): with `early`
// each of those comes as soon as its own inputs are there, so that communication begins when its last input is written
// and runs beside what is computed afterwards, and no gradient waits for the others. Without, a collective comes right
// before the first node that needs it.
#pragma once

#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// Ids of all nodes; every node after its inputs and its control edges.
std::vector<int> LaunchOrder(const Graph& graph, bool early);

}  // namespace switchyard
