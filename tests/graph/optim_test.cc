#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>
#include <set>

#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/optim/optimizer.h"
#include "core/optim/parameter_rules.h"
#include "core/optim/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

void ExpectRates(const std::vector<float>& table, const std::string& fixture) {
  const HostTensors recorded = ReadFixture("ops.safetensors", fixture);
  ASSERT_TRUE(recorded.contains("lr"));
  const std::vector<float>& expected = recorded.at("lr").values;
  ASSERT_EQ(table.size(), expected.size());
  for (size_t t = 0; t < table.size(); ++t) EXPECT_NEAR(table[t], expected[t], 1e-6 * 1e-3) << fixture << t;
}

TEST(ScheduleTest, TablesEqualTheRecordedSchedules) {
  constexpr int kSteps = 40;
  ExpectRates(LearningRateTable({.lr = 1e-3f, .warmup_lr = 1e-6f, .min_lr = 1e-5f, .warmup = 7}, kSteps),
              "schedule_cosine/");
  ExpectRates(LearningRateTable({.kind = Schedule::kCosineAnnealing, .lr = 1e-3f, .warmup = 7}, kSteps),
              "schedule_cosine_annealing_warmup/");
  ExpectRates(
      LearningRateTable({.kind = Schedule::kMultistep, .lr = 1e-3f, .milestones = {10, 25, 30}, .gamma = 0.3f}, kSteps),
      "schedule_multistep/");
  ExpectRates(LearningRateTable({.kind = Schedule::kStep, .lr = 1e-3f, .step_size = 9, .gamma = 0.5f}, kSteps),
              "schedule_step/");
}

ScheduleOptions OptionsOf(const nlohmann::json& options) {
  ScheduleOptions o;
  const auto kind = ParseSchedule(options["kind"]);
  EXPECT_TRUE(kind.ok()) << Message(kind.status());
  o.kind = *kind;
  o.lr = options["lr"];
  o.warmup_lr = options.value("warmup_lr", 0.0f);
  o.min_lr = options.value("min_lr", 0.0f);
  o.warmup = options.value("warmup", 0);
  o.milestones = options.value("milestones", std::vector<int64_t>());
  o.step_size = options.value("step_size", 1);
  o.gamma = options.value("gamma", 0.1f);
  if (const int64_t interval = options["interval"]; interval > 0) o.interval = interval;
  return o;
}

TEST(ScheduleTest, WholeCurvesEqualThoseOfPyTorchAndTimm) {
  std::ifstream file(SWITCHYARD_FIXTURES "/schedules.json");
  const nlohmann::json recorded = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(recorded.is_object());
  EXPECT_EQ(recorded["cases"].size(), 14u);
  for (const auto& [name, one] : recorded["cases"].items()) {
    const std::vector<double> expected = one["lr"];
    const auto found = LearningRateTable(OptionsOf(one["options"]), static_cast<int64_t>(expected.size()));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t t = 0; t < found.size(); ++t)
      ASSERT_NEAR(found[t], expected[t], 1e-6 * expected[t] + 1e-12) << name << ", update " << t;
  }
}

// The same warm-up told in updates, in epochs and as a share of the run, with rates scaled for the batch and a factor.
TEST(ScheduleTest, AWarmupIsTheSameHoweverItIsTold) {
  const int64_t steps = 300, per_epoch = 30;
  ScheduleOptions swin = {.lr = 5e-4f, .warmup_lr = 5e-7f, .min_lr = 5e-6f};
  swin = ScaleRates(swin, RateScaling::kLinear, 2048, 512, 0.5f);
  std::vector<std::vector<float>> tables;
  for (const char* told : {"60", "2e", "0.2"}) {
    swin.warmup = *ParseWarmup(told, steps, per_epoch);
    tables.push_back(LearningRateTable(swin, steps));
    EXPECT_FLOAT_EQ(tables.back()[0], 2 * 5e-7f);
    EXPECT_FLOAT_EQ(tables.back()[60], 2 * 5e-4f);
    EXPECT_LT(tables.back()[59], tables.back()[60]);
    EXPECT_EQ(tables.back(), tables.front()) << told;
  }
}

