// How the passes make a program: each leaves for the next what it says, a careless one is named, what cannot be
// combined is refused by name.
#include "core/parallel/program.h"

#include <set>

#include "core/graph/op.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/optimizer.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/transfer.h"
#include "core/nn/convolution.h"
#include "core/nn/layers.h"
#include "core/parallel/passes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/vit.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

VisionTransformerConfig Small() {
  VisionTransformerConfig c = {.image_size = 28, .channels = 1, .classes = 10, .patch = 7, .width = 32, .depth = 3};
  c.heads = 2;
  c.mlp_ratio = 2;
  c.dropout = 0.1f;
  return c;
}

Workload Classifier(const VisionTransformerConfig& c) {
  const auto logits = [c](nn::Context& context) {
    const Value images = context.graph.Input("images", {DType::kF32, {4, c.image_size, c.image_size, 1}}, {});
    return VisionTransformer(c, context, images);
  };
  return {"vit",
          [logits](nn::Context& context) {
            const Value labels = context.graph.Input("labels", {DType::kI32, {4}}, {});
            return ops::Mean(ops::CrossEntropy(logits(context), labels, 0));
          },
          [logits](nn::Context& context) { context.graph.Output("logits", logits(context)); }};
}

Program Build(const ProgramOptions& options, const Workload& workload = Classifier(Small())) {
  auto program = BuildProgram(workload, options, 0);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  return program.ok() ? std::move(*program) : Program();
}

// The plans before any pass: what BuildProgram starts with, of one training plan.
Program Forward(const ProgramOptions& options) {
  Program program;
  program.mesh = options.mesh;
  NamedGraph& plan = program.plans.emplace_back(NamedGraph{"update", {}, {false, true}, true, {}, {}, {}, {}});
  nn::Context context(plan.graph, true, options.seed);
  plan.graph.Output("loss", Classifier(Small()).loss(context));
  return program;
}

TEST(ProgramPasses, LeaveTheGradientsForEachOther) {
  const ProgramOptions options;
  Program program = Forward(options);
  NamedGraph& plan = program.plans[0];
  EXPECT_TRUE(plan.gradients.empty());
  GradientsPass().apply(program, options);
  const std::vector<int> parameters = plan.graph.Inputs(Role::kParameter);
  ASSERT_EQ(plan.gradients.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(plan.gradients[i].parameter, (Ref{parameters[i], 0}));
    EXPECT_EQ(plan.graph.node(plan.gradients[i].gradient.node).phase, Phase::kBackward);
  }
  EXPECT_TRUE(plan.flat_gradients.empty());
  BucketsPass().apply(program, options);
  ASSERT_EQ(plan.gradients.size(), parameters.size());
  EXPECT_FALSE(plan.flat_gradients.empty());
  int64_t elements = 0, flat = 0;
  for (const GradientOf& pair : plan.gradients) elements += plan.graph.type(pair.gradient).elements();
  for (const Ref& ref : plan.flat_gradients) flat += plan.graph.type(ref).elements();
  EXPECT_GE(flat, elements);
  EXPECT_EQ(program.gradient_places.size(), parameters.size());
  UpdatePass().apply(program, options);
  int assigned = 0;
  for (const Node& node : plan.graph.nodes()) {
    if (node.op == "assign") assigned += plan.graph.node(node.inputs[0].node).input->role == Role::kParameter;
  }
  EXPECT_EQ(assigned, static_cast<int>(parameters.size()));
}

TEST(ProgramPasses, MayRewriteTheGraphBetweenGradientsAndBuckets) {
  const ProgramOptions options;
  Program program = Forward(options);
  GradientsPass().apply(program, options);
  NamedGraph& plan = program.plans[0];
  std::vector<std::string> before, after;
  for (const GradientOf& pair : plan.gradients) before.push_back(plan.graph.node(pair.gradient.node).name);
  // A pass that puts a node behind each product.
  const Graph source = plan.graph;
  RewritePlan(plan, "a pass", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    if (source.node(id).op != "matmul") return std::nullopt;
    std::vector<Value> copy = r.result.Clone(source.node(id), r.Map(source.node(id).inputs));
    ops::Scale(copy[0], 2);
    return copy;
  });
  EXPECT_GT(plan.graph.size(), source.size());
  for (const GradientOf& pair : plan.gradients) {
    after.push_back(plan.graph.node(pair.gradient.node).name);
    EXPECT_EQ(plan.graph.type(pair.gradient).shape, plan.graph.type(pair.parameter).shape);
  }
  EXPECT_EQ(after, before);
}

TEST(ProgramPasses, PlansThatKeepSumsHaveNoGradientsLeft) {
  ProgramOptions options;
  options.accumulation = 3;
  const Program program = Build(options);
  for (const char* name : {"begin", "accumulate"}) {
    EXPECT_TRUE(program.Find(name)->gradients.empty()) << name;
    EXPECT_TRUE(program.Find(name)->flat_gradients.empty()) << name;
  }
  EXPECT_FALSE(program.Find("update")->gradients.empty());
  EXPECT_TRUE(program.Find("evaluate")->gradients.empty());
}

