#include "core/parallel/passes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/graph/gradients.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/structure.h"
#include "core/graph/passes/autocast.h"
#include "core/optim/parameter_rules.h"
#include "core/parallel/half_weights.h"
#include "core/parallel/hierarchical_all_reduce.h"
#include "core/parallel/loss_scaling.h"

namespace switchyard {
namespace {

Status AlwaysLegal(const ProgramOptions&) { return OkStatus(); }

Status AutocastLegal(const ProgramOptions& o) {
  if (o.precision == DType::kF32 || o.precision == DType::kBF16 || o.precision == DType::kF16) return OkStatus();
  return InvalidArgument("precision {}: expected fp32, bf16 or fp16", NameOf(o.precision));
}
void ApplyAutocast(Program& program, const ProgramOptions& o) {
  if (o.precision == DType::kF32) return;
  for (NamedGraph& plan : program.plans)
    plan.graph = Autocast(plan.graph, {.half = o.precision,
                                       .level = o.amp,
                                       .norms_in_f32 = o.norms_in_f32,
                                       .residuals_in_half = o.residuals_in_half});
}

// The value that output node `name` shows.
Value Shown(Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes()) {
    if (IsOutput(node) && node.name == name) return graph.value(node.inputs[0]);
  }
  throw BuildError("the graph has no output " + name);
}

// What a loss sums over the ranks of the data group is summed already where there is one.
void ApplyRankSums(Program& program, const ProgramOptions& o) {
  if (o.mesh.data > 1) return;
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    const Graph& source = plan.graph;
    RewritePlan(plan, "rank_sums", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
      const Node& node = source.node(id);
      if (ExchangeOf(node) != Exchange::kAllReduce ||
          node.attributes.as<sy_collective_attributes>().group != kDataGroup)
        return std::nullopt;
      return r.Map(node.inputs);
    });
  }
}

DataParallelOptions DataParallelOf(const ProgramOptions& o) {
  DataParallelOptions options;
  options.world = o.mesh.data;
  options.group = kDataGroup;
  options.bucket_bytes = o.bucket_bytes;
  options.delay_reduction = o.delay_allreduce;
  options.wire = o.allreduce_dtype;
  options.predivide = o.grad_predivide;
  options.power_sgd = o.power_sgd;
  options.seed = o.seed;
  using Share = DataParallelOptions::Share;
  if (o.zero > 0 && o.mesh.data > 1) options.share = o.zero == 1 ? Share::kUpdate : Share::kSums;
  return options;
}

Status GradientsLegal(const ProgramOptions& o) {
  if (o.accumulation < 1) return InvalidArgument("accumulation {}: expected at least 1", o.accumulation);
  return OkStatus();
}
// Sums over micro-batches and ranks are then the gradient of the update's mean loss, where "buckets" multiplies by what
// predivision leaves.
void ApplyGradients(Program& program, const ProgramOptions& o) {
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    Graph& graph = plan.graph;
    TellLayers(graph);
    std::vector<Value> parameters;
    for (const int id : graph.Inputs(Role::kParameter)) parameters.push_back(graph.value({id, 0}));
    if (parameters.empty()) throw BuildError("the model has no parameters: there is nothing to train");
    const Value loss = Shown(graph, "loss");
    graph.SetPhase(Phase::kBackward);
    Value share = ops::Scale(loss, 1.0f / (static_cast<float>(o.accumulation) * PredivisionOf(DataParallelOf(o))));
    if (plan.loss_scale.node >= 0) share = ops::Mul(share, graph.value(plan.loss_scale));
    const std::vector<Value> gradients = Gradients(share, parameters);
    graph.SetPhase(Phase::kForward);
    for (size_t i = 0; i < parameters.size(); ++i)
      plan.gradients.push_back({parameters[i].ref(), gradients[i] ? gradients[i].ref() : Ref()});
  }
}

// Training plans are alike up to their gradients: so far one, the first plan, stands for all.
void ApplyMicroBatches(Program& program, const ProgramOptions& o) {
  if (o.evaluation_only) return;
  NamedGraph training = std::move(program.plans[0]);
  std::vector<NamedGraph> plans;
  const auto add = [&](NamedGraph plan, const char* name, BucketUse buckets) {
    plan.name = name;
    plan.buckets = buckets;
    plans.push_back(std::move(plan));
    return static_cast<int>(plans.size()) - 1;
  };
  const int begin = o.accumulation > 1 ? add(training, "begin", {false, false}) : 0;
  const int accumulate = o.accumulation > 2 ? add(training, "accumulate", {true, false}) : 0;
  for (int a = 0; a + 1 < o.accumulation; ++a) program.schedule.push_back({a == 0 ? begin : accumulate, a});
  const bool compresses = o.power_sgd.rank > 0 && o.power_sgd.start < o.table_length;
  const int update = add(compresses ? NamedGraph(training) : std::move(training), "update", {o.accumulation > 1, true});
  program.schedule.push_back({update, o.accumulation - 1});
  if (compresses) {
    program.schedule.back().until = o.power_sgd.start;
    const int compressed = add(std::move(training), "compressed_update", {o.accumulation > 1, true, true});
    program.schedule.push_back({compressed, o.accumulation - 1, o.power_sgd.start});
  }
  std::move(program.plans.begin() + 1, program.plans.end(), std::back_inserter(plans));
  program.plans = std::move(plans);
}