TEST(ScheduleTest, LinearFallsToTheMinimumAndConstantStays) {
  const auto linear = LearningRateTable({.kind = Schedule::kLinear, .lr = 1, .min_lr = 0.2f, .warmup = 2}, 10);
  EXPECT_FLOAT_EQ(linear[0], 0);
  EXPECT_FLOAT_EQ(linear[1], 0.5f);
  EXPECT_FLOAT_EQ(linear[2], 1);
  EXPECT_FLOAT_EQ(linear[6], 0.6f);
  EXPECT_FLOAT_EQ(linear[9], 0.3f);
  EXPECT_THAT(LearningRateTable({.kind = Schedule::kConstant, .lr = 0.5f}, 3),
              ::testing::ElementsAre(0.5f, 0.5f, 0.5f));
}

TEST(ScheduleTest, AnIntervalHoldsTheRateForAnEpoch) {
  const int per_epoch = 5, epochs = 8;
  const auto held = LearningRateTable({.lr = 1, .warmup_lr = 0.1f, .warmup = 2 * per_epoch, .interval = per_epoch},
                                      epochs * per_epoch);
  const auto by_epoch = LearningRateTable({.lr = 1, .warmup_lr = 0.1f, .warmup = 2}, epochs);
  for (int step = 0; step < epochs * per_epoch; ++step) {
    EXPECT_FLOAT_EQ(held[static_cast<size_t>(step)], by_epoch[static_cast<size_t>(step / per_epoch)]) << step;
  }
}

// A rate above the peak diverges; one of 0 for the first epoch trains nothing and looks like a bug elsewhere.
TEST(ScheduleTest, NoneEverExceedsThePeakOrWastesItsFirstEpoch) {
  const Schedule kinds[] = {Schedule::kConstant, Schedule::kMultistep, Schedule::kStep,
                            Schedule::kLinear,   Schedule::kCosine,    Schedule::kCosineAnnealing};
  for (const Schedule kind : kinds)
    for (const int64_t per_epoch : {1, 2, 4, 7, 50})
      for (const int64_t steps : {per_epoch - 1, per_epoch, 3 * per_epoch, 5 * per_epoch + per_epoch / 2})
        for (const std::optional<int64_t> interval : {std::optional<int64_t>(), {per_epoch}})
          for (const int64_t warmup :
               {int64_t{0}, int64_t{1}, per_epoch / 4, per_epoch - 1, per_epoch, per_epoch + 1, 2 * per_epoch, steps})
            for (const float warmup_lr : {0.0f, 1e-6f, 1e-3f})
              for (const float min_lr : {0.0f, 1e-4f, 1e-3f}) {
                if (warmup > steps || steps == 0) continue;
                const ScheduleOptions options = {.kind = kind,
                                                 .lr = 1e-3f,
                                                 .warmup_lr = warmup_lr,
                                                 .min_lr = min_lr,
                                                 .warmup = warmup,
                                                 .milestones = {1, per_epoch},
                                                 .step_size = per_epoch,
                                                 .interval = interval};
                const std::vector<float> table = LearningRateTable(options, steps);
                const auto first_epoch = table.begin() + std::min(steps, per_epoch);
                const std::string what = fmt::format(
                    "schedule {}, {} updates of {} an epoch, held for {}, warm-up {} from {}, down to {}",
                    static_cast<int>(kind), steps, per_epoch, interval.value_or(0), warmup, warmup_lr, min_lr);
                ASSERT_LE(*std::max_element(table.begin(), table.end()), 1e-3f * 1.000001f) << what;
                ASSERT_GE(*std::min_element(table.begin(), table.end()), 0) << what;
                // Where an epoch is one update, and none is held, its rate is where the warm-up starts.
                const bool one_update = !interval && first_epoch - table.begin() == 1;
                ASSERT_TRUE(one_update || *std::max_element(table.begin(), first_epoch) > 0) << what;
              }
}

TEST(ScheduleTest, AWarmupFromZeroThatIsHeldRisesEvenlyToThePeak) {
  const auto table = LearningRateTable({.lr = 1, .warmup = 3 * 5, .interval = 5}, 8 * 5);
  for (int epoch = 0; epoch < 4; ++epoch) EXPECT_FLOAT_EQ(table[5 * epoch], 0.25f * static_cast<float>(epoch + 1));
}