TEST(ProgramPasses, WhatCannotBeCombinedIsRefusedByThePassThatCannot) {
  const auto refusal = [](const ProgramOptions& options) {
    return Message(BuildProgram(Classifier(Small()), options, 0).status());
  };
  ProgramOptions pipeline, half, none;
  pipeline.mesh.pipeline = 2;
  EXPECT_THAT(refusal(pipeline),
              HasSubstr("pipeline: --pp=2 with 1 micro-batch an update: expected at least as many as stages"));
  half.precision = DType::kF64;
  EXPECT_THAT(refusal(half), HasSubstr("autocast: precision f64: expected fp32, bf16 or fp16"));
  none.accumulation = 0;
  EXPECT_THAT(refusal(none), HasSubstr("gradients: accumulation 0"));
  ProgramOptions undivided, no_block;
  undivided.grad_predivide = 0;
  EXPECT_THAT(refusal(undivided), HasSubstr("buckets: gradients divided by 0: expected a finite number above 0"));
  no_block.recompute = 0;
  EXPECT_THAT(refusal(no_block), HasSubstr("recompute: recompute 0: expected every how-many-th block, 1 or more"));
  ProgramOptions scaler;
  scaler.loss_scale = {.dynamic = true, .initial = 1024, .hysteresis = 0};
  EXPECT_THAT(refusal(scaler), HasSubstr("loss_scale: growth interval 1000, hysteresis 0: expected 1 to"));
  scaler.loss_scale = {.dynamic = true, .initial = 1024, .maximum = 512};
  EXPECT_THAT(refusal(scaler), HasSubstr("loss scales from 1 over 1024 to 512"));
}

TEST(ProgramPasses, RefuseAModelWithoutParameters) {
  Workload workload = Classifier(Small());
  workload.loss = [](nn::Context& context) {
    return ops::Mean(context.graph.Input("images", {DType::kF32, {4, 8}}, {}));
  };
  EXPECT_THAT(Message(BuildProgram(workload, {}, 0).status()), HasSubstr("the model has no parameters"));
}

// A new pass: its name here, its line in the comment of passes.h, its row in core/parallel/README.md.
TEST(ProgramPasses, AreInTheirOrder) {
  std::vector<std::string> names;
  for (const Pass& pass : Passes()) names.push_back(pass.name);
  EXPECT_EQ(names, (std::vector<std::string>{"autocast", "loss_scale", "rank_sums", "gradients", "wide_gradients",
                                             "stages", "sync_batch_norm", "micro_batches", "tensor_parallel",
                                             "half_weights", "recompute", "pipeline", "state", "buckets",
                                             "sharded_parameters", "update", "offload", "scaler", "stage_parts"}));
}

// By bucket: how many updates run on the host and on the device, and the moments that lie on the host.
struct Updates {
  int on_host = 0, on_device = 0, stores = 0;
  std::set<std::string> moments;
  int64_t elements = 0;  // of the moments
};

Updates UpdatesOf(const Program& program) {
  Updates updates;
  const Graph& graph = program.Find("update")->graph;
  for (const Node& node : graph.nodes()) {
    if (ops::IsOptimizerUpdate(node)) ++(node.host ? updates.on_host : updates.on_device);
    updates.stores += IsStore(node);
    if (!node.input || !node.input->host) continue;
    EXPECT_EQ(node.input->role, Role::kState);
    updates.moments.insert(node.name);
    updates.elements += node.outputs[0].elements();
  }
  return updates;
}

TEST(OffloadedUpdates, RunBucketByBucketWhereTheirMomentsLie) {
  ProgramOptions options;
  options.bucket_bytes = 20000;
  options.accumulation = 2;
  const Program without = Build(options);
  const auto buckets = static_cast<int>(without.Find("update")->flat_gradients.size());
  ASSERT_GT(buckets, 3);
  const auto parameters = without.Find("update")->graph.Inputs(Role::kParameter).size();
  EXPECT_TRUE(UpdatesOf(without).moments.empty());
  options.offload = Offload::kOptimizer;
  const Program all = Build(options);
  const Updates updates = UpdatesOf(all);
  EXPECT_EQ(updates.moments.size(), 2 * parameters);
  EXPECT_EQ(updates.on_device, 0);
  EXPECT_GE(updates.on_host, buckets);
  EXPECT_LE(updates.on_host, 2 * buckets) << "what decays and what does not";
  // Four scalars, each bucket of gradients, each parameter.
  EXPECT_EQ(updates.stores, 4 + buckets + static_cast<int>(parameters));
  for (const NamedGraph& plan : all.plans) {
    if (plan.name == "update") continue;
    for (const Node& node : plan.graph.nodes()) EXPECT_FALSE(node.host) << plan.name;
  }
  options.offload_optim_frac = 0.4f;
  const Updates some = UpdatesOf(Build(options));
  EXPECT_GT(some.on_device, 0);
  EXPECT_GE(static_cast<double>(some.elements), 0.4 * static_cast<double>(updates.elements));
  EXPECT_LT(static_cast<double>(some.elements), 0.4 * static_cast<double>(updates.elements) + 2 * 5000 + 2 * 3072)
      << "a bucket more at most";
  EXPECT_TRUE(some.moments.contains("moment1/head.weight")) << "whose gradient is there first";
  options.offload_optim_frac = 0;
  EXPECT_EQ(UpdatesOf(Build(options)).on_host, 0);
  options.offload_optim_frac = 1;
  options.optimizer.kind = SY_OPTIMIZER_SGD;
  EXPECT_EQ(UpdatesOf(Build(options)).on_host, 0) << "without momentum there is no state";
}

