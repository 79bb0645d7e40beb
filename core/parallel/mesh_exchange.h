// What collectives give, computed in one process for all ranks of a group (mesh_interpreter.h). Reductions add in the
// order of the ranks. Pure.
#pragma once

#include <vector>

#include "core/abi/ops.h"
#include "core/graph/ops/collective.h"

namespace switchyard {

// The bytes that each rank has behind the collective, of those that each brought: as many from each, a multiple of the
// ranks where the collective divides them. Not for messages.
std::vector<std::vector<char>> Exchanged(Exchange exchange, const sy_collective_attributes& attributes, sy_dtype dtype,
                                         const std::vector<std::vector<char>>& sent);

}  // namespace switchyard