TEST(ScheduleTest, WarmupIsStepsEpochsOrAPartOfTheRun) {
  EXPECT_EQ(*ParseWarmup("500", 1000, 50), 500);
  EXPECT_EQ(*ParseWarmup("0", 1000, 50), 0);
  EXPECT_EQ(*ParseWarmup("2e", 1000, 50), 100);
  EXPECT_EQ(*ParseWarmup("0.5e", 1000, 50), 25);
  EXPECT_EQ(*ParseWarmup("0.3", 1000, 50), 300);
  for (const char* bad : {"", "e", "-1", "1.5", "abc", "0x10", "5 ", "1e3", "nan", "."}) {
    EXPECT_THAT(Message(ParseWarmup(bad, 1000, 50).status()), HasSubstr("expected a number of steps")) << bad;
  }
  EXPECT_THAT(Message(ParseWarmup("30e", 1000, 50).status()), HasSubstr("1500 steps, but the run has 1000"));
}

TEST(ScheduleTest, RatesScaleWithTheBatch) {
  const ScheduleOptions swin = {.lr = 5e-4f, .warmup_lr = 5e-7f, .min_lr = 5e-6f};
  const ScheduleOptions linear = ScaleRates(swin, RateScaling::kLinear, 1024, 512);
  EXPECT_FLOAT_EQ(linear.lr, 1e-3f);
  EXPECT_FLOAT_EQ(linear.warmup_lr, 1e-6f);
  EXPECT_FLOAT_EQ(linear.min_lr, 1e-5f);
  EXPECT_FLOAT_EQ(ScaleRates(swin, RateScaling::kLinear, 8 * 512, 512, 0.5f).lr, 4 * 5e-4f);
  EXPECT_FLOAT_EQ(ScaleRates(swin, RateScaling::kSqrt, 2048, 512).lr, 1e-3f);
  EXPECT_FLOAT_EQ(ScaleRates(swin, RateScaling::kNone, 2048, 512).lr, 5e-4f);
}

TEST(ScheduleTest, UnknownNamesComeWithASuggestion) {
  EXPECT_THAT(Message(ParseSchedule("cosin").status()), HasSubstr("did you mean cosine"));
  EXPECT_THAT(Message(ParseRateScaling("liner").status()), HasSubstr("did you mean linear"));
  EXPECT_THAT(Message(ParseOptimizer("adanw").status()), HasSubstr("did you mean adamw"));
  EXPECT_EQ(*ParseOptimizer("sgd"), SY_OPTIMIZER_SGD);
}

class OptimizerTest : public ::testing::Test {
 protected:
  // Two parameters, one without weight decay; x is their gradient.
  void Build(const OptimizerOptions& options) {
    const Value w = graph_.Input("w", {DType::kF32, {4, 3}}, {Role::kParameter, {}, true});
    const Value b = graph_.Input("b", {DType::kF32, {3}}, {Role::kParameter, {}, false});
    const Value gw = graph_.Input("gw", w.type(), {}), gb = graph_.Input("gb", b.type(), {});
    AddOptimizer(graph_, {{w, gw}, {b, gb}}, {}, options, 50);
  }
  std::set<std::string> Names(const std::string& op) {
    std::set<std::string> names;
    for (const Node& node : graph_.nodes()) {
      if (node.op == op) names.insert(node.name);
    }
    return names;
  }
  Graph graph_;
};