std::vector<ParameterGradient> PairsOf(const Program& program, NamedGraph& plan) {
  std::vector<ParameterGradient> pairs;
  for (const auto& [parameter, gradient] : plan.gradients) {
    pairs.push_back({plan.graph.value(parameter), gradient.node < 0 ? Value() : plan.graph.value(gradient),
                     HalfWeightOf(plan.graph, parameter),
                     program.read_in_half.contains(plan.graph.node(parameter.node).name)});
  }
  return pairs;
}

// One rank is to find what several do, of gradients of which each rank has its own.
Status PowerSgdLegal(const ProgramOptions& o) {
  if (o.power_sgd.rank == 0) return OkStatus();
  if (o.power_sgd.rank < 0 || o.power_sgd.rank > kLargestPowerSgdRank)
    return InvalidArgument("--matrix_approximation_rank={}: expected 1 to {}", o.power_sgd.rank, kLargestPowerSgdRank);
  if (o.power_sgd.start < 2) return InvalidArgument("--start_compress_iter={}: expected at least 2", o.power_sgd.start);
  if (o.zero > 1)
    return Unimplemented(
        "--powersgd_compression with --zero={}, where no rank has the gradients of a whole update: not there yet; use "
        "--allreduce_dtype=bf16, which halves what is sent, or --zero=1",
        o.zero);
  return OkStatus();
}

Status BucketsLegal(const ProgramOptions& o) {
  if (o.allreduce_dtype != DType::kF32 && o.allreduce_dtype != DType::kF16 && o.allreduce_dtype != DType::kBF16)
    return InvalidArgument("gradients reduced in {}: expected fp32, fp16 or bf16", NameOf(o.allreduce_dtype));
  if (o.grad_predivide && (!(*o.grad_predivide > 0) || !std::isfinite(*o.grad_predivide)))
    return InvalidArgument("gradients divided by {:g}: expected a finite number above 0", *o.grad_predivide);
  if (o.evaluation_only) return OkStatus();  // which adds no gradients
  SY_RETURN_IF_ERROR(PowerSgdLegal(o));
  // They add what they hold in common in one order only if their nodes look alike.
  for (size_t rank = 0; o.hierarchical_allreduce && o.mesh.data > 1 && rank < o.mesh.nodes.size(); ++rank) {
    const size_t first = rank - rank % static_cast<size_t>(o.mesh.tensor);
    if (o.mesh.nodes[rank] == o.mesh.nodes[first]) continue;
    return InvalidArgument(
        "ranks {} and {} share a model and are on two nodes, which hierarchical sums cannot follow; use as many ranks "
        "a node as --tp={} divides, or --hierarchical_allreduce=0",
        first, rank, o.mesh.tensor);
  }
  return OkStatus();
}
// As `program.rank` sees them.
DataParallelOptions DataParallelOf(const Program& program, const ProgramOptions& o) {
  DataParallelOptions options = DataParallelOf(o);
  options.rank = o.mesh.DataRankOf(program.rank);
  options.tensor = {o.mesh.tensor, program.rank % o.mesh.tensor};
  if (program.groups.size() > kNodeGroup) {
    for (const int rank : program.groups[kDataGroup].ranks)
      options.nodes.push_back(o.mesh.nodes[static_cast<size_t>(rank)]);
  }
  return options;
}

void ApplyBuckets(Program& program, const ProgramOptions& o) {
  const DataParallelOptions options = DataParallelOf(program, o);
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    const Buckets buckets =
        AddDataParallel(plan.graph, PairsOf(program, plan), options, plan.buckets, o.find_unused_parameters,
                        plan.loss_scale.node < 0 ? Value() : plan.graph.value(plan.loss_scale));
    plan.shared = buckets.shared;
    plan.moves = buckets.moves;
    if (plan.buckets.reduces) program.gradient_places = buckets.places;
    if (options.share == DataParallelOptions::Share::kSums) {
      for (GradientOf& pair : plan.gradients) pair.gradient = {};
      if (!plan.buckets.reduces) plan.gradients.clear();
      for (const SharedBucket& bucket : plan.shared) plan.flat_gradients.push_back(bucket.sums);
      continue;
    }
    plan.gradients.clear();
    for (const ParameterGradient& pair : buckets.gradients)
      plan.gradients.push_back({pair.parameter.ref(), pair.gradient.ref()});
    for (const Value& flat : buckets.flat) plan.flat_gradients.push_back(flat.ref());
  }
}

