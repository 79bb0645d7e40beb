// Pieces of which the factor rules of ops with any number of axes make their lines (core/graph/factors.h). Pure
// functions.
#pragma once

#include <string>

#include "core/graph/types.h"

namespace switchyard {

// "x0 x1 x2": prefix x, 3 axes.
std::string AxisNames(const std::string& prefix, size_t count);
// Of an operand of shape `from` that is broadcast to a result with the axes x0, x1, …: "x1 1 x3".
std::string BroadcastNames(const std::string& prefix, const Shape& from, const Shape& to);
// The whole line of a change of shape: "x0 (x1 x2) -> (x0 x1) x2".
std::string ReshapeLine(const Shape& from, const Shape& to);

}  // namespace switchyard
