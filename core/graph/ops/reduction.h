// Sums, means, extrema over axes, and the squared norm over many tensors.
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// Reduces over the axes whose bit is set and drops them (keep: leaves them with extent 1). The result is times
// `scale`, of x's dtype.
Value Reduce(const Value& x, int reduction, uint32_t axes, float scale = 1, bool keep = false,
             Where where = Where::current());
Value Sum(const Value& x, Where where = Where::current());   // over everything: (1)
Value Mean(const Value& x, Where where = Where::current());  // over everything: (1)
// Over all axes but the last: (C) f32.
Value SumOfRows(const Value& x, Where where = Where::current());
// Σ t² over all tensors: (1) f32.
Value SquaredNorm(const std::vector<Value>& tensors, Where where = Where::current());

}  // namespace switchyard::ops
