// Collectives as nodes of the graph; a collective plugin runs them.
#pragma once

#include "core/abi/collective.h"
#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

// x reduced over the ranks of a group, times `scale`; in place where the planner can.
Value AllReduce(const Value& x, int reduction, float scale, int group = 0, const std::string& name = "",
                std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
