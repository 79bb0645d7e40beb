// Chains of elementwise ops become one pointwise program: a producer that one pointwise node alone reads is joined into
// it, where `can_prepare` says that the longer program exists. Nothing is computed twice but constants. What lies
// between them is no longer rounded to a half; what is cast for the sake of rounding still is.
#pragma once

#include "core/graph/passes/rewrite.h"

namespace switchyard {

Graph JoinPointwiseChains(Graph graph, const CanPrepare& can_prepare);

}  // namespace switchyard
