// Ranks whose gradients are summed node by node train as those that sum at once; nodes are simulated by neighbours.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

constexpr int kSamples = 24;  // of a micro-batch of all ranks

class NodeByNode : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world_.size() < 3) GTEST_SKIP() << "3 ranks or more make nodes of several";
    ASSERT_EQ(kSamples % world_.size(), 0);
  }
  void TearDown() override { world_.mesh = {.data = world_.size()}; }

  HostTensors Trained(TrainConfig config) {
    world_.mesh = {.data = world_.size() / config.tp, .tensor = config.tp};
    config.batch_size = kSamples / world_.data_size();
    auto run = MakeRun(config, world_);
    EXPECT_TRUE(run.ok()) << Message(run.status());
    if (!run.ok()) return {};
    for (int64_t update = 0; update < 3; ++update) {
      HostBatch batch;
      for (int64_t i = world_.data_rank(); i < kSamples * config.accumulation; i += world_.data_size())
        batch.Append(run->setup, "node_by_node", kSamples * config.accumulation * update + i);
      const auto result = run->trainer->Step(batch.tensors());
      EXPECT_TRUE(result.ok()) << Message(result.status());
    }
    auto parameters = run->trainer->Parameters();
    EXPECT_TRUE(parameters.ok()) << Message(parameters.status());
    return parameters.ok() ? std::move(*parameters) : HostTensors();
  }
  void ExpectSame(TrainConfig config, double tolerance) {
    config.hierarchical_allreduce = false;
    const HostTensors at_once = Trained(config);
    config.hierarchical_allreduce = true;
    for (const int ranks : {2, 3}) {  // 4 ranks: nodes of equal size, and of unequal size
      SCOPED_TRACE(ranks);
      config.ranks_per_node = ranks;
      const HostTensors found = Trained(config);
      ExpectClose(found, at_once, tolerance);
      ExpectEqualOnAllRanks(found);
    }
  }
  World& world_ = SharedWorld();
};

TEST_F(NodeByNode, RanksTrainAsAtOnce) {
  TrainConfig config = SmallConfig();
  config.clip = 0.5f;
  config.bucket_mb = 0.01;
  ExpectSame(config, 1e-5);
  config.delay_allreduce = true;
  config.accumulation = 2;
  ExpectSame(config, 1e-5);
  config.delay_allreduce = false;
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("zero {}", zero));
    config.zero = zero;
    ExpectSame(config, 1e-5);
  }
}

TEST_F(NodeByNode, RanksThatShareModelsAndSendHalvesTrainAsAtOnce) {
  TrainConfig config = SmallConfig();
  config.allreduce_dtype = "bf16";
  ExpectSame(config, 2e-2);
  if (world_.size() % 2 != 0) return;
  config.allreduce_dtype = "fp32";
  config.tp = 2;
  const HostTensors at_once = Trained(config);
  config.hierarchical_allreduce = true;
  config.ranks_per_node = 2;  // a model each: nothing lies within a node
  ExpectClose(Trained(config), at_once, 1e-5);
  config.batch_size = kSamples / world_.data_size();
  config.ranks_per_node = 3;
  EXPECT_THAT(Message(MakeRun(config, world_).status()), testing::HasSubstr("share a model and are on two nodes"));
}

}  // namespace
}  // namespace switchyard