// Σ g² over all gradients. Ranks of a tensor group divide weights, and each adds the squares of its parts and its
// share of those of whole weights; where ranks of the data group share sums, each adds those of its own. So norm,
// clipping and what follows from them have the same bits on all.
Value SquaredGradients(const Program& program, NamedGraph& plan, const SharedUpdate& shared) {
  Graph& graph = plan.graph;
  const auto is_part = [&](const GradientOf& pair) {
    return DividedWeight(*graph.node(pair.parameter.node).input) != nullptr;
  };
  const bool shares_sums = plan.gradients[0].gradient.node < 0;
  std::vector<Value> whole, parts;
  Value squares;
  if (program.mesh.tensor > 1) {
    if (shares_sums) {
      for (const Piece& piece : PiecesOf(graph, PairsOf(program, plan), shared, Graph::Location::current())) {
        if (piece.elements > 0) (is_part(plan.gradients[piece.tensor]) ? parts : whole).push_back(piece.gradient);
      }
    } else {
      for (const GradientOf& pair : plan.gradients)
        (is_part(pair) ? parts : whole).push_back(graph.value(pair.gradient));
    }
    squares = parts.empty() ? ops::Full(graph, {1}, 0) : ops::SquaredNorm(parts);
    if (!whole.empty())
      squares = ops::Add(squares, ops::Scale(ops::SquaredNorm(whole), 1 / static_cast<float>(program.mesh.tensor)));
    squares = ops::AllReduce(squares, SY_SUM, 1, kTensorGroup, "squared_norm/sum");
  } else {
    for (const Ref& ref : plan.flat_gradients) whole.push_back(graph.value(ref));
    squares = ops::SquaredNorm(whole);
  }
  return shares_sums ? ops::AllReduce(squares, SY_SUM, 1, kDataGroup, "squared_norm/sum_of_shares") : squares;
}

void ApplyUpdate(Program& program, const ProgramOptions& o) {
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains || !plan.buckets.reduces) continue;
    plan.graph.SetPhase(Phase::kUpdate);
    const SharedUpdate shared = SharedUpdateOf(program, o, plan);
    Value squares = SquaredGradients(program, plan, shared);
    if (o.mesh.pipeline > 1) squares = ops::AllReduce(squares, SY_SUM, 1, kPipelineGroup, "squared_norm/stages");
    Value inverse_scale;
    if (plan.loss_scale.node >= 0)
      inverse_scale = ops::Div(ops::Full(plan.graph, {1}, 1), plan.graph.value(plan.loss_scale));
    plan.finite =
        AddOptimizer(plan.graph, PairsOf(program, plan), squares, o.optimizer, o.table_length, inverse_scale, shared)
            .ref();
    for (const StateMove& move : plan.moves)
      ops::AssignWhen(plan.graph.value(plan.finite), plan.graph.value(move.state), plan.graph.value(move.next));
  }
}

}  // namespace

Pass AutocastPass() { return {"autocast", AutocastLegal, ApplyAutocast}; }
Pass RankSumsPass() { return {"rank_sums", AlwaysLegal, ApplyRankSums}; }
Pass GradientsPass() { return {"gradients", GradientsLegal, ApplyGradients}; }
Pass MicroBatchesPass() { return {"micro_batches", AlwaysLegal, ApplyMicroBatches}; }
Pass BucketsPass() { return {"buckets", BucketsLegal, ApplyBuckets}; }
Pass UpdatePass() { return {"update", AlwaysLegal, ApplyUpdate}; }

SharedUpdate SharedUpdateOf(const Program& program, const ProgramOptions& o, const NamedGraph& plan) {
  const DataParallelOptions options = DataParallelOf(program, o);
  if (options.share == DataParallelOptions::Share::kNothing) return {};
  return {options.world, PartOfRank(options.nodes, options.rank), kDataGroup,
          GathersOfParts(options.nodes, options.rank, options.world), plan.shared};
}

const std::vector<Pass>& Passes() {
  static const std::vector<Pass> passes = {
      AutocastPass(),  LossScalePass(),     RankSumsPass(),     GradientsPass(),      WideGradientsPass(),
      StagesPass(),    SyncBatchNormPass(), MicroBatchesPass(), TensorParallelPass(), HalfWeightsPass(),
      RecomputePass(), PipelinePass(),      ModelStatePass(),   BucketsPass(),        ShardedParametersPass(),
      UpdatePass(),    OffloadPass(),       ScalerPass(),       StagePartsPass()};
  return passes;
}

}  // namespace switchyard
