// What norms have in common. Private to core/graph/ops.
#pragma once

#include "core/graph/op.h"

namespace switchyard {

// The vectors beside x (input 0) that start at `first` and end before `last`.
inline void CheckChannels(const Signature& call, size_t first, size_t last) {
  call.Require(call.rank(0) >= 1, "x must have a channel axis");
  for (size_t i = first; i < last; ++i)
    call.Require(call.shape(i) == Shape{call.dim(0, -1)},
                 "gamma, beta and statistics must have the extent of the last axis");
}

inline double NormFlops(const Graph&, const Node& node) {
  return 8.0 * static_cast<double>(node.outputs[0].elements());
}

}  // namespace switchyard
