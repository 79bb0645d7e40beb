// The fused multi-tensor update (core/abi/ops.h: optimizer_update), as a node.
#pragma once

#include <functional>
#include <vector>

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

struct OptimizerTensor {
  Value parameter, gradient, moment1, moment2;  // moments: none where the kind has none
  Value half;                                   // of a result, with half_copies: the parameter, rounded
};
inline bool IsOptimizerUpdate(const Node& node) { return node.op == "optimizer_update"; }
// How many moments each tensor has: 0, 1 or 2.
int OptimizerMoments(const sy_optimizer_attributes& attributes);
// New values for each tensor: parameter, moment1, moment2 (absent moments are none), half in `half_type` where
// attributes.half_copies asks for it.
std::vector<OptimizerTensor> OptimizerUpdate(const Value& lr, const Value& update, const Value& gradient_scale,
                                             const Value& finite, const std::vector<OptimizerTensor>& tensors,
                                             const sy_optimizer_attributes& attributes, DType half_type = DType::kBF16,
                                             std::source_location where = std::source_location::current());

// Does the step of a tensor depend on norms of the whole tensor? LAMB, LARS.
bool HasTrustRatio(const sy_optimizer_attributes& attributes);

// The same by simple ops, tensor by tensor and without half copies; or, with `sum`, where this rank has parts of
// tensors: it adds up over the ranks the squares of whatever has a norm, f32 (n), n the same on all ranks. Tensors of
// which it has nothing are none, and so are their results.
std::vector<OptimizerTensor> OptimizerUpdateByFormulas(const Value& lr, const Value& update,
                                                       const Value& gradient_scale, const Value& finite,
                                                       const std::vector<OptimizerTensor>& tensors,
                                                       const sy_optimizer_attributes& attributes,
                                                       const std::function<Value(const Value& squares)>& sum);

}  // namespace switchyard::ops
