// Loss scaling and half models between ranks and in whole runs: a static power of two changes no bit, an overflow on
// one rank leaves the update out on all, and half models learn as well as one in f32.
#include <cmath>
#include <limits>
#include <map>

#include "core/base/environment.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/program.h"
#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

HostTensors TrainedScaled(const TrainConfig& config, std::vector<Trainer::StepResult>* results = nullptr) {
  World& world = SharedWorld();
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return {};
  const int64_t own = int64_t{config.batch_size} * config.accumulation;
  for (int64_t update = 0; update < 3; ++update) {
    HostBatch batch;
    for (int64_t i = 0; i < own; ++i)
      batch.Append(run->setup, "scaled", (update * own + i) * world.size() + world.rank());
    const auto result = run->trainer->Step(batch.tensors());
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return {};
    if (results != nullptr) results->push_back(*result);
  }
  return *run->trainer->Parameters();
}

TEST(StaticLossScale, APowerOfTwoChangesNoBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    TrainConfig config = SmallConfig();
    config.precision = precision;
    config.optimizer = "adamw";
    config.lr = 1e-3f;
    config.clip = 0.5f;
    config.accumulation = 2;
    config.own["dropout"] = 0.2;
    config.train_size = 96;
    std::vector<Trainer::StepResult> plain, scaled;
    const HostTensors expected = TrainedScaled(config, &plain);
    for (const char* scale : {"1024", "0.125"}) {
      scaled.clear();
      config.loss_scale = scale;
      ExpectEqual(TrainedScaled(config, &scaled), expected);
      ASSERT_EQ(scaled.size(), plain.size());
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(scaled[i].grad_norm, plain[i].grad_norm) << "of the gradients without the scale";
        EXPECT_EQ(scaled[i].loss, plain[i].loss);
        EXPECT_EQ(scaled[i].loss_scale, std::stod(scale));
      }
    }
  }
}

// loss = mean of x·wᵀ in f16: an x beyond f16's range makes the weight's gradient infinite, on the rank that has it.
// One just within does not, as that gradient is f32.
Workload ProductInHalf() {
  const auto product = [](nn::Context& c) {
    const Value x = c.graph.Input("x", {DType::kF32, {4, 8}}, {});
    return ops::Linear(x, nn::Parameter(c, "w", {8, 8}, {}, true), {});
  };
  return {"product", [product](nn::Context& c) { return ops::Mean(ops::Cast(product(c), DType::kF32)); },
          [product](nn::Context& c) { c.graph.Output("y", product(c)); }};
}

