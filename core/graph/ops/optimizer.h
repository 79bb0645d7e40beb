// The fused multi-tensor update (core/abi/ops.h: optimizer_update), as a node.
#pragma once

#include <vector>

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

struct OptimizerTensor {
  Value parameter, gradient, moment1, moment2;  // moments: none where the kind has none
  Value half;                                   // of a result, with half_copies: the parameter, rounded
};
// How many moments each tensor has: 0, 1 or 2.
int OptimizerMoments(const sy_optimizer_attributes& attributes);
// New values for each tensor: parameter, moment1, moment2 (absent moments are none), half in `half_type` where
// attributes.half_copies asks for it.
std::vector<OptimizerTensor> OptimizerUpdate(const Value& lr, const Value& update, const Value& gradient_scale,
                                             const Value& finite, const std::vector<OptimizerTensor>& tensors,
                                             const sy_optimizer_attributes& attributes, DType half_type = DType::kBF16,
                                             std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
