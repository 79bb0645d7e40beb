// Data parallelism as one graph pass (SPEC 7): gradients are gathered into flat buckets in the order in which they
// finish, each bucket is summed over the ranks by one all_reduce node, and what the optimizer reads are views of the
// buckets. With one rank there are buckets too (the norm is then computed over a few long tensors), without
// collectives.
//
// Bucket order follows the backward pass (Li et al. 2020, "PyTorch Distributed"): the first bucket is small, so that
// communication starts early.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/optim/optimizer.h"

namespace switchyard {

struct DataParallelOptions {
  int world = 1;
  uint64_t bucket_bytes = 25u << 20;
  uint64_t first_bucket_bytes = 1u << 20;  // never more than bucket_bytes
};

// The reduction is a sum: the loss carries the factor 1/(W·A), so that no pass over the gradients is spent on dividing.

// Where in the accumulation round a step stands.
enum class MicroStep { kOnly, kFirst, kMiddle, kLast };

// Where a gradient lies after a step: `elements` f32 values of the named place `bucket`, from element `start` on.
struct GradientPlace {
  std::string parameter, bucket;
  int64_t start = 0, elements = 0;
};

struct Buckets {
  std::vector<ParameterGradient>
      gradients;            // in the order of `gradients` given; each a view of a bucket, summed over the ranks
  std::vector<Value> flat;  // the reduced buckets
  std::vector<GradientPlace> places;  // in the order in which the backward pass finishes them
};

// kOnly: buckets, collectives. kFirst, kMiddle: buckets are added to accumulators ("gradients/N", role kGradient) and
// nothing else happens; the result is empty. kLast: added, then reduced. A parameter whose gradient is none throws
// BuildError naming it, unless `zero_fill`: then it counts as zero.
Buckets AddDataParallel(Graph& graph, const std::vector<ParameterGradient>& gradients,
                        const DataParallelOptions& options, MicroStep micro_step, bool zero_fill = false);

}  // namespace switchyard
