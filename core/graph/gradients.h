// Reverse-mode differentiation, graph to graph: adds the nodes that compute d(loss)/d(value) for each wanted value, by
// each op's gradient rule.
#pragma once

#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// `loss` has one element. Returns one gradient per entry of `wanted` (none where the loss does not depend on it). Nodes
// are added in phase kBackward, in reverse order of the forward pass, so that gradients of the last layers finish
// first. Throws BuildError for an op on the path that cannot be differentiated.
std::vector<Value> Gradients(const Value& loss, const std::vector<Value>& wanted);

}  // namespace switchyard
