// Ranks that are stages of a pipeline train as one rank does that adds up the same micro-batches, on every mesh of the
// ranks that are here; what they save is whole, and goes on on any other mesh.
#include <cmath>

#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"
#include "tools/switchyard/stages.h"

namespace switchyard {
namespace {

// Of an update, and blocks of the model: as many as stages on any mesh of the ranks.
int MicroBatches() { return std::max(4, SharedWorld().size()); }
int Samples() { return 8 * MicroBatches(); }  // of an update

TrainConfig PipelineConfig() {
  TrainConfig config = SmallConfig();
  config.own = {{"width", 16}, {"depth", MicroBatches()}, {"heads", 2}, {"dropout", 0.1}};
  config.train_size = Samples() * 3 / 2;
  config.accumulation = MicroBatches();
  config.clip = 0.5f;  // by a norm that counts every weight once, and adds them up in another order
  config.bucket_mb = 0.01;
  return config;
}

TrainConfig ResidualConfig() {
  TrainConfig config = PipelineConfig();
  config.model = "resnet18";
  config.own = {{"width", 4}, {"stem", "small"}};
  return config;
}

// In fp16, so that the first update overflows and no other does.
void ScaleTooFarAtFirst(TrainConfig* config) {
  config->precision = "fp16";
  config->amp = "O2";
  config->loss_scale = "dynamic";
  config->scaler_preset = "default";
  config->init_scale = 4294967296.0f;
  config->backoff_factor = 1.0f / (1 << 22);
  config->hysteresis = 1;
}

struct Stepped {
  HostTensors start, parameters;
  double loss = 0, norm = 0, loss_scale = 1;  // of the last update
  int left_out = 0;                           // updates, because they overflowed
};

// Three updates on samples that do not depend on the mesh.
Stepped StepOn(TrainConfig config, World& world) {
  Stepped found;
  config.pp = world.mesh.pipeline;
  config.tp = world.mesh.tensor;
  config.sp = config.sp && config.tp > 1;
  config.batch_size = Samples() / MicroBatches() / world.data_size();
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return found;
  auto start = run->trainer->Parameters();
  EXPECT_TRUE(start.ok()) << Message(start.status());
  if (!start.ok()) return found;
  found.start = std::move(*start);
  for (int64_t update = 0; update < 3; ++update) {
    HostBatch batch;
    for (int64_t sample = world.data_rank(); sample < Samples(); sample += world.data_size())
      batch.Append(run->setup, "pipeline", update * Samples() + sample);
    const auto result = run->trainer->Step(batch.tensors());
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return found;
    found.norm = result->grad_norm;
    found.loss_scale = result->loss_scale;
    found.left_out += !std::isfinite(result->grad_norm);
    found.loss = *world.Mean("loss", result->loss);
  }
  auto parameters = run->trainer->Parameters();
  EXPECT_TRUE(parameters.ok()) << Message(parameters.status());
  if (parameters.ok()) found.parameters = std::move(*parameters);
  return found;
}

class Stages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world_.size() == 1) GTEST_SKIP() << "one rank is no pipeline";
  }
  void TearDown() override { world_.mesh = {.data = world_.size()}; }
  void Arrange(int stages, int tensor = 1) {
    world_.mesh = {.data = world_.size() / stages / tensor, .pipeline = stages, .tensor = tensor};
  }

  // tolerance: where ranks round otherwise, as they do with halves of another number of samples. tensor: ranks of a
  // stage. Returns what one rank does.
  Stepped ExpectAsOneRank(const TrainConfig& config, double tolerance = 1e-5, int tensor = 1) {
    const auto alone = LoneWorld();
    const Stepped expected = StepOn(config, *alone);
    for (int stages = 2; stages * tensor <= world_.size(); stages *= 2) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", world_.size() / stages / tensor, stages, tensor));
      Arrange(stages, tensor);
      const Stepped found = StepOn(config, world_);
      ExpectAs(expected.parameters, found.parameters, world_.data_size() == 1 && tensor == 1 && config.clip == 0,
               tolerance);
      ExpectEqualOnAllRanks(found.parameters);
      EXPECT_NEAR(found.norm, expected.norm, tolerance * expected.norm);
      EXPECT_NEAR(found.loss, expected.loss, tolerance * expected.loss);
      EXPECT_EQ(found.loss_scale, expected.loss_scale);
      EXPECT_EQ(found.left_out, expected.left_out);
    }
    return expected;
  }
  // bits: where gradients are added up in the same order.
  void ExpectAs(const HostTensors& expected, const HostTensors& found, bool bits = true,
                double tolerance = 1e-5) const {
    if (bits) return ExpectEqual(found, expected);
    ExpectClose(found, expected, tolerance);
  }
  World& world_ = SharedWorld();
};

