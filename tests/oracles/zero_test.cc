// Ranks that share the optimizer's update (--zero=1) end with the bits of ranks that each update all, hold their share
// of the moments alone, and save them whole.
#include "core/base/environment.h"
#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

struct Ended {
  HostTensors parameters;
  std::string folder;
  uint64_t bytes = 0;  // planned
};

// Six updates, all saved.
TrainConfig ZeroConfig(const std::string& optimizer) {
  TrainConfig config = SmallConfig();
  config.optimizer = optimizer;
  config.momentum = 0.9f;
  config.lr = optimizer == "sgd" ? 0.05f : 1e-3f;
  config.clip = 1;
  config.layer_decay = 0.8f;
  config.batch_size = 2;
  config.train_size = int64_t{8} * SharedWorld().size();
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.bucket_mb = 0.02;  // several gathers
  return config;
}

Ended Train(TrainConfig config, int zero, const std::string& from = "") {
  Ended ended;
  config.zero = zero;
  if (!from.empty()) config.resume = from;
  auto run = MakeRun(config, SharedWorld());
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return ended;
  ended.bytes = run->trainer->planned_bytes();
  const auto result = run->trainer->Train();
  EXPECT_TRUE(result.ok()) << Message(result.status());
  if (!result.ok()) return ended;
  ended.folder = result->run_folder;
  ended.parameters = *run->trainer->Parameters();
  ExpectEqualOnAllRanks(ended.parameters);
  if (SharedWorld().communicator) {
    EXPECT_TRUE(SharedWorld().communicator->Barrier("turns").ok());
  }
  return ended;
}

std::string Step(const Ended& run, int step) { return fmt::format("{}/checkpoints/step-{:08}", run.folder, step); }

// The tensors of two checkpoints are the same bytes.
void ExpectSameState(const std::string& found_in, const std::string& expected_in) {
  if (SharedWorld().rank() != 0) return;
  const auto found = LoadCheckpoint(found_in), expected = LoadCheckpoint(expected_in);
  ASSERT_TRUE(found.ok()) << Message(found.status());
  ASSERT_TRUE(expected.ok()) << Message(expected.status());
  ASSERT_EQ(found->state.entries().size(), expected->state.entries().size());
  for (const TensorFile::Entry& entry : expected->state.entries()) {
    const TensorFile::Entry* const other = found->state.Find(entry.name);
    ASSERT_NE(other, nullptr) << entry.name;
    EXPECT_EQ(other->shape, entry.shape) << entry.name;
    std::vector<char> one(static_cast<size_t>(entry.bytes)), two(static_cast<size_t>(other->bytes));
    ASSERT_TRUE(expected->state.Read(entry, one.data()).ok() && found->state.Read(*other, two.data()).ok());
    EXPECT_EQ(one, two) << entry.name;
  }
}

class SharedUpdates : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedUpdates, HaveTheBitsOfWholeOnes) {
  const TrainConfig config = ZeroConfig(GetParam());
  const Ended whole = Train(config, 0), shared = Train(config, 1);
  ExpectEqual(shared.parameters, whole.parameters);
  ExpectSameState(Step(shared, 6), Step(whole, 6));
  // Taken up by ranks that share, from those that did not, and the other way round.
  ExpectEqual(Train(config, 1, Step(whole, 3)).parameters, whole.parameters);
  ExpectEqual(Train(config, 0, Step(shared, 4)).parameters, whole.parameters);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SharedUpdates, ::testing::Values("sgd", "adam", "adamw"));

TEST(SharedUpdate, HasTheBitsOfWholeOnesWithAccumulationAveragesAndHalves) {
  TrainConfig config = ZeroConfig("adamw");
  config.accumulation = 2;
  config.train_size = int64_t{16} * SharedWorld().size();
  config.ema_decay = 0.9f;
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    config.precision = precision;
    config.amp = "O2";
    const Ended whole = Train(config, 0), shared = Train(config, 1);
    ExpectEqual(shared.parameters, whole.parameters);
    ExpectSameState(Step(shared, 6), Step(whole, 6));
  }
}

TEST(SharedUpdate, HoldsItsShareOfTheMomentsAlone) {
  TrainConfig config = ZeroConfig("adamw");
  config.own["width"] = 64;
  config.steps = 1;

  const int ranks = SharedWorld().size();
  const auto state = [&](int zero) {
    config.zero = zero;
    auto run = MakeRun(config, SharedWorld());
    EXPECT_TRUE(run.ok()) << Message(run.status());
    if (!run.ok()) return std::pair<double, double>();
    TrainingPlans plans;
    const Status compiled =
        plans.CompileRun(run->setup.config, run->setup.model, SharedWorld().mesh, 1, *SharedWorld().device, nullptr);
    EXPECT_TRUE(compiled.ok()) << Message(compiled);
    const auto moments = static_cast<double>(plans.layout->bytes(kStateArena));
    double parameters = 0;
    const HostTensors tensors = *run->trainer->Parameters();
    for (const auto& [name, tensor] : tensors) parameters += 4.0 * static_cast<double>(tensor.values.size());
    return std::pair(moments, parameters);
  };
  const auto [whole, parameters] = state(0);
  const double shared = state(1).first;
  EXPECT_NEAR(whole - shared, 2 * parameters * (1 - 1.0 / ranks), 0.05 * parameters);
}

TEST(SharedUpdate, RefusesWhatItCannotShare) {
  TrainConfig config = ZeroConfig("lamb");
  config.zero = 1;
  const Status lamb = MakeRun(config, SharedWorld()).status();
  if (SharedWorld().size() == 1) {
    EXPECT_TRUE(lamb.ok()) << "nobody is there to share with: " << Message(lamb);
  } else {
    EXPECT_THAT(Message(lamb), ::testing::HasSubstr("use --optimizer=adamw, adam or sgd"));
  }
  config.optimizer = "adamw";
  config.zero = 3;
  EXPECT_THAT(Message(MakeRun(config, SharedWorld()).status()),
              ::testing::HasSubstr("--zero=3: only 0 and 1 are there"));
}

}  // namespace
}  // namespace switchyard