// Where parameters and what follows them lie, and what goes each way.
struct OffloadedInputs {
  std::set<std::string> parameters;
  int64_t elements = 0;  // of those
  int others = 0;        // their copies, averages and moments
  std::map<Phase, int> fetches;
  int stores = 0;
};

OffloadedInputs OffloadedOf(const Graph& graph) {
  OffloadedInputs found;
  for (const Node& node : graph.nodes()) {
    found.stores += IsStore(node);
    if (IsFetch(node)) ++found.fetches[node.phase];
    if (!node.input || !node.input->host) continue;
    if (node.input->role != Role::kParameter) {
      ++found.others;
      continue;
    }
    found.parameters.insert(node.name);
    found.elements += node.outputs[0].elements();
  }
  return found;
}

TEST(OffloadedParameters, AreFetchedByEachPassAndUpdatedWhereTheyLie) {
  ProgramOptions options;
  options.bucket_bytes = 20000;
  options.accumulation = 2;
  options.offload = Offload::kAll;
  options.optimizer.ema_decay = 0.9f;
  const Program all = Build(options);
  const Graph& update = all.Find("update")->graph;
  const auto count = static_cast<int>(update.Inputs(Role::kParameter).size());
  const auto buckets = static_cast<int>(all.Find("update")->flat_gradients.size());
  for (const char* plan : {"begin", "update", "evaluate"}) {
    SCOPED_TRACE(plan);
    const OffloadedInputs found = OffloadedOf(all.Find(plan)->graph);
    EXPECT_EQ(found.parameters.size(), static_cast<size_t>(count));
    EXPECT_EQ(found.fetches.at(Phase::kForward), count);
    EXPECT_EQ(found.fetches.count(Phase::kBackward), std::string(plan) == "evaluate" ? 0 : 1);
    EXPECT_EQ(found.fetches.count(Phase::kUpdate), 0) << "nobody there reads a new parameter";
  }
  EXPECT_EQ(OffloadedOf(update).others, 3 * count) << "moments and averages";
  EXPECT_EQ(OffloadedOf(update).stores, 4 + buckets + 1) << "scalars, gradients, how far averages move";
  EXPECT_EQ(OffloadedOf(all.Find("evaluate_ema")->graph).fetches.at(Phase::kForward), count);
  options.optimizer.ema_decay = 0;
  options.optimizer.kind = SY_OPTIMIZER_SGD;
  const Program without_moments = Build(options);
  for (const Node& node : without_moments.Find("update")->graph.nodes())
    EXPECT_TRUE(node.host || !ops::IsOptimizerUpdate(node));
  options.offload_param_frac = 0.4f;
  const OffloadedInputs some = OffloadedOf(Build(options).Find("update")->graph), of_all = OffloadedOf(update);
  EXPECT_GE(static_cast<double>(some.elements), 0.4 * static_cast<double>(of_all.elements));
  EXPECT_LT(static_cast<double>(some.elements), 0.4 * static_cast<double>(of_all.elements) + 5000 + 3072)
      << "a bucket more at most";
  EXPECT_TRUE(some.parameters.contains("head.weight")) << "whose gradient is there first";
  options.offload_param_frac = 0;
  EXPECT_TRUE(OffloadedOf(Build(options).Find("update")->graph).parameters.empty());
}

// One plan holds all micro-batches of a stage, and would else keep what the first one fetched for the last.
TEST(OffloadedParameters, AreFetchedByEachStepOfAStage) {
  ProgramOptions options;
  options.mesh.pipeline = 2;
  options.accumulation = 4;
  options.offload = Offload::kAll;
  for (const bool recompute : {false, true}) {
    SCOPED_TRACE(recompute);
    if (recompute) options.recompute = 1;
    const Program program = Build(options);
    const NamedGraph& update = *program.Find("update");
    ASSERT_EQ(update.steps.size(), 8u) << "a forward and a backward one for each micro-batch";
    const OffloadedInputs found = OffloadedOf(update.graph);
    if (!recompute) {
      EXPECT_EQ(found.fetches.at(Phase::kForward), 4 * static_cast<int>(found.parameters.size()));
    }
    std::map<int, std::set<size_t>> readers;  // by fetch: the steps that read it
    size_t step = 0;
    for (int id = 0; id < update.graph.size(); ++id) {
      while (step < update.steps.size() && update.steps[step].node <= id) ++step;
      for (const Ref& input : update.graph.node(id).inputs) {
        if (IsFetch(update.graph.node(input.node))) readers[input.node].insert(step);
      }
    }
    EXPECT_GT(readers.size(), 4 * found.parameters.size());
    for (const auto& [fetch, steps] : readers) EXPECT_EQ(steps.size(), 1u) << update.graph.node(fetch).name;
  }
}

