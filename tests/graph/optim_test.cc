#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "core/graph/ops/pointwise.h"
#include "core/optim/optimizer.h"
#include "core/optim/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
        for (const int64_t interval : {int64_t{0}, per_epoch})
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
                const std::string what =
                    fmt::format("schedule {}, {} updates of {} an epoch, held for {}, warm-up {} from {}, down to {}",
                                static_cast<int>(kind), steps, per_epoch, interval, warmup, warmup_lr, min_lr);
                ASSERT_LE(*std::max_element(table.begin(), table.end()), 1e-3f * 1.000001f) << what;
                ASSERT_GE(*std::min_element(table.begin(), table.end()), 0) << what;
                // Where an epoch is one update, and none is held, its rate is where the warm-up starts.
                const bool one_update = interval == 0 && first_epoch - table.begin() == 1;
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
  EXPECT_EQ(graph_.FindInput("update").type(), (TensorType{DType::kI32, {1}}));
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

TEST_F(OptimizerTest, TheNormReadsWhatItIsGiven) {
  const Value w = graph_.Input("w", {DType::kF32, {4}}, {Role::kParameter});
  const Value g = graph_.Input("g", w.type(), {}), bucket = graph_.Input("bucket", w.type(), {});
  AddOptimizer(graph_, {{w, g}}, {bucket}, {}, 10);
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
