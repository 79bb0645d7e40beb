// A sum over ranks on several nodes that sends little between them. With L ranks on every node, x (n) is summed in
// four steps: reduce-scatter of L·⌊n/L⌋ elements within the node; all-reduce of each part among the ranks that stand
// at the same place of their nodes; all-gather within the node. The n mod L elements that are left go with the part of
// the node's last rank, which broadcasts them. Between nodes a rank so sends n/L elements instead of n. Nodes of
// unequal sizes are summed within, their first ranks exchange the whole of it, and each broadcasts it in its node.
//
// Ranks that each want a part of the sum alone (--zero) get theirs by the first two steps, the second a reduce-scatter
// too, and gather parts by their counterparts in turn. With N nodes the rank at place p of its node, the a-th of those
// at that place, so has part p·N + a. Nodes of unequal sizes are summed whole, and parts go by rank.
#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/optim/shared_update.h"

namespace switchyard {

// Is there anything to gain: several nodes, and one with more than one rank? nodes: by rank of the data group.
bool HasHierarchy(const std::vector<int>& nodes);

// x (n) of any dtype summed over the data group, as its rank `rank` builds it; over kNodeGroup and kAcrossGroup.
Value HierarchicalAllReduce(const Value& x, const std::vector<int>& nodes, int rank, const std::string& name);

// x (ranks · n) summed likewise, of which this rank gets its part (n).
Value HierarchicalReduceScatter(const Value& x, const std::vector<int>& nodes, int rank, const std::string& name);

// With a hierarchy or without one: the part that a rank has, and the gathers that bring all `ranks` parts together.
int PartOfRank(const std::vector<int>& nodes, int rank);
std::vector<GatherStep> GathersOfParts(const std::vector<int>& nodes, int rank, int ranks);

}  // namespace switchyard