TEST_F(OptimizerTest, AdamKeepsTwoMomentsAndDecaysOnlyWhereAsked) {
  Build({.weight_decay = 0.05f, .clip = 1});
  EXPECT_THAT(Names("assign"),
              ::testing::UnorderedElementsAre("assign/w", "assign/b", "assign/moment1/w", "assign/moment2/w",
                                              "assign/moment1/b", "assign/moment2/b", "assign/update"));
  EXPECT_THAT(Names("output"), ::testing::UnorderedElementsAre("lr", "grad_norm"));
  std::map<std::string, float> decay;
  for (const Node& node : graph_.nodes()) {
    if (node.op != "optimizer_update") continue;
    EXPECT_EQ(node.phase, Phase::kUpdate);
    EXPECT_EQ(node.inputs.size(), 4u + 4);
    decay[graph_.node(node.inputs[4].node).name] = node.attributes.as<sy_optimizer_attributes>().weight_decay;
  }
  EXPECT_EQ(decay, (std::map<std::string, float>{{"w", 0.05f}, {"b", 0}}));
  EXPECT_EQ(graph_.FindInput("lr_table").shape(), (Shape{50}));
  EXPECT_EQ(graph_.FindInput("update").type(), (TensorType{DType::kF32, {1}}));
  EXPECT_EQ(graph_.Inputs(Role::kState).size(), 5u);
  EXPECT_EQ(graph_.phase(), Phase::kForward);
}

TEST_F(OptimizerTest, PlainSgdKeepsNoMoments) {
  Build({.kind = SY_OPTIMIZER_SGD});
  EXPECT_EQ(graph_.Inputs(Role::kState).size(), 1u);
}

TEST_F(OptimizerTest, MomentumKeepsOne) {
  Build({.kind = SY_OPTIMIZER_SGD, .momentum = 0.9f});
  EXPECT_TRUE(graph_.FindInput("moment1/w"));
  EXPECT_FALSE(graph_.FindInput("moment2/w"));
}

TEST_F(OptimizerTest, LarsKeepsOneMomentAndLambTwo) {
  Build({.kind = SY_OPTIMIZER_LARS, .momentum = 0.9f});
  EXPECT_TRUE(graph_.FindInput("moment1/w"));
  EXPECT_FALSE(graph_.FindInput("moment2/w"));
  graph_ = Graph();
  Build({.kind = SY_OPTIMIZER_LAMB});
  EXPECT_TRUE(graph_.FindInput("moment2/w"));
}

TEST_F(OptimizerTest, AnUpdateForEachTensorWhereItIsNotFused) {
  Build({.fused = false});
  EXPECT_EQ(Count(graph_, "optimizer_update"), 2);
  graph_ = Graph();
  const Value a = graph_.Input("a", {DType::kF32, {4, 3}}, {Role::kParameter}),
              b = graph_.Input("b", {DType::kF32, {2, 3}}, {Role::kParameter});
  AddOptimizer(graph_, {{a, ops::Scale(a, 2)}, {b, ops::Scale(b, 2)}}, {}, {}, 1);
  EXPECT_EQ(Count(graph_, "optimizer_update"), 1);
}

TEST_F(OptimizerTest, AHalfCopyIsTheNewParameterInItsOwnType) {
  const Value p = graph_.Input("p", {DType::kF32, {4, 3}}, {Role::kParameter}),
              q = graph_.Input("q", {DType::kF32, {4, 3}}, {Role::kParameter}),
              half = graph_.Input("half/p", {DType::kF16, {4, 3}}, {Role::kState});
  AddOptimizer(graph_, {{p, ops::Scale(p, 2), half}, {q, ops::Scale(q, 2)}}, {}, {}, 1);
  int with = 0;
  for (const Node& node : graph_.nodes()) {
    if (node.op != "optimizer_update") continue;
    const bool copies = node.attributes.as<sy_optimizer_attributes>().half_copies != 0;
    with += copies;
    ASSERT_EQ(node.outputs.size(), copies ? 4u : 3u);
    if (copies) {
      EXPECT_EQ(node.outputs[3], (TensorType{DType::kF16, {4, 3}}));
    }
  }
  EXPECT_EQ(with, 1);
  EXPECT_TRUE(Names("assign").contains("assign/half/p"));
}

TEST_F(OptimizerTest, AveragesAreStateOfTheirParameters) {
  Build({.ema_decay = 0.99f});
  EXPECT_EQ(graph_.FindInput("ema/w").shape(), (Shape{4, 3}));
  EXPECT_TRUE(Names("assign").contains("assign/ema/b"));
}