TEST_F(Stages, TrainAsOneRank) {
  TrainConfig config = PipelineConfig();
  ExpectAsOneRank(config);
  config.recompute = "blocks";
  config.clip = 0;
  ExpectAsOneRank(config);
}

TEST_F(Stages, ThatAreInterleavedTrainAsOneRankAndWaitLess) {
  TrainConfig config = PipelineConfig();
  config.clip = 0;
  config.own["depth"] = 2 * world_.size();
  config.pp_interleave = 2;
  ExpectAsOneRank(config);
  Arrange(world_.size());
  config.pp = world_.size();
  config.batch_size = 1;
  config.own["width"] = 64;
  const auto run = MakeRun(config, world_);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto replica = TrainingPlans::OfReplica(run->setup.config, run->setup.model, world_.mesh, 0, 1, world_);
  ASSERT_TRUE(replica.ok()) << Message(replica.status());
  const PipelineReport told = ReportOf(*replica, world_.mesh, MicroBatches());
  for (int s = 0; s < world_.size(); ++s) {
    const StageReport& stage = told.stages[static_cast<size_t>(s)];
    ASSERT_EQ(stage.chunks.size(), 2u);
    for (int c = 0; c < 2; ++c) {
      EXPECT_EQ(stage.chunks[static_cast<size_t>(c)].first_block, c * world_.size() + s);
      EXPECT_EQ(stage.chunks[static_cast<size_t>(c)].last_block, c * world_.size() + s);
    }
  }
  // All blocks cost the same; what stands before and behind them little.
  EXPECT_NEAR(told.bubble, (world_.size() - 1.0) / (2 * MicroBatches() + world_.size() - 1.0), 0.05);
}

TEST_F(Stages, MoveRunningStatisticsAsOneRank) {
  if (world_.size() > 2) GTEST_SKIP() << "data ranks have statistics of their own samples";
  ExpectAsOneRank(ResidualConfig());
}

TEST_F(Stages, NormaliseOverTheDataParallelRanksOfEach) {
  if (world_.size() < 4) GTEST_SKIP() << "two stages, each on two data-parallel ranks";
  TrainConfig config = ResidualConfig();
  config.sync_batchnorm = true;
  config.lr /= 50;  // normalising few values makes much of what is rounded, and more of it with each long step
  const auto alone = LoneWorld();
  const Stepped expected = StepOn(config, *alone);
  Arrange(2);
  const Stepped found = StepOn(config, world_);
  ExpectEqualOnAllRanks(found.parameters);
  EXPECT_LE(DistanceOfMovements(found.parameters, expected.parameters, expected.start), 1e-5);
  EXPECT_NEAR(found.loss, expected.loss, 1e-5 * expected.loss);
}

// Halves are rounded alike, and a loss that is scaled too far leaves the update out on every stage.
TEST_F(Stages, TrainInHalfPrecisionAsOneRank) {
  TrainConfig config = PipelineConfig();
  config.clip = 0;
  config.layer_decay = 0.7f;
  config.precision = "bf16";
  ExpectAsOneRank(config, 1e-2);
  ScaleTooFarAtFirst(&config);
  EXPECT_EQ(ExpectAsOneRank(config, 1e-2).left_out, 1);
}

TEST_F(Stages, OfTensorParallelRanksTrainAsOneRank) {
  if (world_.size() < 4) GTEST_SKIP() << "two stages of two ranks each";
  TrainConfig config = PipelineConfig();
  ExpectAsOneRank(config, 1e-5, 2);
  config.sp = true;
  config.recompute = "blocks";
  ExpectAsOneRank(config, 1e-5, 2);
  config.sp = false;
  ScaleTooFarAtFirst(&config);
  EXPECT_EQ(ExpectAsOneRank(config, 1e-2, 2).left_out, 1);
}

