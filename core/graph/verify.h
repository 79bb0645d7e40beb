// Holds a graph to what every pass may rely on: results typed as their op infers them; inputs, control edges and
// forward partners before their use; unique names; at most one assignment to a state, of its type. Every pass ends with
// it, in every build; a graph that has not changed since is not looked at again.
#pragma once

#include <string>

#include "core/graph/graph.h"

namespace switchyard {

// Throws BuildError that names `pass`, the node, and what is wrong with it.
void Verify(Graph& graph, const std::string& pass);

}  // namespace switchyard
