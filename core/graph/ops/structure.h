// What the engine does itself, without a kernel of its own, and how its nodes are told from others.
#pragma once

#include <source_location>
#include <string_view>

#include "core/graph/graph.h"

namespace switchyard {

// As views, whose lengths are compared first: most ops differ there already.
inline bool IsOp(const Node& node, std::string_view op) { return node.op == op; }
inline bool IsInput(const Node& node) { return IsOp(node, "input"); }
inline bool IsAssign(const Node& node) { return IsOp(node, "assign"); }
inline bool IsOutput(const Node& node) { return IsOp(node, "output"); }
inline bool IsAccumulate(const Node& node) { return IsOp(node, "accumulate"); }
// It says what is kept of a run, and computes nothing.
inline bool IsKept(const Node& node) { return IsAssign(node) || IsOutput(node); }

}  // namespace switchyard

namespace switchyard::ops {

// held + x, both f32 of one type, where `held` is what a place has held so far: the planner lets the kernel that makes
// x add to the place itself, if it can, and computes a sum elsewhere.
Value Accumulate(const Value& held, const Value& x, std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
