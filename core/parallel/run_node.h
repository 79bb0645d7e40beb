// One node by itself: its kernel prepared, bound and launched once, in memory of its own. For the interpreter of a mesh
// (mesh_interpreter.h), which is made for correctness and not for speed.
#pragma once

#include <vector>

#include "core/graph/graph.h"
#include "core/plan/kernels.h"

namespace switchyard {

// The results, of a node of `graph` that needs a kernel. The device of `kernels` is synchronous. Unimplemented where it
// does not offer the op.
StatusOr<std::vector<Buffer>> RunNode(KernelCache& kernels, const Graph& graph, const Node& node,
                                      const std::vector<const Buffer*>& inputs);

}  // namespace switchyard