TEST(ParameterRules, TablesOfPositionsTokensBiasesAndVectorsDoNotDecay) {
  const std::vector<std::pair<const char*, Shape>> without = {
      {"blocks.0.norm1.weight", {8}},
      {"head.bias", {10}},
      {"wide.bias", {2, 10}},
      {"bias", {2, 2}},
      {"pos_embed", {1, 197, 8}},
      {"cls_token", {1, 1, 8}},
      {"absolute_pos_embed", {1, 49, 8}},
      {"layers.0.blocks.1.attn.relative_position_bias_table", {169, 3}},
      {"scale", {}}};
  for (const auto& [name, shape] : without) EXPECT_FALSE(Decays(name, shape)) << name;
  for (const char* name : {"head.weight", "blocks.0.attn.qkv.weight", "bias.weight", "patch_embed.proj.weight"})
    EXPECT_TRUE(Decays(name, {4, 4})) << name;
}

// Two blocks, with something between them as where a stage of Swin ends.
TEST(ParameterRules, RatesFallFromTheHeadToTheEmbeddings) {
  Graph graph;
  std::vector<ParameterGradient> pairs;
  const auto add = [&](const char* name) {
    const Value parameter = graph.Input(name, {DType::kF32, {2, 3}}, {Role::kParameter});
    pairs.push_back({parameter, ops::Scale(parameter, 2)});
  };
  add("embed");
  {
    const Graph::Block block(graph, 0);
    add("blocks.0");
  }
  add("downsample");
  {
    const Graph::Block block(graph, 1);
    add("blocks.1");
  }
  add("norm");
  add("head");
  TellLayers(graph);
  std::vector<int> above;
  for (const int id : graph.Inputs(Role::kParameter)) above.push_back(graph.node(id).input->layers_above);
  EXPECT_EQ(above, (std::vector<int>{3, 2, 2, 1, 0, 0}));
  AddOptimizer(graph, pairs, {}, {.layer_decay = 0.5f}, 4);
  std::map<std::string, float> rates;  // the factor on lr, by the first parameter of the update
  for (const Node& node : graph.nodes()) {
    if (node.op != "optimizer_update") continue;
    const Node& lr = graph.node(node.inputs[0].node);
    const auto program = lr.op == "pointwise" ? lr.attributes.as<sy_pointwise_attributes>() : sy_pointwise_attributes{};
    float factor = 1;
    for (uint32_t i = 0; i < program.instruction_count; ++i)
      if (program.instructions[i].op == SY_PW_CONSTANT) factor = program.instructions[i].value;
    rates[graph.node(node.inputs[4].node).name] = factor;
  }
  EXPECT_EQ(rates,
            (std::map<std::string, float>{{"embed", 0.125f}, {"blocks.0", 0.25f}, {"blocks.1", 0.5f}, {"norm", 1}}));
}

TEST(ParameterRules, AModelWithoutBlocksCannotHaveALayerDecay) {
  Graph graph;
  const Value p = graph.Input("p", {DType::kF32, {4, 3}}, {Role::kParameter});
  EXPECT_THAT(ErrorOf([&] {
                AddOptimizer(graph, {{p, ops::Scale(p, 2)}}, {}, {.layer_decay = 0.5f}, 1);
              }),
              HasSubstr("goes by the blocks of the model"));
}

TEST_F(OptimizerTest, TheNormReadsWhatItIsGiven) {
  const Value w = graph_.Input("w", {DType::kF32, {4}}, {Role::kParameter});
  const Value g = graph_.Input("g", w.type(), {}), bucket = graph_.Input("bucket", w.type(), {});
  AddOptimizer(graph_, {{w, g}}, ops::SquaredNorm({bucket}), {}, 10);
  for (const Node& node : graph_.nodes()) {
    if (node.op == "squared_norm") {
      EXPECT_EQ(node.inputs, std::vector<Ref>{bucket.ref()});
    }
  }
}

TEST_F(OptimizerTest, UnusedParametersAreNamed) {
  const Value w = graph_.Input("w", {DType::kF32, {4}}, {Role::kParameter});
  const Value left = graph_.Input("left.weight", {DType::kF32, {4}}, {Role::kParameter});
  try {
    AddOptimizer(graph_, {{w, ops::Scale(w, 2)}, {left, {}}}, {}, {}, 10);
    FAIL() << "no error";
  } catch (const BuildError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not depend on: left.weight"));
  }
}

}  // namespace
}  // namespace switchyard
