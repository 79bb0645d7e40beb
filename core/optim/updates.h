// The nodes that update tensors: one for all that the formulas treat alike, or where trust ratios need norms of tensors
// of which ranks have parts, simple ops with sums over the ranks between. Internal to core/optim; not thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/graph/ops/optimizer.h"
#include "core/optim/optimizer.h"

namespace switchyard {

// What every update reads, each of one element.
struct UpdateScalars {
  Value lr, update, gradient_scale, finite;
};

const Node& InputOf(const Value& parameter);  // the node that makes it
// State of the optimizer that a parameter has, divided as it is.
InputInfo Following(const Value& parameter);

struct Updates {
  std::vector<Piece> pieces;                  // of tensors; where the update is not shared, all of each
  std::vector<ops::OptimizerTensor> results;  // by piece; moments are assigned, parameters are not
  Value last;                                 // collectives that follow stand behind it
};

// Of shared.buckets, each in turn, once its pieces have their results.
using BucketUpdated = std::function<void(size_t bucket, const Updates& updates)>;

Updates AddUpdates(Graph& graph, const std::vector<ParameterGradient>& gradients, const UpdateScalars& scalars,
                   const OptimizerOptions& options, const SharedUpdate& shared, const BucketUpdated& done,
                   Graph::Location where);

}  // namespace switchyard
