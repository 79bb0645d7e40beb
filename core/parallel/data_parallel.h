// Data parallelism as one graph pass: gradients are gathered into flat buckets in the order in which they
// finish, each bucket is summed over the ranks by one all_reduce node, and what the optimizer reads are views of the
// buckets. With one rank there are buckets too (the norm is then computed over a few long tensors), without
// collectives.
//
// Bucket order follows the backward pass (Li et al. 2020, "PyTorch Distributed"): the first bucket is small, so that
// communication starts early. Parameters of which plans read half copies alone have buckets of their own, so that each
// bucket can be gathered in one type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/optim/optimizer.h"
#include "core/parallel/power_sgd.h"

namespace switchyard {

struct DataParallelOptions {
  int world = 1;  // ranks of the group
  int group = 0;  // over which gradients are summed, an index as in Program::groups
  uint64_t bucket_bytes = 25u << 20;
  uint64_t first_bucket_bytes = 1u << 20;  // never more than bucket_bytes
  bool delay_reduction = false;            // one bucket of each kind, reduced when the backward pass has ended
  DType wire = DType::kF32;                // kF16, kBF16: what is reduced is a copy of the bucket in this type
  // The gradients given are divided by it, else by `world`. The sums are multiplied by predivide/world. One rank:
  // ignored.
  std::optional<float> predivide = {};
  // Ranks share the update (core/optim/shared_update.h), each with its part of every bucket: `rank` in the group.
  // kSums: each has the sums of its part alone.
  enum class Share { kNothing, kUpdate, kSums } share = Share::kNothing;
  // By rank of the group, the node that it is on. Where there is something to gain, gradients are summed, and parts
  // assigned, as hierarchical_all_reduce.h says. None: at once.
  std::vector<int> nodes = {};
  int rank = 0;                    // this one's place in the group
  PowerSgdOptions power_sgd = {};  // of plans that compress; not with Share::kSums
  TensorPlace tensor = {};         // among the ranks that divide parameters, for those plans
  uint64_t seed = 0;               // of what that draws
};

// The reduction is a sum. The loss carries the factor 1/(predivide·A), so that no pass over the gradients is spent on
// dividing; by default it is 1/(W·A), and what a half type reduces is of the size of the mean.
float PredivisionOf(const DataParallelOptions& options);  // options.predivide, or what stands for it

// What a plan does with the gradients of its micro-batch. An update of several micro-batches holds its gradients once:
// the first plan writes the buckets, the others add to them, and the last one reduces.
struct BucketUse {
  bool adds = false;        // to what the buckets hold from earlier micro-batches of the update
  bool reduces = true;      // the micro-batch is the update's last
  bool compresses = false;  // what ranks send of the sums: DataParallelOptions::power_sgd
};

// Where a gradient lies after a step: `elements` f32 values of the named place `bucket`, from element `start` on; "":
// it is not kept.
struct GradientPlace {
  std::string parameter, bucket;
  int64_t start = 0, elements = 0;
};

struct Buckets {
  // In the order of `gradients` given; each a view of a bucket, summed over the ranks.
  std::vector<ParameterGradient> gradients;
  std::vector<Value> flat;            // the reduced buckets
  std::vector<SharedBucket> shared;   // where ranks share the update; with kSums instead of `gradients` and `flat`
  std::vector<GradientPlace> places;  // in the order in which the backward pass finishes them
  std::vector<StateMove> moves;       // with BucketUse::compresses
};

// Bucket N lies at "gradients/N" (role kGradient); with Share::kSums only this rank's part does, and where an update
// has several micro-batches each is reduced into it, as ZeRO-2 elsewhere does (more traffic, less memory). Without
// `reduces` it keeps the sums and the result holds only `places`. A parameter whose gradient is none throws BuildError
// naming it, unless `zero_fill`: then it counts as zero. loss_scale: f32 (1), what the gradients are multiplied by;
// none: 1.
Buckets AddDataParallel(Graph& graph, const std::vector<ParameterGradient>& gradients,
                        const DataParallelOptions& options, BucketUse use = {}, bool zero_fill = false,
                        const Value& loss_scale = {});

}  // namespace switchyard
