// What the engine does itself, without a kernel of its own.
#pragma once

#include <source_location>

#include "core/graph/graph.h"

namespace switchyard::ops {

// held + x, both f32 of one type, where `held` is what a place has held so far: the planner lets the kernel that makes
// x add to the place itself, if it can, and computes a sum elsewhere.
Value Accumulate(const Value& held, const Value& x, std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