// What is saved is whole: a run that is taken up on another mesh ends as if it had always been there.
class StagesThatSave : public Stages {
 protected:
  static TrainConfig Config() {
    TrainConfig config = PipelineConfig();
    config.momentum = 0.9f;
    config.ema_decay = 0.9f;
    config.augmentation = "crop_flip";
    config.train_size = 4 * Samples();
    config.steps = 6;
    config.save_every = 1;
    config.keep = 0;
    config.tensorboard = true;  // its pictures are computed by all stages
    return config;
  }
  struct Ended {
    HostTensors parameters;
    std::string folder;
    EvaluationResult evaluation;
    TrainableModel model;
    std::string Step(int step) const { return fmt::format("{}/checkpoints/step-{:08}", folder, step); }
  };
  Ended Train(TrainConfig config, int stages, const std::string& from = "", int tensor = 1) {
    Arrange(stages, tensor);
    config.pp = stages;
    config.tp = tensor;
    config.batch_size = Samples() / MicroBatches() / world_.data_size();
    if (!from.empty()) config.resume = from;
    Ended ended;
    auto run = MakeRun(config, world_);
    EXPECT_TRUE(run.ok()) << Message(run.status());
    if (!run.ok()) return ended;
    const auto result = run->trainer->Train();
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return ended;
    EXPECT_EQ(result->evaluation.count, *config.validation_size);
    EXPECT_EQ(result->updates, *config.steps);
    ended = {*run->trainer->Parameters(), result->run_folder, result->evaluation, run->setup.model};
    EXPECT_TRUE(world_.communicator->Barrier("turns").ok());
    return ended;
  }
};

TEST_F(StagesThatSave, GoOnOnAnotherMesh) {
  const TrainConfig config = Config();
  const Ended apart = Train(config, 1), staged = Train(config, world_.size());
  EXPECT_FALSE(apart.evaluation.ema.empty());
  for (const auto& [name, value] : apart.evaluation.metrics)
    EXPECT_NEAR(staged.evaluation.metrics.at(name), value, 1e-4);
  for (const auto& [name, value] : apart.evaluation.ema) EXPECT_NEAR(staged.evaluation.ema.at(name), value, 1e-4);
  ExpectClose(staged.parameters, apart.parameters, 1e-5);
  ExpectClose(Train(config, world_.size(), apart.Step(3)).parameters, apart.parameters, 1e-5);
  ExpectClose(Train(config, 1, staged.Step(4)).parameters, apart.parameters, 1e-5);
}

TEST_F(StagesThatSave, GoOnWithTheBitsOfARunThatWasNotInterrupted) {
  TrainConfig config = Config();
  config.optimizer = "adamw";
  config.lr = 1e-3f;
  for (const int zero : {0, 1}) {
    SCOPED_TRACE(zero);
    config.zero = zero;
    const Ended whole = Train(config, 2);
    const bool reads = world_.rank() == 0;
    const SavedByName state = reads ? StateOf(whole.Step(6), whole.model) : SavedByName();
    const std::string model = reads ? Bytes(whole.Step(6) + "/model.safetensors") : "";
    TakeTurns();
    ExpectEqual(Train(config, 2, whole.Step(2)).parameters, whole.parameters);
    if (!reads) continue;
    ExpectEqualTensors(StateOf(whole.Step(6), whole.model), state);
    ExpectEqualBytes(Bytes(whole.Step(6) + "/model.safetensors"), model, "the model");
  }
}

TEST_F(StagesThatSave, GoOnFromTensorParallelStagesToOthersAndBack) {
  if (world_.size() < 4) GTEST_SKIP() << "two stages of two ranks each";
  const TrainConfig config = Config();
  const Ended apart = Train(config, 1), divided = Train(config, 2, "", 2);
  ExpectClose(divided.parameters, apart.parameters, 1e-5);
  ExpectClose(Train(config, 2, apart.Step(3), 2).parameters, apart.parameters, 1e-5);
  ExpectClose(Train(config, 1, divided.Step(4)).parameters, apart.parameters, 1e-5);
  ExpectEqual(Train(config, 2, divided.Step(2), 2).parameters, divided.parameters);
  TrainConfig on = config;
  on.clip = 0;
  on.resume = divided.Step(3);
  const auto alone = LoneWorld();
  Arrange(2, 2);
  ExpectClose(StepOn(on, world_).parameters, StepOn(on, *alone).parameters, 1e-5);
}

