// The rows of matrices made orthonormal, many matrices at a time.
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// Each matrix (r, k), f32, with its rows made orthonormal in their order; a row that depends on those before it becomes
// zero, one with squares that are not finite NaN. drawn: none, or for each matrix one like it, whose rows stand in for
// rows of zeros.
std::vector<Value> Orthonormalize(const std::vector<Value>& matrices, const std::vector<Value>& drawn = {},
                                  Where where = Where::current());

}  // namespace switchyard::ops