TEST(OffloadedUpdates, OfGradientsOfLowRankGetThemBucketByBucket) {
  ProgramOptions options;
  options.bucket_bytes = 20000;
  options.offload = Offload::kOptimizer;
  options.power_sgd = {1, 2};
  options.table_length = 3;
  for (const int zero : {0, 1}) {
    SCOPED_TRACE(zero);
    options.zero = zero;
    options.mesh.data = 2;
    const Program program = Build(options);
    const auto stores = [&](const char* plan) { return OffloadedOf(program.Find(plan)->graph).stores; };
    EXPECT_GT(stores("update"), 0);
    EXPECT_EQ(stores("compressed_update"), stores("update"));
  }
}

// Where ranks add up norms in the middle of an update, it is a formula: what reads moments runs where they lie, and
// norms alone, of what is there, go to the device for their sum.
TEST(OffloadedUpdates, WithNormsOverRanksRunOnTheHostButForTheirSums) {
  ProgramOptions options;
  options.offload = Offload::kOptimizer;
  options.optimizer.kind = SY_OPTIMIZER_LAMB;
  options.optimizer.weight_decay = 0.01f;
  options.mesh.data = 2;
  options.zero = 1;
  const Program program = Build(options);
  const Graph& graph = program.Find("update")->graph;
  int of_moments = 0, norms = 0, sums = 0;
  for (const Node& node : graph.nodes()) {
    if (node.name.starts_with("trust_ratio/sum")) {
      ++sums;
      EXPECT_FALSE(node.host);
      EXPECT_LE(node.outputs[0].elements(), 2 * static_cast<int64_t>(program.Find("update")->gradients.size()));
    }
    bool reads_moment = false;
    for (const Ref& input : node.inputs) {
      const Node& read = graph.node(input.node);
      reads_moment = reads_moment || (read.input && read.input->host && read.name.starts_with("moment"));
    }
    if (reads_moment && FamilyOf(node.op) == "pointwise") {
      ++of_moments;
      EXPECT_TRUE(node.host) << node.name;
    }
    if (node.op == "squared_norm" && node.host) ++norms;
  }
  EXPECT_GT(of_moments, 0);
  EXPECT_GT(norms, 0);
  EXPECT_EQ(sums, 1);
}

// Weights in half are inputs of every plan, written where the parameter is; nothing casts a parameter any more.
TEST(LowRankGradients, EndUpdatesFromTheirStartOn) {
  ProgramOptions options;
  options.mesh.data = 2;
  options.accumulation = 2;
  options.power_sgd = {2, 5};
  options.table_length = 6;
  const Program program = Build(options);
  const auto plans_of = [&](int64_t update) {
    std::vector<std::string> names;
    for (const Action& action : program.schedule) {
      if (action.RunsIn(update)) names.push_back(program.plans[static_cast<size_t>(action.plan)].name);
    }
    return names;
  };
  for (const int64_t plain : {0, 4}) EXPECT_THAT(plans_of(plain), testing::ElementsAre("begin", "update"));
  for (const int64_t compressed : {int64_t{5}, int64_t{6}, kForEver})
    EXPECT_THAT(plans_of(compressed), testing::ElementsAre("begin", "compressed_update"));

  // Errors are each rank's own; they and the factors are written back where the update is made.
  const Graph& graph = program.Find("compressed_update")->graph;
  std::set<std::string> own, moved;
  for (const Node& node : graph.nodes()) {
    if (node.input && node.input->of_rank) own.insert(node.name);
    if (node.op != "assign") continue;
    const std::string& state = graph.node(node.inputs[0].node).name;
    if (!IsPowerSgdState(state)) continue;
    moved.insert(state);
    const Node& selected = graph.node(node.inputs[1].node);
    EXPECT_EQ(selected.inputs[1], program.Find("compressed_update")->finite) << state << " moves where all is finite";
  }
  EXPECT_TRUE(own.contains("power_sgd_error/blocks.0.mlp.fc1.weight"));
  EXPECT_FALSE(own.contains("power_sgd_error/blocks.0.mlp.fc1.bias"));
  EXPECT_EQ(moved.size(), 2 * own.size());
  for (const Node& node : program.Find("update")->graph.nodes()) EXPECT_FALSE(node.input && node.input->of_rank);

  options.table_length = 5;
  EXPECT_EQ(Build(options).Find("compressed_update"), nullptr) << "it would begin when the run ends";
}