// Moments and counters are the same on one rank and on stages, whoever saved them.
TEST_F(StagesThatSave, GoOnWithTheBitsOfOneRank) {
  TrainConfig config = Config();
  config.optimizer = "adamw";
  config.lr = 1e-3f;
  config.clip = 0;
  const auto alone = LoneWorld();
  for (const int stages : {1, world_.size()}) {
    SCOPED_TRACE(stages);
    TrainConfig on = config;
    on.resume = Train(config, stages).Step(3);
    Arrange(world_.size());
    const Stepped found = StepOn(on, world_), expected = StepOn(on, *alone);
    ExpectAs(expected.parameters, found.parameters);
    EXPECT_NEAR(found.norm, expected.norm, 1e-5 * expected.norm);
  }
}

TEST_F(Stages, AreExplainedAsTheyAre) {
  TrainConfig config = PipelineConfig();
  Arrange(world_.size());
  config.pp = world_.size();
  const auto run = MakeRun(config, world_);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto replica =
      TrainingPlans::OfReplica(run->setup.config, run->setup.model, world_.mesh, 0, *config.steps, world_);
  ASSERT_TRUE(replica.ok()) << Message(replica.status());
  const PipelineReport told = ReportOf(*replica, world_.mesh, MicroBatches());
  ASSERT_EQ(told.stages.size(), static_cast<size_t>(world_.size()));
  EXPECT_EQ(told.stages[static_cast<size_t>(world_.rank())].bytes, run->trainer->allocated_bytes());
  EXPECT_EQ((*replica)[static_cast<size_t>(world_.rank())]->Report().flops, run->trainer->report().flops);
  int64_t parameters = 0, all = 0;
  int next = 0;
  for (const StageReport& stage : told.stages) {
    parameters += stage.parameters;
    ASSERT_EQ(stage.chunks.size(), 1u);
    EXPECT_EQ(stage.chunks[0].first_block, next) << "blocks go to stages in their order, none twice";
    next = stage.chunks[0].last_block + 1;
  }
  const HostTensors weights = *run->trainer->Parameters();
  for (const auto& [name, tensor] : weights) all += static_cast<int64_t>(tensor.values.size());
  EXPECT_EQ(parameters, all);
  // Were all stages as dear, they would wait for (S − 1) / (M + S − 1) of the time; these nearly are.
  EXPECT_NEAR(told.bubble, (world_.size() - 1.0) / (MicroBatches() + world_.size() - 1.0), 0.05);
}

TEST_F(Stages, HoldNoMoreForMoreMicroBatches) {
  TrainConfig config = PipelineConfig();
  Arrange(world_.size());
  config.pp = world_.size();
  config.batch_size = 1;
  std::vector<int64_t> activations;
  int64_t gradients = 0;
  for (const int micro_batches : {2 * world_.size(), 6 * world_.size()}) {
    config.accumulation = micro_batches;
    const auto run = MakeRun(config, world_);
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const auto replica = TrainingPlans::OfReplica(run->setup.config, run->setup.model, world_.mesh, 0, 1, world_);
    ASSERT_TRUE(replica.ok()) << Message(replica.status());
    const Layout& layout = *(*replica)[static_cast<size_t>(world_.rank())]->layout;
    activations.push_back(static_cast<int64_t>(layout.bytes(kActivationsArena)));
    gradients = static_cast<int64_t>(layout.bytes(kGradientsArena));
  }
  // Of 4 S more, whose messages may lie longer, but not their gradients.
  EXPECT_LT(activations[1] - activations[0], world_.size() * gradients);
}

TEST_F(Stages, NeedAsManyMicroBatches) {
  TrainConfig config = PipelineConfig();
  config.accumulation = world_.size() - 1;
  config.batch_size = 1;
  Arrange(world_.size());
  config.pp = world_.size();
  const auto run = MakeRun(config, world_);
  EXPECT_THAT(Message(run.status()),
              testing::HasSubstr(fmt::format("a smaller --pp, or --batch_size={}", world_.size())));
}

}  // namespace
}  // namespace switchyard
