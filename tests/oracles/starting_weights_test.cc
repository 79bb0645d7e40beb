// Ranks draw the same weights from a seed, or agree on those of one rank; what they read from files they compare.
#include <gmock/gmock.h>

#include "core/train/parameters.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class StartingWeights : public testing::Test {
 protected:
  void SetUp() override {
    if (world_.size() == 1) GTEST_SKIP() << "one rank has nobody to agree with";
    auto settled = SettledRun(SmallConfig(), world_);
    ASSERT_TRUE(settled.ok()) << Message(settled.status());
    const Status ready = Prepare(*settled);
    ASSERT_TRUE(ready.ok()) << Message(ready);
  }
  Status Prepare(const RunSetup& setup) {
    SY_ASSIGN_OR_RETURN(task_, TaskOf(setup.config, setup.model, world_.device.get()));
    SY_ASSIGN_OR_RETURN(Program program, ProgramOf(setup.config, *task_, world_.mesh, world_.rank(), 4, {}));
    SY_RETURN_IF_ERROR(engine_.Compile(setup.config, std::move(program)));
    return engine_.Allocate(task_->tensors());
  }
  // As this rank has them after it drew them by `draw`; what was said is in said_.
  HostTensors Drawn(const DrawWeight& draw) {
    testing::internal::CaptureStderr();
    const Status begun = InitializeParameters(engine_, 42 + static_cast<uint64_t>(world_.rank()), draw);
    said_ = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(begun.ok()) << Message(begun);
    auto weights = DownloadParameters(engine_);
    EXPECT_TRUE(weights.ok()) << Message(weights.status());
    return weights.ok() ? *weights : HostTensors{};
  }

  World& world_ = SharedWorld();
  std::unique_ptr<Task> task_;
  Engine engine_{SharedWorld()};
  std::string said_;
};

TEST_F(StartingWeights, AreDrawnByEachRankFromTheSeedOfRankZero) {
  int drawn = 0;
  std::mutex mutex;
  const HostTensors weights = Drawn([&](const auto& name, const auto& type, const auto& initializer, uint64_t seed) {
    const std::lock_guard lock(mutex);
    ++drawn;
    EXPECT_EQ(seed, 42u);
    return nn::InitialValues(name, type, initializer, seed);
  });
  EXPECT_EQ(drawn, static_cast<int>(weights.size())) << "a rank that does not draw a weight by itself is sent it";
  ExpectEqualOnAllRanks(weights);
  EXPECT_THAT(said_, Not(HasSubstr("differs")));
}

TEST_F(StartingWeights, ThatOneRankDrawsDifferentlyAreTakenFromRankZeroAndNamed) {
  const HostTensors expected = Drawn(nn::InitialValues);
  const std::string odd = expected.begin()->first;
  const HostTensors weights = Drawn([&](const auto& name, const auto& type, const auto& initializer, uint64_t seed) {
    auto values = nn::InitialValues(name, type, initializer, seed);
    if (name == odd && world_.rank() == 1) values.back() += 1e-3f;
    return values;
  });
  ExpectEqual(weights, expected);
  if (world_.rank() == 0) {
    EXPECT_THAT(said_, HasSubstr(odd + " as rank 1 draws it from the seed differs from that of rank 0"));
  }
}

TEST_F(StartingWeights, ThatWereReadDifferentlyAreRefusedByNameOnAllRanks) {
  HostTensors weights = Drawn(nn::InitialValues);
  EXPECT_TRUE(VerifyReadWeights(engine_, weights, "file").ok());
  const std::string odd = weights.begin()->first;
  if (world_.rank() == 1) weights.begin()->second.values.back() += 1e-3f;
  const Status refused = VerifyReadWeights(engine_, weights, "file");
  EXPECT_THAT(Message(refused),
              HasSubstr("the weights read from file are not the same on all ranks: rank 1 has \"" + odd));
}

}  // namespace
}  // namespace switchyard
