// layer_norm, group_norm and batch_norm. The fusion pass makes a layer_norm of a residual sum from Add and LayerNorm.
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// x (…, C), gamma (C), beta (C) → (…, C)
Value LayerNorm(const Value& x, const Value& gamma, const Value& beta, float eps, Where where = Where::current());
// x (N, …, C), gamma (C), beta (C) → (N, …, C): each sample's channels in `groups` parts, which divide C, each
// normalised over all places
Value GroupNorm(const Value& x, const Value& gamma, const Value& beta, int groups, float eps,
                Where where = Where::current());
// x (…, C) and (C) vectors; training: normalises with the batch's statistics; the new running statistics are for
// Graph::Assign and hand no gradient on.
struct BatchNormed {
  Value y, running_mean, running_var;
};
BatchNormed BatchNorm(const Value& x, const Value& gamma, const Value& beta, const Value& running_mean,
                      const Value& running_var, float eps, float momentum, Where where = Where::current());
Value BatchNormInference(const Value& x, const Value& gamma, const Value& beta, const Value& running_mean,
                         const Value& running_var, float eps, Where where = Where::current());

}  // namespace switchyard::ops
