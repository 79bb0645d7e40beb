// --recompute=auto is the least recomputation that fits, by the bytes that the plans really take, and the same on all
// ranks.
#include "core/train/fitting.h"

#include <set>

#include "core/train/plans.h"
#include "core/train/timetable.h"
#include "gmock/gmock.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr int kUpdates = 3;

class Fitting : public testing::Test {
 protected:
  void SetUp() override {
    TrainConfig config = SmallConfig();
    config.own = {{"width", 32}, {"depth", 5}, {"heads", 2}};
    auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    run_ = std::move(*run);
    // Of five blocks: one, two, three and all of them.
    for (const char* setting : {"none", "every:5", "every:3", "every:2", "blocks"}) {
      TrainConfig c = run_.setup.config;
      c.recompute = setting;
      TrainingPlans plans;
      ASSERT_TRUE(plans
                      .CompileRun(c, run_.setup.model, SharedWorld().mesh, SharedWorld().rank(), kUpdates,
                                  *SharedWorld().device, SharedWorld().reference.get())
                      .ok());
      by_setting_.emplace_back(setting, plans.PlannedBytes());
    }
  }
  StatusOr<RecomputeChoice> Choose(double available) const {
    return LeastRecomputeOfAll(run_.setup.config, run_.setup.model, SharedWorld(), kUpdates, available);
  }

  switchyard::Run run_;
  std::vector<std::pair<std::string, uint64_t>> by_setting_;  // from the fewest blocks on
};

TEST_F(Fitting, TheLeastRecomputationThatFitsIsChosen) {
  for (const auto& [setting, bytes] : by_setting_) {
    const auto first = std::find_if(by_setting_.begin(), by_setting_.end(),
                                    [bytes = bytes](const auto& one) { return one.second <= bytes; });
    const auto choice = Choose(static_cast<double>(bytes));
    ASSERT_TRUE(choice.ok()) << Message(choice.status());
    EXPECT_EQ(choice->setting, first->first) << "with " << bytes << " bytes";
    EXPECT_EQ(choice->bytes, first->second);
  }
  EXPECT_LT(by_setting_.back().second, by_setting_.front().second);
  const auto less = Choose(static_cast<double>(by_setting_.front().second - 1));
  ASSERT_TRUE(less.ok());
  EXPECT_NE(less->setting, "none") << "a byte too few";
}

TEST_F(Fitting, AllRanksDoWhatTheOneWithTheLeastMemoryNeeds) {
  const bool last = SharedWorld().rank() == SharedWorld().size() - 1;
  const auto choice = Choose(last ? static_cast<double>(by_setting_.back().second) : 1e12);
  ASSERT_TRUE(choice.ok()) << Message(choice.status());
  EXPECT_EQ(choice->setting, "blocks");
  const auto refused = Choose(last ? 1000 : 1e12);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(refused.status()), HasSubstr("--recompute=auto"));
  EXPECT_THAT(Message(refused.status()),
              HasSubstr(last ? "MB even with --recompute=blocks" : "MB with --recompute=none"));
  EXPECT_EQ(Message(refused.status()).find("no setting fits on all ranks") == std::string::npos, last);
}

// Each rank alone: what a limit refuses, what it says would fit, and that this does.
class MemoryLimit : public Fitting {
 protected:
  static StatusOr<switchyard::Run> RunWithin(TrainConfig config, World& world) {
    config.memory_limit = fmt::format("{}B", world.device->memory_limit());
    return MakeRun(config, world);
  }
  TrainConfig Config(int batch) const {
    TrainConfig config = SmallConfig();
    config.own = {{"width", 32}, {"depth", 5}, {"heads", 2}};
    config.batch_size = batch;
    return config;
  }
  static uint64_t BytesOf(const TrainConfig& config) {
    const auto world = LoneWorld();
    const auto run = MakeRun(config, *world);
    EXPECT_TRUE(run.ok()) << Message(run.status());
    return run.ok() ? run->trainer->planned_bytes() : 0;
  }
};

TEST_F(MemoryLimit, IsReachedToTheByte) {
  TrainConfig config = Config(4);
  config.suffix = fmt::format("rank{}", SharedWorld().rank());
  const uint64_t bytes = BytesOf(config);
  const auto exact = LoneWorld(bytes);
  auto run = RunWithin(config, *exact);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto result = run->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(exact->device->peak_held_bytes(), bytes) << "the run, its checkpoint and its evaluation";

  const auto less = LoneWorld(bytes - 1);
  const Status refused = RunWithin(config, *less).status();
  ASSERT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused),
              testing::StartsWith(fmt::format("--memory_limit={}B: a training of vit_micro", bytes - 1)));
  for (const char* use : {"(weights ", ", gradients ", ", optimizer state ", ", activations ", ", workspace "})
    EXPECT_THAT(Message(refused), HasSubstr(use));
  EXPECT_EQ(less->device->peak_held_bytes(), 0u) << "refused before anything is allocated";
}

