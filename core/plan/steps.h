// From placed nodes to steps: what is launched, copied and communicated, where its bytes lie and on which stream it
// stands. Internal to core/plan.
#pragma once

#include <vector>

#include "core/plan/placement.h"
#include "core/plan/schedule.h"

namespace switchyard {

// The steps of all nodes in `order`, without edges. Kernels' persistent memory gets its place in `layout` here.
std::vector<Step> BuildSteps(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                             const Placement& placement, Layout& layout);

}  // namespace switchyard
