// State of the model itself, running statistics: every micro-batch moves it, where an update ends all ranks hold that
// of rank 0, unless each keeps its own, and it is saved with the weights and taken up again with them.
#include "core/train/checkpoint.h"
#include "core/train/weight_files.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

// A narrow ResNet whose weights stay as they are, so that statistics depend on the samples alone.
TrainConfig StandingConfig() {
  TrainConfig config = SmallConfig();
  config.model = "resnet18";
  config.own = {{"width", 4}, {"stem", "small"}};
  config.image_size = 16;
  config.batch_size = 2;
  config.train_size = 96;
  config.lr = 0;
  config.weight_decay = 0;
  return config;
}

HostTensors RunningStatistics(const HostTensors& weights) {
  HostTensors found;
  for (const auto& [name, tensor] : weights) {
    if (name.ends_with("running_mean") || name.ends_with("running_var")) found[name] = tensor;
  }
  EXPECT_EQ(found.size(), 40u) << "of 20 norms";
  return found;
}

// The statistics after updates on samples of which `rank` sees its own.
HostTensors After(const TrainConfig& config, World& world, int rank, int updates) {
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return {};
  const int count = config.batch_size * config.accumulation;
  for (int update = 0; update < updates; ++update) {
    HostBatch batch;
    for (int i = 0; i < count; ++i) batch.Append(run->setup, fmt::format("of rank {}", rank), update * count + i);
    const auto result = run->trainer->Step(batch.tensors());
    EXPECT_TRUE(result.ok()) << Message(result.status());
  }
  return RunningStatistics(*run->trainer->Parameters());
}

TEST(ModelState, EveryMicroBatchMovesIt) {
  TrainConfig together = StandingConfig(), apart = StandingConfig();
  together.accumulation = 3;
  const auto lone = LoneWorld(), other = LoneWorld();
  const HostTensors expected = After(apart, *other, 0, 3);
  ExpectEqual(After(together, *lone, 0, 1), expected);
  for (const float value : expected.at("bn1.running_var").values) EXPECT_NE(value, 1) << "as it began";
}

TEST(ModelState, IsThatOfRankZeroOnAllRanks) {
  TrainConfig config = StandingConfig();
  config.accumulation = 2;
  const HostTensors found = After(config, SharedWorld(), SharedWorld().rank(), 2);
  ExpectEqualOnAllRanks(found);
  const auto lone = LoneWorld();
  ExpectEqual(found, After(config, *lone, 0, 2));
}

TEST(ModelState, StaysEachRanksOwnWhereItIsNotBroadcast) {
  TrainConfig config = StandingConfig();
  config.broadcast_buffers = false;
  const HostTensors found = After(config, SharedWorld(), SharedWorld().rank(), 2);
  const auto lone = LoneWorld();
  ExpectEqual(found, After(config, *lone, SharedWorld().rank(), 2));
}

TrainConfig MovingConfig() {
  TrainConfig config = StandingConfig();
  config.lr = 0.05f;
  config.momentum = 0.9f;
  config.recompute = "blocks";
  config.train_size = int64_t{3} * config.batch_size * SharedWorld().size();
  config.steps = 4;
  config.save_every = 2;
  config.keep = 0;
  return config;
}

TEST(ModelState, IsSavedWithTheWeightsAndTakenUpAgain) {
  TrainConfig config = MovingConfig();
  config.suffix = "model_state";
  auto whole = MakeRun(config, SharedWorld());
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto result = whole->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const HostTensors expected = *whole->trainer->Parameters();
  RunningStatistics(expected);
  ExpectEqualOnAllRanks(expected);

  if (SharedWorld().communicator) {
    ASSERT_TRUE(SharedWorld().communicator->Barrier("saved").ok());
  }
  TrainConfig on = config;
  on.resume = result->run_folder + "/checkpoints/step-00000002";
  auto resumed = MakeRun(on, SharedWorld());
  ASSERT_TRUE(resumed.ok()) << Message(resumed.status());
  const auto again = resumed->trainer->Train();
  ASSERT_TRUE(again.ok()) << Message(again.status());
  ExpectEqual(*resumed->trainer->Parameters(), expected);

  // Evaluation reads it: the same weights in a trainer that only evaluates give the same loss.
  const auto evaluation = resumed->trainer->Evaluate(*resumed->setup.validation);
  ASSERT_TRUE(evaluation.ok()) << Message(evaluation.status());
  auto evaluator = Trainer::CreateForEvaluation(resumed->setup.config, resumed->setup.model, SharedWorld());
  ASSERT_TRUE(evaluator.ok()) << Message(evaluator.status());
  const Status loaded = (*evaluator)->LoadWeights(result->run_folder);
  ASSERT_TRUE(loaded.ok()) << Message(loaded);
  const auto same = (*evaluator)->Evaluate(*resumed->setup.validation);
  ASSERT_TRUE(same.ok()) << Message(same.status());
  EXPECT_EQ(same->metrics, evaluation->metrics);

  const auto checkpoint = LoadCheckpoint(result->run_folder);
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  ASSERT_NE(checkpoint->weights.Find("layer1.0.bn1.running_var"), nullptr);
  EXPECT_EQ(checkpoint->state.Find("layer1.0.bn1.running_var"), nullptr);
  EXPECT_EQ(checkpoint->weights.Find("layer2.0.conv1.weight")->shape, (std::vector<int64_t>{8, 4, 3, 3}))
      << "as PyTorch has it";
}

// As many ranks as saved take up each its own, so that the run ends as it would have; one rank alone takes that of
// rank 0.
TEST(ModelState, EachRankTakesItsOwnUpAgain) {
  World& world = SharedWorld();
  TrainConfig config = MovingConfig();
  config.broadcast_buffers = false;
  config.accumulation = 2;
  config.train_size = 2 * *config.train_size;
  config.suffix = "own_model_state";
  auto whole = MakeRun(config, world);
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto result = whole->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const HostTensors expected = *whole->trainer->Parameters();
  TakeTurns();

  TrainConfig on = config;
  on.resume = result->run_folder + "/checkpoints/step-00000002";
  if (world.rank() == 0) {
    TrainConfig elsewhere = on;
    elsewhere.batch_size *= world.size();
    const auto lone = LoneWorld();
    const auto alone = MakeRun(elsewhere, *lone);
    ASSERT_TRUE(alone.ok()) << Message(alone.status());
    const HostTensors held = RunningStatistics(*alone->trainer->Parameters());
    const auto checkpoint = LoadCheckpoint(*on.resume);
    ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
    ExpectEqual(held, RunningStatistics(*ReadWeights(checkpoint->weights)));
    const TensorFile::Entry* const own = checkpoint->state.Find("each_rank/bn1.running_mean");
    ASSERT_EQ(own != nullptr, world.size() > 1);
    if (own != nullptr) {
      EXPECT_EQ(own->shape, (std::vector<int64_t>{world.size(), 4}));
    }
    EXPECT_FALSE(checkpoint->record.contains("micro_step")) << "a save falls between two updates";
  }
  TakeTurns();
  auto resumed = MakeRun(on, world);
  ASSERT_TRUE(resumed.ok()) << Message(resumed.status());
  const auto again = resumed->trainer->Train();
  ASSERT_TRUE(again.ok()) << Message(again.status());
  ExpectEqual(*resumed->trainer->Parameters(), expected);
}

}  // namespace
}  // namespace switchyard
