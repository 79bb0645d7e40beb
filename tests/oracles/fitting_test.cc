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
