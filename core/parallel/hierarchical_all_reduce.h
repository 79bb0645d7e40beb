// A sum over ranks on several nodes that sends little between them. With L ranks on every node, x (n) is summed in
// four steps: reduce-scatter of L·⌊n/L⌋ elements within the node; all-reduce of each part among the ranks that stand
// at the same place of their nodes; all-gather within the node. The n mod L elements that are left go with the part of
// the node's last rank, which broadcasts them. Between nodes a rank so sends n/L elements instead of n. Nodes of
// unequal sizes are summed within, their first ranks exchange the whole of it, and each broadcasts it in its node.
#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// Is there anything to gain: several nodes, and one with more than one rank? nodes: by rank of the data group.
bool HasHierarchy(const std::vector<int>& nodes);

// x (n) of any dtype summed over the data group, as its rank `rank` builds it; over kNodeGroup and kAcrossGroup.
Value HierarchicalAllReduce(const Value& x, const std::vector<int>& nodes, int rank, const std::string& name);

}  // namespace switchyard