// Of a divided weight each rank compresses its part; what it has of the states is said as parts of whole ones.
TEST(LowRankGradients, OfDividedWeightsAreThoseOfTheParts) {
  ProgramOptions options;
  options.mesh = {.data = 2, .tensor = 2};
  options.power_sgd = {3, 2};
  options.table_length = 3;
  const auto program = BuildProgram(Classifier(Small()), options, 1);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  const Graph& graph = program->Find("compressed_update")->graph;
  const auto state = [&](const std::string& name) -> const Node& {
    return *std::find_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& n) { return n.name == name; });
  };
  for (const auto& [name, dimension] : {std::pair{"blocks.0.mlp.fc1.weight", 0}, {"blocks.0.mlp.fc2.weight", 1}}) {
    SCOPED_TRACE(name);
    const Node &weight = state(name), &error = state(std::string("power_sgd_error/") + name),
               &factor = state(std::string("power_sgd_factor/") + name);
    ASSERT_TRUE(weight.input->part && error.input->part && factor.input->part);
    ASSERT_EQ(weight.input->part->axis.dimension, dimension);
    const Shape &part = weight.outputs[0].shape, &whole = weight.input->part->whole;
    EXPECT_EQ(error.outputs[0].shape, part);
    EXPECT_EQ(error.input->part->whole, whole);
    EXPECT_EQ(factor.outputs[0].shape, Shape({3, part[1]}));
    EXPECT_EQ(factor.input->part->whole, Shape({dimension == 0 ? 6 : 3, whole[1]}));
    EXPECT_EQ(ShapeOf(*factor.input->part), factor.outputs[0].shape);
    EXPECT_EQ(factor.input->part->begin, dimension == 0 ? 1 : whole[1] / 2);
    EXPECT_EQ(factor.input->part->group, kTensorGroup);
  }
  for (const Node& node : graph.nodes()) {
    if (node.name.starts_with("power_sgd_p/") || node.name.starts_with("power_sgd_q/")) {
      EXPECT_EQ(node.attributes.as<sy_collective_attributes>().group, kDataGroup) << node.name;
    }
  }
}

// Each stage compresses what it has, and knows of the states of others that it has nothing of them.
TEST(LowRankGradients, OfAPipelineAreThoseOfItsStages) {
  ProgramOptions options;
  options.mesh = {.data = 2, .pipeline = 2};
  options.accumulation = 2;
  options.power_sgd = {1, 2};
  options.table_length = 3;
  std::set<std::string> all, held[2];
  for (const int stage : {0, 1}) {
    const auto program = BuildProgram(Classifier(Small()), options, stage);
    ASSERT_TRUE(program.ok()) << Message(program.status());
    ASSERT_EQ(program->schedule.size(), 2u);
    EXPECT_EQ(program->plans[static_cast<size_t>(program->schedule[0].plan)].name, "update");
    EXPECT_EQ(program->schedule[0].until, 2);
    EXPECT_EQ(program->plans[static_cast<size_t>(program->schedule[1].plan)].name, "compressed_update");
    EXPECT_EQ(program->schedule[1].from, 2);
    std::set<std::string> states;
    for (const NamedGraph& plan : program->plans) {
      for (const Node& node : plan.graph.nodes()) {
        if (!node.input || !IsPowerSgdState(node.name)) continue;
        states.insert(node.name);
        ASSERT_TRUE(node.input->part) << node.name;
        EXPECT_EQ(node.input->of_rank, node.name.starts_with("power_sgd_error/"));
        if (node.input->part->end > 0) held[stage].insert(node.name);
      }
    }
    if (stage == 0) all = states;
    EXPECT_EQ(states, all) << "every stage knows of them";
  }
  EXPECT_EQ(held[0].size() + held[1].size(), all.size());
  EXPECT_TRUE(held[0].contains("power_sgd_factor/blocks.0.mlp.fc1.weight"));
  EXPECT_TRUE(held[1].contains("power_sgd_factor/blocks.2.mlp.fc1.weight"));
}

TEST(LowRankGradients, AreRefusedWhereARankHasNoWholeOnes) {
  const auto refused = [](const std::function<void(ProgramOptions&)>& change) {
    ProgramOptions options;
    options.mesh.data = 2;
    options.power_sgd = {1, 2};
    options.table_length = 9;
    change(options);
    return Message(BuildProgram(Classifier(Small()), options, 0).status());
  };
  EXPECT_EQ(refused([](ProgramOptions& o) { o.zero = 1; }), "");
  EXPECT_EQ(refused([](ProgramOptions& o) { o.mesh.tensor = 2; }), "");
  EXPECT_EQ(refused([](ProgramOptions& o) { o.mesh.pipeline = 2, o.accumulation = 2; }), "");
  EXPECT_THAT(refused([](ProgramOptions& o) { o.zero = 2; }), HasSubstr("--powersgd_compression with --zero=2"));
  EXPECT_THAT(refused([](ProgramOptions& o) { o.zero = 3; }), HasSubstr("use --allreduce_dtype=bf16"));
  EXPECT_THAT(refused([](ProgramOptions& o) { o.power_sgd.start = 1; }), HasSubstr("expected at least 2"));
  EXPECT_THAT(refused([](ProgramOptions& o) { o.power_sgd.rank = 65; }), HasSubstr("expected 1 to 64"));
  EXPECT_EQ(refused([](ProgramOptions& o) { o.zero = 2, o.evaluation_only = true; }), "");
}

