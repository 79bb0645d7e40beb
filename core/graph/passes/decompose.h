// Replaces what a backend cannot prepare by the op's decomposition, as far down as needed. A node whose decomposition
// the backend cannot run either stays as it is: the planner then runs it on the reference plugin and reports it. An op
// from outside the tree, which the reference plugin does not have, is decomposed even so.
#pragma once

#include "core/graph/passes/rewrite.h"

namespace switchyard {

Graph Decompose(Graph source, const CanPrepare& can_prepare);

}  // namespace switchyard
