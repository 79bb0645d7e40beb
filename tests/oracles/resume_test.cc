// A run taken up at any checkpoint ends with the same bits as one that was never interrupted: parameters, optimizer
// state, counters.
#include <filesystem>
#include <fstream>
#include <limits>

#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Four updates an epoch, six in all; every update is saved.
TrainConfig SavingConfig(int accumulation) {
  TrainConfig config = SmallConfig();
  config.optimizer = "adamw";
  config.lr = 1e-3f;
  config.schedule = "cosine";
  config.warmup = "2";
  config.clip = 1;
  config.dropout = 0.2f;
  config.drop_path = 0.1f;
  config.augmentation = "crop_flip";
  config.batch_size = 2;
  config.accumulation = accumulation;
  config.train_size = int64_t{4} * config.batch_size * accumulation * SharedWorld().size();
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.suffix = fmt::format("resume_{}", accumulation);
  return config;
}

class Resume : public ::testing::TestWithParam<int> {};

TEST_P(Resume, AnywhereEqualsTheUninterruptedRun) {
  const TrainConfig config = SavingConfig(GetParam());
  auto whole = MakeRun(config, SharedWorld());
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto result = whole->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const HostTensors expected = *whole->trainer->Parameters();
  ExpectEqualOnAllRanks(expected);
  const std::string checkpoints = result->run_folder + "/checkpoints/";

  int resumed_runs = 0;
  for (const int from : {1, 4, 5}) {  // in the middle of the first epoch, between two, in the middle of the second
    SCOPED_TRACE(fmt::format("resumed after update {}", from));
    if (SharedWorld().communicator) {
      ASSERT_TRUE(SharedWorld().communicator->Barrier("saved").ok());
    }
    auto resumed = MakeRun(config, SharedWorld());
    ASSERT_TRUE(resumed.ok()) << Message(resumed.status());
    const Status loaded = resumed->trainer->Resume(fmt::format("{}step-{:08}", checkpoints, from));
    ASSERT_TRUE(loaded.ok()) << Message(loaded);
    const auto again = resumed->trainer->Train();
    ASSERT_TRUE(again.ok()) << Message(again.status());
    EXPECT_EQ(again->updates, config.steps);
    ExpectEqual(*resumed->trainer->Parameters(), expected);
    if (SharedWorld().rank() != 0) continue;
    const std::string last = fmt::format("{}step-{:08}", checkpoints, config.steps),
                      copy = fmt::format("{}-{}", last, ++resumed_runs + 1);
    EXPECT_EQ(Bytes(copy + "/state.safetensors"), Bytes(last + "/state.safetensors")) << "moments and counters";
    EXPECT_EQ(Bytes(copy + "/model.safetensors"), Bytes(last + "/model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(Accumulation, Resume, ::testing::Values(1, 2));

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