TEST_F(MemoryLimit, NamesASettingThatFits) {
  // Half the samples at a time cost nothing but time; where there is one sample, fewer blocks are kept.
  TrainConfig half = Config(2);
  half.accumulation = 2;
  const auto world = LoneWorld(BytesOf(half));
  EXPECT_THAT(Message(RunWithin(Config(4), *world).status()),
              HasSubstr(fmt::format("--batch_size=2 --accumulation=2 would fit, with {:.1f} MB",
                                    static_cast<double>(world->device->memory_limit()) / 1e6)));
  EXPECT_TRUE(RunWithin(half, *world).ok());

  TrainConfig some = Config(1);
  some.recompute = "every:3";
  const auto small = LoneWorld(BytesOf(some));
  EXPECT_THAT(Message(RunWithin(Config(1), *small).status()), HasSubstr("; --recompute=every:3 would fit"));
  EXPECT_TRUE(RunWithin(some, *small).ok());

  const auto tiny = LoneWorld(1000);
  EXPECT_THAT(Message(RunWithin(Config(4), *tiny).status()),
              testing::AllOf(HasSubstr("none of the settings that take less would fit, the smallest, --batch_size=1 "
                                       "--accumulation=4 --recompute=blocks, with "),
                             HasSubstr("`switchyard explain --search --world=N --memory_limit=1000B`")));
}

TEST_F(MemoryLimit, HoldsForWhatIsChosenToFit) {
  const TrainConfig config = run_.setup.config;
  TrainConfig some = config;
  some.recompute = "every:2";
  const auto all = LoneWorld();
  TrainingPlans plans;
  ASSERT_TRUE(
      plans.CompileRun(some, run_.setup.model, all->mesh, 0, kUpdates, *all->device, all->reference.get()).ok());
  const auto world = LoneWorld(plans.PlannedBytes());
  const auto choice = LeastRecomputeOfAll(config, run_.setup.model, *world, kUpdates, DeviceBytesOf(*world));
  ASSERT_TRUE(choice.ok()) << Message(choice.status());
  EXPECT_EQ(choice->setting, "every:2");
  const auto largest = LargestBatch(config, run_.setup.model, *world, 1024, std::nullopt);
  ASSERT_TRUE(largest.ok()) << Message(largest.status());
  EXPECT_LT(*largest, 1024);
}

TEST_F(MemoryLimit, HoldsForAnEvaluation) {
  TrainConfig config = Config(8);
  const auto world = LoneWorld(200000);
  config.memory_limit = "200KB";
  const auto setup = SettledRun(config, *world);
  ASSERT_TRUE(setup.ok()) << Message(setup.status());
  const auto refused = Trainer::CreateForEvaluation(setup->config, setup->model, *world);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused.status()), testing::StartsWith("--memory_limit=200KB: an evaluation of vit_micro needs"));
}

// At 8 pixels the last stage has one place, so that a single image has no variance there.
TEST(AutomaticBatch, BeginsWhereBatchNormsHaveMoreThanOneValue) {
  TrainConfig config = SmallConfig();
  config.model = "resnet18";
  config.image_size = 8;
  config.own = {{"width", 4}, {"stem", "small"}};
  const auto world = LoneWorld();
  const auto run = MakeRun(config, *world);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto largest = LargestBatch(run->setup.config, run->setup.model, *world, 4, 64);
  ASSERT_TRUE(largest.ok()) << Message(largest.status());
  EXPECT_EQ(*largest, 4);
  const auto single = LargestBatch(run->setup.config, run->setup.model, *world, 1, 64);
  EXPECT_THAT(Message(single.status()), HasSubstr("more than one value per channel"));
}

// Of unequal devices: what fits on one may be too much for another, and the other way round.
TEST_F(Fitting, RanksOfUnequalDevicesAgree) {
  World& world = SharedWorld();
  const bool last = world.rank() == world.size() - 1;
  const auto least = [&](const std::set<int>& here, const std::set<int>& on_last) {
    const auto found =
        LeastThatFitsAll(world, 5, [&](int at) -> StatusOr<bool> { return (last ? on_last : here).contains(at); });
    EXPECT_TRUE(found.ok()) << Message(found.status());
    return found.value_or(-1);
  };
  EXPECT_EQ(least({0, 1, 2, 3, 4}, {0, 4}), 0);
  EXPECT_EQ(least({0, 1, 2, 3, 4}, {3, 4}), 3);
  const bool alone = world.size() == 1;  // it is the last one, then
  EXPECT_EQ(least({1, 3, 4}, {2, 4}), alone ? 2 : 4) << "2 is the larger of the first ones, and does not fit on both";
  EXPECT_EQ(least({0, 2}, {1, 3}), alone ? 1 : 5) << "nothing does";
  EXPECT_EQ(least({}, {}), 5);
}

}  // namespace
}  // namespace switchyard