// Products of halves, and sums over them, write weights' gradients in f32: none of a bucket's parts is a half that was
// cast.
TEST(WideGradients, AreF32AsTheirBucketsAndNeverHalf) {
  for (const AmpLevel level : {AmpLevel::kO1, AmpLevel::kO2, AmpLevel::kO3}) {
    ProgramOptions options;
    options.precision = DType::kBF16;
    options.amp = level;
    options.norms_in_f32 = level != AmpLevel::kO3;
    const Program program = Build(options);
    const Graph& graph = program.Find("update")->graph;
    int products = 0, sums = 0;
    for (const Node& concat : graph.nodes()) {
      if (concat.bucket.empty()) continue;
      for (Ref part : concat.inputs) {
        while (TraitsOf(graph.node(part.node).op).view) part = graph.node(part.node).inputs[0];
        const Node& node = graph.node(part.node);
        EXPECT_EQ(graph.type(part).dtype, DType::kF32) << node.name;
        if (level != AmpLevel::kO3) {
          EXPECT_FALSE(ops::IsCast(graph, node)) << node.name;
        }
        products += node.op == "matmul" && graph.type(node.inputs[0]).dtype == DType::kBF16;
        sums += node.op == "reduce" && graph.type(node.inputs[0]).dtype == DType::kBF16;
      }
    }
    EXPECT_EQ(products, 4 * 3 + 2) << "qkv, proj, fc1 and fc2 of each block, patches, head";
    EXPECT_GE(sums, 4 * 3 + 2) << "their biases";
  }
}

// Attention has the gradient of its bias in f32. What only moves it and adds it up, on the way to the table that the
// bias was gathered from, leaves it so.
TEST(WideGradients, StayF32OnTheirWayToATable) {
  const auto loss = [](nn::Context& context) {
    Graph& graph = context.graph;
    const Value table = nn::Parameter(context, "table", {7, 2}, nn::kTransformerWeights, false);
    std::vector<int32_t> places(16);
    for (size_t i = 0; i < 16; ++i) places[i] = static_cast<int32_t>(3 + i / 4 - i % 4);
    const Value index = graph.Constant("index", {DType::kI32, {4, 4}}, places);
    const Value images = graph.Input("images", {DType::kF32, {4, 4, 8}}, {});
    const Value qkv = ops::Reshape(nn::Linear(context, "qkv", images, 24, {}), {4, 4, 3, 2, 4});
    return ops::Mean(ops::Attention(qkv, ops::Transpose(ops::Gather(table, index), {2, 0, 1})));
  };
  for (const AmpLevel level : {AmpLevel::kO1, AmpLevel::kO2}) {
    ProgramOptions options;
    options.precision = DType::kBF16;
    options.amp = level;
    const Program program =
        Build(options, {"attention", loss, [&](nn::Context& context) { context.graph.Output("loss", loss(context)); }});
    const Graph& graph = program.Find("update")->graph;
    int tables = 0;
    for (const Node& node : graph.nodes()) {
      if (node.phase != Phase::kBackward) continue;
      EXPECT_FALSE(ops::IsCast(graph, node) && node.outputs[0].elements() == 2 * 16) << node.name;
      if (node.op != "scatter_add") continue;
      ++tables;
      EXPECT_EQ(node.outputs[0].dtype, DType::kF32);
    }
    EXPECT_EQ(tables, 1);
  }
}

TEST(HalfWeights, AreReadByAllPlansAndWrittenByTheUpdate) {
  ProgramOptions options;
  options.precision = DType::kF16;
  options.accumulation = 2;
  const Program program = Build(options);
  const auto copies = [](const Graph& graph) {
    std::set<std::string> names;
    for (const int id : graph.Inputs(Role::kCopy)) names.insert(graph.node(id).name);
    return names;
  };
  const std::set<std::string> all = copies(program.Find("update")->graph);
  EXPECT_EQ(all.size(), 4 * 3 + 2u) << "qkv, proj, fc1 and fc2 of each block, patches, head";
  EXPECT_TRUE(all.contains("half/blocks.1.mlp.fc1.weight"));
  for (const char* plan : {"begin", "evaluate", "halves"}) EXPECT_EQ(copies(program.Find(plan)->graph), all) << plan;
  for (const NamedGraph& plan : program.plans) {
    if (plan.name == "halves") continue;
    for (const Node& node : plan.graph.nodes()) {
      if (node.phase != Phase::kForward || !ops::IsCast(plan.graph, node)) continue;
      const auto& input = plan.graph.node(node.inputs[0].node).input;
      EXPECT_FALSE(input && input->role == Role::kParameter) << plan.name << ": " << node.name;
    }
  }
  for (const char* plan : {"update", "halves"}) {
    std::set<std::string> written;
    const Graph& graph = program.Find(plan)->graph;
    for (const Node& node : graph.nodes()) {
      if (node.op == "assign" && graph.node(node.inputs[0].node).input->role == Role::kCopy)
        written.insert(graph.node(node.inputs[0].node).name);
    }
    EXPECT_EQ(written, all) << plan;
  }
  EXPECT_EQ(Build({}).Find("halves"), nullptr) << "in f32 there are none";
}

