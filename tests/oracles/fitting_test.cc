// --recompute=auto is the least recomputation that fits, by the bytes that the plans really take, and the same on all
// ranks.
#include "core/train/fitting.h"

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
                      .CompileRun(c, run_.setup.model, SharedWorld().size(), kUpdates, *SharedWorld().device,
                                  SharedWorld().reference.get())
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
  EXPECT_THAT(Message(refused.status()), HasSubstr(last ? "MB even with --recompute=blocks" : "another rank has less"));
}

}  // namespace
}  // namespace switchyard
