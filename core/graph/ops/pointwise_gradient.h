// The gradient rule of pointwise (OpDefinition::gradient). Private to core/graph/ops.
#pragma once

#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

std::vector<Value> PointwiseGradient(Graph& graph, int node, const std::vector<Value>& dy,
                                     const std::vector<bool>& wanted);

}  // namespace switchyard