// The last rank's x is now and then too large for f16. Where there is none, nothing overflows.
void ExpectOverflowsToBeLeftOutOnAll(ProgramOptions options) {
  World& world = SharedWorld();
  options.mesh.data = world.size();
  const bool half = options.precision == DType::kF16 || (options.allreduce_dtype == DType::kF16 && world.size() > 1);
  options.optimizer.kind = SY_OPTIMIZER_SGD;
  options.loss_scale = {.dynamic = true, .initial = 65536, .growth_interval = 2, .hysteresis = 1};
  auto program = BuildProgram(ProductInHalf(), options, world.rank());
  ASSERT_TRUE(program.ok()) << Message(program.status());
  const std::vector<Group> groups = program->groups;
  int of_gradients = 0;
  for (const Node& node : program->Find("update")->graph.nodes()) of_gradients += node.op == "all_reduce";
  EXPECT_EQ(of_gradients, world.size() > 1 ? 1 : 0) << "the verdict takes no collective of its own";
  TrainConfig config;
  TrainingPlans plans;
  const Status compiled = plans.Compile(config, std::move(*program), *world.device, world.reference.get());
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  auto memory = Memory::Allocate(*plans.layout, *world.device, world.communicator.get());
  ASSERT_TRUE(memory.ok()) << Message(memory.status());
  const auto communicators = world.CommunicatorsOf(groups);
  ASSERT_TRUE(communicators.ok()) << Message(communicators.status());
  auto step = Instance::Bind(*plans.plans[plans.IndexOf("update").value()], **memory, *communicators, 0);
  ASSERT_TRUE(step.ok()) << Message(step.status());
  const auto stream = world.device->NewStream();
  ASSERT_TRUE(stream.ok());
  const float rate = 0.5f;
  ASSERT_TRUE((*memory)->Upload("lr_table", &rate, sizeof rate).ok());
  ASSERT_TRUE((*memory)->Upload("loss_scale", &options.loss_scale.initial, sizeof(float)).ok());
  const auto number = [&](const char* name) {
    float value = NAN;
    EXPECT_TRUE((*memory)->Download(name, &value, sizeof value).ok()) << name;
    return value;
  };
  const auto parameters = [&] {
    HostTensor w{{8, 8}, std::vector<float>(64)};
    EXPECT_TRUE((*memory)->Download("w", w.values.data(), 64 * sizeof(float)).ok());
    return HostTensors{{"w", w}};
  };
  int32_t updates = 0;
  float scale = options.loss_scale.initial, grown = 0;
  for (const bool large : {true, false, true, false, false, true}) {
    const bool overflows = large && half;
    SCOPED_TRACE(fmt::format("{} at {}", overflows ? "overflow" : "none", scale));
    const bool here = large && world.rank() == world.size() - 1;
    const std::vector<float> x(32, here ? 70000.0f : 0.25f);
    ASSERT_TRUE((*memory)->Upload("x", x.data(), x.size() * sizeof(float)).ok());
    const HostTensors before = parameters();
    const int64_t waits = world.device->host_waits();
    ASSERT_TRUE((*step)->Run(*stream).ok());
    if (world.size() == 1) {  // with others the thread that carries staged collectives waits for what it sends
      EXPECT_EQ(world.device->host_waits(), waits) << "the verdict is the device's own";
    }
    ASSERT_TRUE(world.Synchronize(*stream).ok());
    EXPECT_EQ(std::isfinite(number("output/grad_norm")), !overflows);
    EXPECT_EQ(number("output/loss_scale_of_update"), scale);
    EXPECT_EQ(parameters().at("w").values == before.at("w").values, overflows);
    ExpectEqualOnAllRanks(parameters());
    updates += !overflows;
    grown = overflows ? 0 : grown + 1;
    scale = overflows ? scale / 2 : grown == 2 ? scale * 2 : scale;
    if (grown == 2) grown = 0;
    EXPECT_EQ(number("loss_scale"), scale);
    float made = 0;
    ASSERT_TRUE((*memory)->Download("update", &made, sizeof made).ok());
    EXPECT_EQ(made, updates);
  }
}

TEST(DynamicLossScale, AnOverflowOnOneRankLeavesTheUpdateOutOnAll) {
  for (const AmpLevel amp : {AmpLevel::kO1, AmpLevel::kO2}) {
    SCOPED_TRACE(amp == AmpLevel::kO1 ? "O1" : "O2");
    ProgramOptions options;
    options.precision = DType::kF16;
    options.amp = amp;
    ExpectOverflowsToBeLeftOutOnAll(options);
  }
}

// Gradients are finite on every rank, and too large for the type in which they are sent.
TEST(DynamicLossScale, AnOverflowBetweenRanksLeavesTheUpdateOutOnAll) {
  ProgramOptions options;
  options.allreduce_dtype = DType::kF16;
  ExpectOverflowsToBeLeftOutOnAll(options);
}

TEST(HalfModels, TrainEqualOnAllRanksAndNearF32) {
  TrainConfig config = SmallConfig();
  config.own["dropout"] = 0.1;
  // Gradients of 1 and more, as a model has at its start, would overflow from 65536 on, and their updates be left out.
  config.loss_scale = "dynamic";
  config.scaler_preset = "default";
  config.init_scale = 1024;
  std::vector<Trainer::StepResult> single;
  TrainedScaled(config, &single);
  for (const char* precision : {"fp16", "bf16"}) {
    for (const char* amp : {"O1", "O2", "O3"}) {
      SCOPED_TRACE(fmt::format("{} {}", precision, amp));
      config.precision = precision;
      config.amp = amp;
      std::vector<Trainer::StepResult> results;
      const HostTensors found = TrainedScaled(config, &results);
      ExpectEqualOnAllRanks(found);
      ASSERT_EQ(results.size(), single.size());
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(std::isfinite(results[i].grad_norm)) << "update " << i << " was left out";
        EXPECT_NEAR(results[i].loss, single[i].loss, 0.02 * single[i].loss) << "of update " << i;
      }
    }
  }
}

