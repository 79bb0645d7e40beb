// Ranks that divide each model among them train as one rank does, on every mesh of the ranks that are here; what they
// save is whole, and goes on on any other mesh.
#include "core/base/environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

// Samples of an update: micro-step by micro-step, data rank r takes r, r + W, …
HostBatch OwnBatch(const RunSetup& setup, int64_t update, const World& world) {
  HostBatch batch;
  const int64_t global = int64_t{setup.config.batch_size} * world.data_size();
  for (int64_t a = 0; a < setup.config.accumulation; ++a) {
    for (int64_t i = world.data_rank(); i < global; i += world.data_size())
      batch.Append(setup, "tensor_parallel", (update * setup.config.accumulation + a) * global + i);
  }
  return batch;
}

HostTensors Trained(TrainConfig config, World& world, float* norm) {
  config.tp = world.mesh.tensor;
  config.batch_size = 8 / world.data_size();
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return {};
  for (int64_t update = 0; update < 3; ++update) {
    const HostBatch batch = OwnBatch(run->setup, update, world);
    const auto result = run->trainer->Step(batch.tensors());
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return {};
    *norm = result->grad_norm;
  }
  auto parameters = run->trainer->Parameters();
  EXPECT_TRUE(parameters.ok()) << Message(parameters.status());
  return parameters.ok() ? std::move(*parameters) : HostTensors();
}

class OnMeshes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (8 % world_.size() != 0) GTEST_SKIP() << "8 samples do not divide over " << world_.size() << " ranks";
  }
  void TearDown() override { world_.mesh = {.data = world_.size()}; }

  void ExpectAsOneRank(const TrainConfig& config, double tolerance) {
    const auto alone = LoneWorld();
    float expected_norm = 0;
    const HostTensors expected = Trained(config, *alone, &expected_norm);
    for (int tensor = 2; tensor <= world_.size(); ++tensor) {
      if (world_.size() % tensor != 0) continue;
      SCOPED_TRACE(tensor);
      world_.mesh = {.data = world_.size() / tensor, .tensor = tensor};
      float norm = 0;
      const HostTensors found = Trained(config, world_, &norm);
      ExpectClose(found, expected, tolerance);
      ExpectEqualOnAllRanks(found);
      EXPECT_NEAR(norm, expected_norm, tolerance * expected_norm);
    }
  }
  World& world_ = SharedWorld();
};

TEST_F(OnMeshes, DividedModelsTrainAsOneRank) {
  TrainConfig config = SmallConfig();
  config.clip = 0.5f;  // the norm counts every weight once
  ExpectAsOneRank(config, 1e-5);
  config.accumulation = 2;
  ExpectAsOneRank(config, 1e-5);
}

// Those that hold the same parts. Ranks that only share a model have no sums to take, and gradients are their device's.
TEST_F(OnMeshes, GradientsLieInMemoryOfTheRanksThatSumThem) {
  const bool owns = world_.size() > 1 && world_.communicator->AllocateShared(64).ok();
  for (int tensor = 1; tensor <= world_.size(); ++tensor) {
    if (world_.size() % tensor != 0) continue;
    world_.mesh = {.data = world_.size() / tensor, .tensor = tensor};
    TrainConfig config = SmallConfig();
    config.tp = tensor;
    const uint64_t before = world_.device->allocated_bytes();
    const auto run = MakeRun(config, world_);
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const uint64_t gradients = run->trainer->report().memory[kGradientsArena].bytes;
    EXPECT_GT(gradients, 0u);
    const uint64_t of_device = world_.device->allocated_bytes() - before;
    EXPECT_EQ(of_device + (owns && world_.data_size() > 1 ? gradients : 0), run->trainer->planned_bytes()) << tensor;
  }
}

TEST_F(OnMeshes, DividedPerceptronsTrainAsOneRank) {
  TrainConfig config = SmallConfig();
  config.model = "mlp";
  config.own = {{"width", 64}, {"depth", 3}, {"dropout", 0.2}};
  ExpectAsOneRank(config, 1e-5);
}

TEST_F(OnMeshes, RanksThatDivideTheSamplesBetweenDividedLayersTrainAsOneRank) {
  TrainConfig config = SmallConfig();
  config.clip = 0.5f;
  config.own["dropout"] = 0.2;
  const auto alone = LoneWorld();
  float expected_norm = 0, norm = 0;
  const HostTensors expected = Trained(config, *alone, &expected_norm);
  if (world_.size() == 1) GTEST_SKIP() << "one rank has nobody to share a model with";
  config.sp = true;
  for (const int tensor : {2, world_.size()}) {
    if (world_.size() % tensor != 0) continue;
    SCOPED_TRACE(tensor);
    world_.mesh = {.data = world_.size() / tensor, .tensor = tensor};
    for (const char* precision : {"fp32", "bf16"}) {
      config.precision = precision;
      const HostTensors found = Trained(config, world_, &norm);
      const double tolerance = config.precision == "bf16" ? 2e-2 : 1e-5;
      ExpectClose(found, expected, tolerance);
      ExpectEqualOnAllRanks(found);
      EXPECT_NEAR(norm, expected_norm, tolerance * expected_norm);
    }
  }
}

// What is saved is whole: a run that is taken up on another mesh ends as if it had always been there.
TEST_F(OnMeshes, RunsGoOnOnAnotherMesh) {
  if (world_.size() == 1) GTEST_SKIP() << "one rank has one mesh";
  TrainConfig config = SmallConfig();
  config.momentum = 0.9f;
  config.clip = 1;
  config.ema_decay = 0.9f;
  config.own["dropout"] = 0.2;
  config.augmentation = "crop_flip";
  config.train_size = 32;
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.tensorboard = true;  // its pictures are computed by all ranks that share a model
  const auto train = [&](int tensor, const std::string& suffix, const std::string& from) {
    world_.mesh = {.data = world_.size() / tensor, .tensor = tensor};
    TrainConfig on = config;
    on.tp = tensor;
    on.batch_size = 8 / world_.data_size();
    on.suffix = suffix;
    if (!from.empty()) on.resume = from;
    auto run = MakeRun(on, world_);
    EXPECT_TRUE(run.ok()) << Message(run.status());
    if (!run.ok()) return std::pair(HostTensors(), std::string());
    const auto result = run->trainer->Train();
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return std::pair(HostTensors(), std::string());
    EXPECT_EQ(result->evaluation.count, *config.validation_size);
    EXPECT_EQ(result->updates, *config.steps);
    return std::pair(*run->trainer->Parameters(), result->run_folder);
  };
  const int all = world_.size();
  const auto [expected, apart] = train(1, "apart", "");
  const auto [together, shared] = train(all, "together", "");
  ExpectClose(together, expected, 1e-5);
  ASSERT_TRUE(world_.communicator->Barrier("turns").ok());
  ExpectClose(train(all, "", apart + "/checkpoints/step-00000003").first, expected, 1e-5);
  ASSERT_TRUE(world_.communicator->Barrier("turns").ok());
  ExpectClose(train(1, "", shared + "/checkpoints/step-00000004").first, expected, 1e-5);
}

TEST_F(OnMeshes, DividedModelsTrainInHalfPrecisionAndWithBlocksComputedAgain) {
  TrainConfig config = SmallConfig();
  config.recompute = "blocks";
  ExpectAsOneRank(config, 1e-5);
  config.precision = "bf16";
  ExpectAsOneRank(config, 2e-2);
}

}  // namespace
}  // namespace switchyard
