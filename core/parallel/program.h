// The program of a run: which graphs a rank has, in which order a round of micro-batches runs them, and with which
// ranks their collectives communicate. A pure function of what is trained and the settings, without a device, so that
// the Trainer, `explain`, tests and the interpreter of a whole mesh all see the same one.
//
// Passes (passes.h) make it, one after the other; the planner then decomposes, fuses and places. What one pass leaves
// for another stands in the Program. A pass's `legal` says with what it can be combined.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/passes/autocast.h"
#include "core/graph/passes/rewrite.h"
#include "core/nn/context.h"
#include "core/optim/optimizer.h"
#include "core/parallel/data_parallel.h"
#include "core/parallel/loss_scaling.h"
#include "core/parallel/mesh.h"

namespace switchyard {

// What is trained and evaluated: the model and its task as functions that build on a graph.
struct Workload {
  std::string name;  // for messages
  // Makes the batch's inputs; the micro-batch's mean loss on this rank, f32 (1).
  std::function<Value(nn::Context&)> loss;
  std::function<void(nn::Context&)> evaluate;  // makes the batch's inputs and the outputs that evaluation reads
};

// What lies in host memory: the optimizer's state, whose updates then run there; parameters too.
enum class Offload { kNone, kOptimizer, kAll };

struct ProgramOptions {
  Mesh mesh;
  DType precision = DType::kF32;   // of products; kBF16, kF16: mixed precision, as `amp` says
  AmpLevel amp = AmpLevel::kO1;    // with a half precision
  bool norms_in_f32 = true;        // parameters of norms have no half copies, with a half precision
  bool residuals_in_half = false;  // the residual stream too, at O1 (autocast.h)
  LossScaleOptions loss_scale;
  uint64_t seed = 42;
  int accumulation = 1;  // micro-batches of an update
  uint64_t bucket_bytes = 25u << 20;
  bool delay_allreduce = false;         // reductions when the backward pass has ended
  bool hierarchical_allreduce = false;  // sums within nodes before sums between them, by Mesh::nodes
  DType allreduce_dtype = DType::kF32;  // of gradients between ranks: kF32, kF16, kBF16
  PowerSgdOptions power_sgd;            // what ranks send of gradients, from some update on
  std::optional<float> grad_predivide;  // gradients are divided by it before and by W/it behind the reduction; else W
  std::optional<int> recompute;         // every so-many-th block of the model, from the first on, is computed again
  bool sync_batchnorm = false;          // batch norms over the samples of all ranks
  bool broadcast_buffers = true;  // state of the model itself is that of rank 0 where an update ends; else each its own
  bool find_unused_parameters = false;  // their gradients count as zero instead of being an error
  int interleave = 1;                   // chunks of a stage (pipeline_schedule.h)
  bool sequence = false;                // ranks that share a model divide the samples between its divided layers
  int zero = 0;  // the ranks of the data group share 1: the update and its moments, 2: also the sums of gradients, 3:
                 // also the parameters; f32 weights that are read in half in each
  float shard_param_frac = 1;  // with `zero` 3: of the parameters, those of the buckets that are reduced first; of
                               // the rest every rank has all that it reads, as with 2
  OptimizerOptions optimizer;
  Offload offload = Offload::kNone;
  float offload_optim_frac = 1, offload_param_frac = 1;  // of what is offloaded of each, that of the buckets that are
                                                         // reduced first; the rest lies on the device
  int64_t table_length = 1;                              // of the learning-rate table: updates
  bool evaluation_only = false;                          // no other plan
};

// A parameter and the gradient of the plan's loss by it, of the same shape. Before "gradients" there are none; behind
// it `gradient.node` is −1 where the loss does not depend on the parameter, behind "buckets" where ranks share sums.
struct GradientOf {
  Ref parameter, gradient;
};

struct NamedGraph {
  std::string name;  // "begin", "accumulate", "update", "compressed_update"; "evaluate", "evaluate_ema" (the averaged
                     // weights); "halves" where weights have half copies
  Graph graph;
  BucketUse buckets;
  bool trains = true;
  std::vector<GradientOf> gradients;  // of all parameters, in their order; none left where "buckets" keeps sums alone
  std::vector<Ref> flat_gradients;    // behind "buckets": tensors that hold every gradient's elements once, or zeros;
                                      // where ranks share sums, together
  std::vector<SharedBucket> shared;   // behind "buckets": where ranks share the update; members are of `gradients`
  Ref loss_scale;  // behind "loss_scale": f32 (1), what the loss is multiplied by; node −1: there is none
  std::vector<StateMove> moves;  // behind "buckets": of what "update" writes back beside the optimizer's
  Ref finite;                    // behind "update", of the plan that updates: 0 where it left the update out
  std::vector<Ref> steps;        // behind "pipeline": the first value of each step of the stage, in their order
};
// core/graph/passes/rewrite.h on the plan's graph; what the plan says of it stays true.
void RewritePlan(NamedGraph& plan, const std::string& pass, const Rule& rule, const InputRule& inputs = nullptr);

// Which blocks of the model the stages of a pipeline have: part p of the model is on stage p mod `stages`, as its chunk
// p / stages.
struct StageCut {
  int stages = 1, chunks = 1;            // chunks: of a stage
  std::vector<int> part_of_block = {0};  // what stands behind the last block goes with it
  // Parameters and the model's own state, as the plan that updates reads them; other plans need not read them all.
  std::map<std::string, int> part_of_weight = {};
};

inline constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

// Plan number `plan` runs on micro-batch `micro_batch` of the update; in a pipeline on all up to it, whose inputs are
// named as MicroBatchInput (pipeline.h) says.
struct Action {
  int plan = 0, micro_batch = 0;
  int64_t from = 0, until = kForEver;  // of the run's updates, from 0 on, those that it is a part of

  // kForEver: an update behind all changes.
  bool RunsIn(int64_t update) const { return from <= update && (update < until || until == kForEver); }
};

struct Program {
  Mesh mesh;
  int rank = 0;
  std::vector<Group> groups;      // by GroupIndex
  std::vector<NamedGraph> plans;  // outputs of training plans: "loss" f32 (1); of "update" also "lr", "grad_norm" and,
                                  // where the loss is scaled, those of loss_scaling.h
  std::vector<Action> schedule;   // of an update, those that run in it
  std::vector<GradientPlace> gradient_places;  // after "update"
  std::set<std::string> read_in_half;          // behind "half_weights": parameters of which plans read copies alone
  StageCut stages;                             // behind "stages"
  std::vector<Node> elsewhere;                 // behind "pipeline": the inputs that are weights of other stages
  std::map<std::string, int> gathered;  // op → how many of its nodes had "tensor_parallel" make their inputs whole
  // Weights that "tensor_parallel" left whole, for they come in fewer parts, as heads, than there are ranks: by the
  // number of parts.
  std::map<int64_t, int> too_few_parts;

  const NamedGraph* Find(const std::string& plan) const;  // nullptr: there is none
};

// `legal` says whether the pass can run with these options; `apply` changes the plans and may throw BuildError.
// After each the plans are verified.
struct Pass {
  const char* name;
  Status (*legal)(const ProgramOptions&);
  void (*apply)(Program&, const ProgramOptions&);
};

// A model that cannot be built is InvalidArgument and names the source line.
StatusOr<Program> BuildProgram(const Workload& workload, const ProgramOptions& options, int rank);

}  // namespace switchyard