// The residual stream of a half model is half; its norms keep f32 parameters, unless they are told not to.
TEST(HalfWeights, OfAHalfModelAreAllButThoseOfNormsAndBiases) {
  ProgramOptions options;
  options.precision = DType::kF16;
  options.amp = AmpLevel::kO2;
  Program program = Build(options);
  Graph& graph = program.plans[0].graph;
  EXPECT_TRUE(graph.FindInput("half/pos_embed"));
  EXPECT_TRUE(graph.FindInput("half/cls_token"));
  EXPECT_FALSE(graph.FindInput("half/blocks.0.norm1.weight"));
  for (const Node& node : graph.nodes()) {
    if (node.op == "layer_norm") {
      EXPECT_EQ(graph.type(node.inputs[0]).dtype, DType::kF16) << node.name;
      EXPECT_EQ(node.outputs[0].dtype, DType::kF16) << node.name;
      EXPECT_EQ(graph.type(node.inputs[1]).dtype, DType::kF32) << node.name;
    }
    if (node.op == "cross_entropy") {
      EXPECT_EQ(graph.type(node.inputs[0]).dtype, DType::kF32);
    }
  }
  options.norms_in_f32 = false;
  EXPECT_TRUE(Build(options).plans[0].graph.FindInput("half/blocks.0.norm1.weight"));
  options.amp = AmpLevel::kO3;
  program = Build(options);
  for (const Node& node : program.plans[0].graph.nodes()) {
    if (node.op == "cross_entropy") {
      EXPECT_EQ(program.plans[0].graph.type(node.inputs[0]).dtype, DType::kF16);
    }
  }
}

// At O1 it is f32, or half where that is chosen, however ranks share the work: in forward passes, and where they are
// made again.
TEST(HalfResiduals, AreThoseOfEveryPlanHoweverRanksShareTheWork) {
  const std::map<std::string, std::function<void(ProgramOptions&)>> cases = {
      {"one rank", [](ProgramOptions&) {}},
      {"recompute", [](ProgramOptions& o) { o.recompute = 1; }},
      {"tensor", [](ProgramOptions& o) { o.mesh.tensor = 2; }},
      {"sequence", [](ProgramOptions& o) { o.mesh.tensor = 2, o.sequence = true; }},
      {"pipeline", [](ProgramOptions& o) { o.mesh.pipeline = 2, o.accumulation = 2; }},
      {"zero 2", [](ProgramOptions& o) { o.mesh.data = 2, o.zero = 2; }},
      {"zero 3", [](ProgramOptions& o) { o.mesh.data = 2, o.zero = 3; }}};
  for (const auto& [name, change] : cases) {
    for (const bool chosen : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, chosen ? "half" : "f32"));
      ProgramOptions options;
      options.precision = DType::kBF16;
      options.residuals_in_half = chosen;
      change(options);
      int norms = 0, wide = 0;
      for (const NamedGraph& plan : Build(options).plans) {
        for (const Node& node : plan.graph.nodes()) {
          if (node.op != "layer_norm") continue;
          ++norms;
          wide += plan.graph.type(node.inputs[0]).dtype == DType::kF32;
        }
      }
      EXPECT_GT(norms, 0);
      EXPECT_EQ(wide, chosen ? 0 : norms);
    }
  }
}

// What is computed with averaged weights has the dtypes that it has with the weights.
TEST(HalfWeights, AveragesAreEvaluatedInTheSamePrecision) {
  for (const AmpLevel level : {AmpLevel::kO1, AmpLevel::kO2, AmpLevel::kO3}) {
    ProgramOptions options;
    options.precision = DType::kF16;
    options.amp = level;
    options.optimizer.ema_decay = 0.9f;
    const Program program = Build(options);
    const auto dtypes = [&](const char* plan) {
      std::vector<std::pair<std::string, DType>> found;
      for (const Node& node : program.Find(plan)->graph.nodes()) {
        if (node.op == "layer_norm" || node.op == "matmul" || node.op == "softmax")
          found.emplace_back(node.op, node.outputs[0].dtype);
      }
      return found;
    };
    EXPECT_FALSE(dtypes("evaluate").empty());
    EXPECT_EQ(dtypes("evaluate_ema"), dtypes("evaluate")) << static_cast<int>(level);
  }
}

