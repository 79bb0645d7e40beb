// The optimizer's state in host memory (--offload=optimizer): training ends with the bits of a device that holds all
// (oracle 4), holds exactly the moments less there, and goes on from checkpoints of either kind. On `null`, whose
// kernels are those of the reference plugin, as the host's beside it are, and which really moves what is offloaded.
#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

struct Ended {
  HostTensors parameters;
  std::string folder;
  int64_t skipped = 0;
};

// Six updates, all saved.
TrainConfig Config(const std::string& optimizer, int zero) {
  TrainConfig config = SmallConfig();
  config.optimizer = optimizer;
  config.zero = zero;
  config.momentum = 0.9f;
  config.lr = optimizer == "sgd" ? 0.05f : 1e-3f;
  config.batch_size = 2;
  config.train_size = int64_t{8} * SharedWorld().size();
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.bucket_mb = 0.02;  // several buckets
  return config;
}

Ended Train(TrainConfig config, const std::string& offload, float fraction = 1, const std::string& from = "") {
  Ended ended;
  config.offload = offload;
  config.offload_optim_frac = fraction;
  if (!from.empty()) config.resume = from;
  auto run = MakeRun(config, SharedWorld());
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return ended;
  EXPECT_EQ(run->trainer->planned_bytes(), run->trainer->allocated_bytes());
  EXPECT_EQ(run->trainer->planned_host_bytes(), run->trainer->host_allocated_bytes());
  EXPECT_EQ(run->trainer->host_allocated_bytes() > 0, offload != "none");
  const auto result = run->trainer->Train();
  EXPECT_TRUE(result.ok()) << Message(result.status());
  if (!result.ok()) return ended;
  ended.folder = result->run_folder;
  ended.skipped = result->skipped_updates;
  ended.parameters = *run->trainer->Parameters();
  ExpectEqualOnAllRanks(ended.parameters);
  TakeTurns();
  return ended;
}

std::string Step(const Ended& run, int step) { return fmt::format("{}/checkpoints/step-{:08}", run.folder, step); }

// The parameters, and all that the last checkpoint holds.
void ExpectSame(const Ended& found, const Ended& expected) {
  ExpectEqual(found.parameters, expected.parameters);
  if (SharedWorld().rank() != 0) return;
  for (const char* file : {"/model.safetensors", "/state.safetensors"})
    EXPECT_EQ(Bytes(Step(found, 6) + file), Bytes(Step(expected, 6) + file)) << file;
}

// The optimizer and the stage of sharing.
class Offload : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    if (SharedWorld().device->info().address_kind == SY_ADDRESS_HOST)
      GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
    if (std::get<1>(GetParam()) > 0 && SharedWorld().size() == 1) GTEST_SKIP() << "one rank shares with nobody";
  }
};

TEST_P(Offload, HasTheBitsOfADeviceThatHoldsAll) {
  const auto& [optimizer, zero] = GetParam();
  const TrainConfig config = Config(optimizer, zero);
  const Ended expected = Train(config, "none"), offloaded = Train(config, "optimizer");
  ExpectSame(offloaded, expected);
  ExpectSame(Train(config, "optimizer", 0.5f), expected);
  // Taken up where the state lay elsewhere, and by ranks that share in another way.
  ExpectSame(Train(config, "optimizer", 1, Step(expected, 3)), expected);
  ExpectSame(Train(config, "none", 1, Step(offloaded, 4)), expected);
  if (optimizer == "lamb" || zero > 1) return;
  TrainConfig other = config;
  other.zero = 1 - zero;
  ExpectSame(Train(other, "optimizer", 0.5f, Step(offloaded, 2)), expected);
}

TEST_P(Offload, LeavesOutWhatOverflowsAndClipsAveragesAndAccumulates) {
  const auto& [optimizer, zero] = GetParam();
  if (optimizer != "adamw") GTEST_SKIP() << "for one optimizer";
  if (zero == 3) GTEST_SKIP() << "not there in half precision";
  TrainConfig config = Config(optimizer, zero);
  config.clip = 0.5f;
  config.ema_decay = 0.9f;
  config.layer_decay = 0.8f;
  config.accumulation = 2;
  *config.train_size *= 2;
  config.precision = "fp16";
  config.loss_scale = "dynamic";
  config.scaler_preset = "default";
  config.init_scale = 1 << 21;  // half precision does not hold the first gradients
  config.hysteresis = 1;
  for (const char* amp : {"O1", "O2"}) {
    SCOPED_TRACE(amp);
    config.amp = amp;
    const Ended expected = Train(config, "none"), offloaded = Train(config, "optimizer");
    EXPECT_GE(expected.skipped, 1);
    EXPECT_LT(expected.skipped, 6);
    EXPECT_EQ(offloaded.skipped, expected.skipped);
    ExpectSame(offloaded, expected);
  }
}

TEST_P(Offload, TakesExactlyTheMomentsFromTheDevice) {
  const auto& [optimizer, zero] = GetParam();
  TrainConfig config = Config(optimizer, zero);
  PlanReport with[2];
  uint64_t moments = 0;
  for (const bool offload : {false, true}) {
    config.offload = offload ? "optimizer" : "none";
    const auto setup = SettledRun(config, SharedWorld());
    ASSERT_TRUE(setup.ok()) << Message(setup.status());
    TrainingPlans plans;
    const Status compiled = plans.CompileRun(setup->config, setup->model, SharedWorld().mesh, SharedWorld().rank(), 6,
                                             *SharedWorld().device, SharedWorld().reference.get());
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    with[offload] = plans.Report();
    for (const auto& [name, entry] : plans.layout->entries()) {
      if (!name.starts_with("moment")) continue;
      EXPECT_EQ(entry.arena, offload && (zero == 0 || !entry.part || entry.part->end > entry.part->begin)
                                 ? kHostStateArena
                                 : kStateArena)
          << name;
      if (entry.arena == kHostStateArena) moments += plans.layout->Align(entry.bytes);
    }
  }
  EXPECT_GT(moments, 0u);
  EXPECT_EQ(with[false].memory[kStateArena].bytes - with[true].memory[kStateArena].bytes, moments);
  EXPECT_EQ(with[true].memory[kHostStateArena].bytes, moments);
  EXPECT_EQ(with[false].memory[kHostStateArena].bytes, 0u);
  EXPECT_EQ(with[true].memory[kGradientsArena].bytes, with[false].memory[kGradientsArena].bytes);
  EXPECT_GT(with[true].host_launches, 1) << "bucket by bucket";
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Offload,
                         ::testing::Values(std::tuple("sgd", 0), std::tuple("adam", 0), std::tuple("adamw", 0),
                                           std::tuple("lamb", 0), std::tuple("sgd", 1), std::tuple("adamw", 1),
                                           std::tuple("adamw", 2), std::tuple("adamw", 3)),
                         [](const auto& info) {
                           return fmt::format("{}_zero_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace switchyard
