// softmax over the last axis.
#pragma once

#include "core/graph/graph.h"

namespace switchyard::ops {

Value Softmax(const Value& x, std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