// Weights that are read in half are pieces in f32 and gathered in half: by the update where ranks have the copies, else
// where they are read. Nobody has a copy then, and the plan that makes them is not there.
TEST(HalfWeights, OfSharedParametersAreGatheredInHalf) {
  ProgramOptions options;
  options.precision = DType::kF16;
  options.mesh.data = 4;
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE(zero);
    options.zero = zero;
    const Program program = Build(options);
    const Graph& update = program.Find("update")->graph;
    std::map<DType, int64_t> gathered;  // elements
    for (const Node& node : update.nodes()) {
      if (node.op == "all_gather") gathered[node.outputs[0].dtype] += node.outputs[0].elements();
    }
    int64_t halves = 0, floats = 0, pieces = 0;  // of weights
    for (const int id : update.Inputs(Role::kParameter)) {
      const Node& node = update.node(id);
      const bool piece = IsPiece(*node.input);
      const Shape& whole = piece ? node.input->part->whole : node.outputs[0].shape;
      (program.read_in_half.contains(node.name) ? halves : floats) += Elements(whole);
      pieces += piece ? 1 : 0;
      EXPECT_EQ(piece, zero == 3 || program.read_in_half.contains(node.name)) << node.name;
    }
    EXPECT_EQ(program.read_in_half.size(), 4 * 3 + 2u);
    const int64_t times = zero == 3 ? 2 : 1;  // the backward pass gathers once more
    EXPECT_NEAR(static_cast<double>(gathered[DType::kF16]), static_cast<double>(times * halves), 1000.0);
    EXPECT_NEAR(static_cast<double>(gathered[DType::kF32]), static_cast<double>(times * floats), 8000.0);
    EXPECT_EQ(update.Inputs(Role::kCopy).empty(), zero == 3);
    EXPECT_EQ(program.Find("halves") == nullptr, zero == 3);
    EXPECT_GT(pieces, 0);
  }
}

// Ranks of unequal parts cut whole weights at other places, and would add up other roundings of their norms.
TEST(SharedUpdates, GoByTheSameNormsOfWholeWeightsOnRanksThatDivideOthers) {
  ProgramOptions options;
  options.optimizer.kind = SY_OPTIMIZER_LAMB;
  options.optimizer.weight_decay = 0.01f;
  options.mesh.data = options.mesh.tensor = 2;
  for (const int zero : {0, 1}) {
    options.zero = zero;
    int same = 0;
    const Program program = Build(options);
    for (const Node& node : program.Find("update")->graph.nodes()) {
      if (node.op == "broadcast") same += node.attributes.as<sy_collective_attributes>().group == kTensorGroup;
    }
    EXPECT_EQ(same, zero);
  }
}

// As a head that only training has: what an evaluation does not read of a bucket, it has no pieces of.
TEST(SharedParameters, MayBeReadByTrainingAlone) {
  Workload workload = Classifier(Small());
  workload.evaluate = [](nn::Context& context) {
    const Value x = context.graph.Input("images", {DType::kF32, {4, 32}}, {});
    context.graph.Output("logits", nn::Linear(context, "head", x, 10));
  };
  ProgramOptions options;
  options.mesh.data = 2;
  options.zero = 3;
  const Program program = Build(options, workload);
  const Graph& evaluation = program.Find("evaluate")->graph;
  int gathers = 0;
  for (const Node& node : evaluation.nodes()) gathers += node.op == "all_gather";
  EXPECT_EQ(gathers, 1);
  EXPECT_EQ(evaluation.Inputs(Role::kParameter).size(), 2u);
}

// Mean and variance over the samples and places of each channel.
TEST(ProgramBatchNorms, OverASingleValueAreRefusedInTraining) {
  const auto workload = [](const Shape& images) {
    const auto normed = [images](nn::Context& context) {
      return nn::BatchNorm(context, "bn1", context.graph.Input("images", {DType::kF32, images}, {}));
    };
    return Workload{"norms", [normed](nn::Context& context) { return ops::Mean(normed(context)); },
                    [normed](nn::Context& context) { context.graph.Output("y", normed(context)); }};
  };
  const auto message = [&](const ProgramOptions& options, const Shape& images) {
    return std::string(Message(BuildProgram(workload(images), options, 0).status()));
  };
  ProgramOptions options;
  const Shape single = {1, 1, 1, 3};
  EXPECT_THAT(message(options, single), AllOf(HasSubstr("bn1"), HasSubstr("found one in (1, 1, 1, 3)"),
                                              HasSubstr("--batch_size"), Not(HasSubstr("--sync_batchnorm"))));
  EXPECT_EQ(message(options, {2, 1, 1, 3}), "");
  EXPECT_EQ(message(options, {1, 1, 2, 3}), "");
  options.mesh.data = 2;
  EXPECT_THAT(message(options, single), HasSubstr("--sync_batchnorm"));
  options.sync_batchnorm = true;
  EXPECT_EQ(message(options, single), "");
  options = {};
  options.evaluation_only = true;
  EXPECT_EQ(message(options, single), "");
}

}  // namespace
}  // namespace switchyard
