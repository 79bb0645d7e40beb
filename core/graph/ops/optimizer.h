// The fused multi-tensor update (core/abi/ops.h: optimizer_update), as a node.
#pragma once

#include <vector>

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

struct OptimizerTensor {
  Value parameter, gradient, moment1, moment2;  // moments: none where the kind has none
};
// New values in the order parameter, moment1, moment2 for each tensor (absent moments are none).
std::vector<OptimizerTensor> OptimizerUpdate(const Value& lr, const Value& update, const Value& gradient_scale,
                                             const Value& finite, const std::vector<OptimizerTensor>& tensors,
                                             const sy_optimizer_attributes& attributes,
                                             std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
