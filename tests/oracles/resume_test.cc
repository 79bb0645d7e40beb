// A run taken up at any checkpoint ends with the same bits as one that was never interrupted: parameters, optimizer
// state, counters. On another number of ranks it ends with the same numbers to rounding, after the same updates of the
// same samples at the same rates.
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "core/train/checkpoint.h"
#include "gmock/gmock.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

TrainConfig SavingConfig(int accumulation) {
  TrainConfig config = SmallConfig();
  config.own["dropout"] = 0.2;
  config.own["drop_path"] = 0.1;
  config.batch_size = 2;
  config.accumulation = accumulation;
  SaveEveryUpdate(&config);
  config.suffix = fmt::format("resume_{}", accumulation);
  return config;
}

class Resume : public ::testing::TestWithParam<int> {};

TEST_P(Resume, AnywhereEqualsTheUninterruptedRun) { ExpectToGoOnAnywhere(SavingConfig(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Accumulation, Resume, ::testing::Values(1, 2));

// Scale and both counters are saved: it overflows at first, falls at each second overflow and grows after two updates.
TEST(ResumeMixedPrecision, TheLossScaleGoesOnWhereItStood) {
  for (const char* amp : {"O1", "O2"}) {
    SCOPED_TRACE(amp);
    TrainConfig config = SavingConfig(1);
    config.precision = "fp16";
    config.amp = amp;
    config.loss_scale = "dynamic";
    config.scaler_preset = "default";
    config.init_scale = 67108864;
    config.backoff_factor = 0.0078125f;
    config.growth_interval = 2;
    config.suffix = std::string("resume_") + amp;
    ExpectToGoOnAnywhere(config);
    if (SharedWorld().rank() != 0) continue;
    std::set<std::vector<char>> scales;
    for (int step = 1; step <= *config.steps; ++step) {
      const auto checkpoint = LoadCheckpoint(
          fmt::format("{}/vit_micro/shapes/{}/run/checkpoints/step-{:08}", config.output, *config.suffix, step));
      ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
      for (const char* name : {"loss_scale", "loss_scale_growth", "loss_scale_hysteresis"})
        EXPECT_NE(checkpoint->state.Find(name), nullptr) << name;
      EXPECT_EQ(checkpoint->state.Find("half/head.weight"), nullptr) << "follows from the weight";
      std::vector<char> scale(4);
      ASSERT_TRUE(checkpoint->state.Read(*checkpoint->state.Find("loss_scale"), scale.data()).ok());
      scales.insert(scale);
    }
    EXPECT_GT(scales.size(), 1u) << "it moved";
  }
}

// A reader finds what belongs to a weight by the weight's name, and it has the weight's shape; that each holds the
// weight's own numbers is what the runs above see.
TEST(Saving, MomentsAreNamedAsTheirWeights) {
  TrainConfig config = SavingConfig(1);
  config.steps = 2;
  config.suffix = fmt::format("names_{}", SharedWorld().rank());
  const auto lone = LoneWorld();
  auto run = MakeRun(config, *lone);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto result = run->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const auto checkpoint = LoadCheckpoint(result->run_folder);
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  EXPECT_NE(checkpoint->weights.Find("vit.encoder.layer.0.attention.attention.query.weight"), nullptr);
  for (const TensorFile::Entry& weight : checkpoint->weights.entries()) {
    for (const char* moment : {"moment1/", "moment2/", "ema/"}) {
      const TensorFile::Entry* const found = checkpoint->state.Find(moment + weight.name);
      ASSERT_NE(found, nullptr) << moment << weight.name;
      EXPECT_EQ(found->shape, weight.shape) << found->name;
    }
  }
  EXPECT_NE(checkpoint->state.Find("update"), nullptr);
  EXPECT_EQ(checkpoint->state.entries().size(), 3 * checkpoint->weights.entries().size() + 1);
}

int EpochsBatch() { return 12 % SharedWorld().size() == 0 ? 12 : 24; }

// Epochs of 2 updates on any number of ranks, though on several the sampler's padding would fill a third.
TrainConfig EpochsConfig() {
  TrainConfig config = SavingConfig(1);
  config.optimizer = "sgd";  // adamw divides by the size of gradients that are nothing but rounding
  config.momentum = 0.9f;
  config.lr = 0.05f;
  config.batch_size = EpochsBatch() / SharedWorld().size();
  config.train_size = 3 * EpochsBatch() - 1;
  config.steps.reset();
  config.epochs = 3;
  config.suffix.reset();
  return config;
}

TEST(ResumeElsewhere, OneRankGoesOnWhereManyStoodToTheSameEnd) {
  const TrainConfig config = EpochsConfig();
  auto whole = MakeRun(config, SharedWorld());
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto result = whole->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(result->updates, 6);
  EXPECT_EQ(result->epochs, 3);
  TakeTurns();
  if (SharedWorld().rank() == 0) {
    const auto lone = LoneWorld();
    for (const auto& [from, batch] : {std::pair{1, EpochsBatch()}, {4, 4}, {5, 1}}) {
      SCOPED_TRACE(fmt::format("resumed after update {}, {} images at a time", from, batch));
      TrainConfig on = config;
      on.batch_size = batch;
      on.accumulation = EpochsBatch() / batch;
      on.resume = fmt::format("{}/checkpoints/step-{:08}", result->run_folder, from);
      auto resumed = MakeRun(on, *lone);
      ASSERT_TRUE(resumed.ok()) << Message(resumed.status());
      const auto again = resumed->trainer->Train();
      ASSERT_TRUE(again.ok()) << Message(again.status());
      EXPECT_EQ(again->updates, 6);
      EXPECT_EQ(again->epochs, 3);
      ExpectClose(*resumed->trainer->Parameters(), *whole->trainer->Parameters(), 1e-4);
    }
  }
  TakeTurns();
}

// With consent the global batch changes: what is left of the epochs is trained, and the schedule goes on where it was.
TEST(ResumeElsewhere, AnotherGlobalBatchTrainsTheRestOfTheEpochs) {
  TrainConfig config = EpochsConfig();
  config.epochs = 4;
  config.train_size = 4 * EpochsBatch();  // 4 updates an epoch
  config.warmup = "0.125";
  config.log_every = 1;
  auto whole = MakeRun(config, SharedWorld());
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto result = whole->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(result->updates, 16);
  TakeTurns();
  if (SharedWorld().rank() == 0) {
    const auto lone = LoneWorld();
    const auto rates = [&] {
      std::map<int64_t, double> by_step;
      std::ifstream log(result->run_folder + "/0/log/metrics.jsonl");
      for (std::string line; std::getline(log, line);) {
        const auto record = nlohmann::json::parse(line);
        if (record.contains("lr")) by_step[record["step"]] = record["lr"];
      }
      return by_step;
    };
    auto before = rates();
    TrainConfig on = config;
    on.batch_size = EpochsBatch() * 2 / 3;
    on.accumulation = 3;
    on.resume = result->run_folder + "/checkpoints/step-00000007";
    const auto refused = MakeRun(on, *lone);  // 3 of 4 batches into an epoch
    EXPECT_THAT(Message(refused.status()), testing::HasSubstr(fmt::format("--global_batch_size={} or {}",
                                                                          EpochsBatch() * 3 / 2, EpochsBatch() * 3)));
    on.resume = result->run_folder + "/checkpoints/step-00000006";
    auto resumed = MakeRun(on, *lone);
    ASSERT_TRUE(resumed.ok()) << Message(resumed.status());
    const auto again = resumed->trainer->Train();
    ASSERT_TRUE(again.ok()) << Message(again.status());
    EXPECT_EQ(again->updates, 6 + 5) << "1 of 2 left in the second epoch, 2 in each of two more";
    EXPECT_EQ(again->epochs, 4);
    auto after = rates();
    for (const auto& [step, same] : {std::pair{7, 7}, {8, 9}, {9, 11}, {10, 13}, {11, 15}})
      EXPECT_NEAR(after[step], before[same], 1e-6 * config.lr)
          << "update " << step << " stands where " << same << " did";

    // And back again: one epoch of 4 updates is left.
    on.batch_size = EpochsBatch();
    on.accumulation = 1;
    on.resume = result->run_folder + "/checkpoints/step-00000009";
    auto back = MakeRun(on, *lone);
    ASSERT_TRUE(back.ok()) << Message(back.status());
    const auto end = back->trainer->Train();
    ASSERT_TRUE(end.ok()) << Message(end.status());
    EXPECT_EQ(end->updates, 9 + 4);
    EXPECT_EQ(end->epochs, 4);
  }
  TakeTurns();
}

// What the change did to the schedule is kept: a run that is taken up once more, here in its warm-up, ends as if it had
// not been.
TEST(ResumeElsewhere, TakingUpAChangedRunAgainIsGoingStraightOn) {
  if (SharedWorld().size() > 1 || Environment("SWITCHYARD_COLLECTIVE") != "shm") GTEST_SKIP() << "of one rank, whatever the collective";
  for (const char* warmup : {"2e", "7"}) {
    TrainConfig config = EpochsConfig();
    config.optimizer = "adamw";
    config.epochs = 4;
    config.train_size = 4 * EpochsBatch();
    config.warmup = warmup;
    config.suffix = fmt::format("twice_{}", warmup);
    auto whole = MakeRun(config, SharedWorld());
    ASSERT_TRUE(whole.ok()) << Message(whole.status());
    const auto result = whole->trainer->Train();
    ASSERT_TRUE(result.ok()) << Message(result.status());
    config.batch_size = 6;
    const auto go_on = [&](int from) {
      config.resume = fmt::format("{}/checkpoints/step-{:08}", result->run_folder, from);
      auto resumed = MakeRun(config, SharedWorld());
      EXPECT_TRUE(resumed.ok()) << Message(resumed.status());
      const auto again = resumed->trainer->Train();
      EXPECT_TRUE(again.ok()) << Message(again.status());
      const std::string last = fmt::format("{}/checkpoints/step-{:08}", result->run_folder, again->updates);
      return Bytes(last + "/state.safetensors") + Bytes(last + "/model.safetensors");
    };
    const std::string straight = go_on(2);
    for (const int from : {3, 6, 9, 12}) EXPECT_EQ(go_on(from), straight) << warmup << ", from update " << from;
  }
}

// A class that no sample has, at minus infinity: loss and gradients are finite all the same, and the weights are not.
TEST(Saving, WeightsThatAreNotFiniteAreNotSaved) {
  TrainConfig config = SmallConfig();
  config.classes = 12;
  config.steps = 1;
  config.suffix = fmt::format("broken_{}", SharedWorld().rank());
  const auto lone = LoneWorld();
  auto run = MakeRun(config, *lone);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  HostTensors parameters = *run->trainer->Parameters();
  parameters.at("head.bias").values[11] = -std::numeric_limits<float>::infinity();
  ASSERT_TRUE(run->trainer->SetParameters(parameters).ok());
  const auto result = run->trainer->Train();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(Message(result.status()).find("the parameter head.bias holds values that are not finite after update 1"),
            std::string::npos)
      << Message(result.status());
  EXPECT_FALSE(std::filesystem::exists(run->trainer->run_folder() + "/checkpoints/latest"));
}

}  // namespace
}  // namespace switchyard