// Each of the sums of the residual stream is rounded to a half: by half a unit of bf16's last place (2^-9), as if all
// to one side. Losses differ by no more than that, and not by nothing.
TEST(HalfModels, WithHalfResidualsHaveTheLossesOfO1) {
  TrainConfig config = SmallConfig();
  config.precision = "bf16";
  config.amp = "O1";
  std::vector<Trainer::StepResult> full, half;
  TrainedScaled(config, &full);
  config.residual_precision = "half";
  ExpectEqualOnAllRanks(TrainedScaled(config, &half));
  ASSERT_EQ(half.size(), full.size());
  const double tolerance = (2 * 2 + 1) * 0x1p-9;  // two sums in each of two blocks, and that with the positions
  bool differ = false;
  for (size_t i = 0; i < half.size(); ++i) {
    EXPECT_NEAR(half[i].loss, full[i].loss, tolerance * full[i].loss) << "of update " << i;
    differ |= half[i].loss != full[i].loss;
  }
  EXPECT_TRUE(differ);
}

// The host learns of it one update later on an asynchronous device, and names what overflowed first: the head, whose
// gradient times 2^24 is beyond fp16.
TEST(DynamicLossScale, AtItsFloorTheRunStopsWithTheNameOfATensor) {
  for (const char* amp : {"O1", "O2"}) {
    SCOPED_TRACE(amp);
    TrainConfig config = SmallConfig();
    config.precision = "fp16";
    config.amp = amp;
    config.loss_scale = "dynamic";
    config.scaler_preset = "default";
    config.init_scale = 16777216;
    config.min_scale = 16777216;
    config.hysteresis = 1;
    config.steps = 12;
    config.suffix = std::string("floor_") + amp;
    auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const auto result = run->trainer->Train();
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(Message(result.status()), HasSubstr("the loss scale has come down to its floor of 1.67772e+07"));
    EXPECT_THAT(Message(result.status()),
                testing::ContainsRegex(
                    "the first from the loss backwards that is not finite.* is that of head\\.(weight|bias)"));
  }
}

// Three seeds of each. What the seed does to f32 is the noise: means of three seeds may differ by two deviations of the
// difference of two such means.
TEST(HalfModels, LearnFashionMnistAsF32Does) {
  if (!Environment("SWITCHYARD_DATA")) GTEST_SKIP() << "SWITCHYARD_DATA is not set";
  if (SharedWorld().size() > 1 || Environment("SWITCHYARD_COLLECTIVE") != "shm") GTEST_SKIP() << "of one rank, whatever the collective";
  if (SharedWorld().device->info().plugin != "cpu") GTEST_SKIP() << "on the cpu plugin";
  constexpr int kSeeds = 3;
  std::map<std::string, std::vector<double>> losses;
  for (const auto& [precision, amp] : std::vector<std::pair<std::string, std::string>>{
           {"fp32", "O0"}, {"fp16", "O1"}, {"fp16", "O2"}, {"bf16", "O2"}}) {
    for (uint64_t seed = 42; seed < 42 + kSeeds; ++seed) {
      TrainConfig config = FashionMnistConfig();
      config.batch_size = 64;
      config.steps = 120;
      config.seed = seed;
      config.precision = precision;
      config.amp = amp;
      config.suffix = fmt::format("{}{}-{}", precision, amp, seed);
      auto run = MakeRun(config, SharedWorld());
      ASSERT_TRUE(run.ok()) << Message(run.status());
      const auto result = run->trainer->Train();
      ASSERT_TRUE(result.ok()) << Message(result.status());
      losses[precision + amp].push_back(result->evaluation.metrics.at("loss"));
    }
  }
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  const std::vector<double>& full = losses.at("fp32O0");
  double squares = 0;
  for (const double loss : full) squares += std::pow(loss - mean(full), 2);
  const double deviation = std::sqrt(squares / (kSeeds - 1));
  EXPECT_LT(mean(full), 1.3) << "of 2.3 at the start";
  for (const auto& [name, found] : losses)
    EXPECT_NEAR(mean(found), mean(full), 2 * deviation * std::sqrt(2.0 / kSeeds)) << name;
}

}  // namespace
}  // namespace switchyard
