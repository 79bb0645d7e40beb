// Ranks draw the same weights from a seed, or agree on those of one rank; what they read from files they compare.
#include <gmock/gmock.h>

#include <atomic>
#include <numeric>

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
  }
  void TearDown() override { world_.mesh = {.data = world_.size()}; }
  Status Prepare(const TrainConfig& config) {
    const int shared = config.tp * config.pp;
    world_.mesh = {.data = world_.size() / shared, .pipeline = config.pp, .tensor = config.tp};
    SY_ASSIGN_OR_RETURN(const RunSetup setup, SettledRun(config, world_));
    SY_ASSIGN_OR_RETURN(task_, TaskOf(setup.config, setup.model, world_.device.get()));
    SY_ASSIGN_OR_RETURN(Program program, ProgramOf(setup.config, *task_, world_.mesh, world_.rank(), 4, {}));
    engine_ = std::make_unique<Engine>(world_);
    SY_RETURN_IF_ERROR(engine_->Compile(setup.config, std::move(program)));
    return engine_->Allocate(task_->tensors());
  }
  // As the ranks have them after each drew them by `draw`; what was said is in said_.
  HostTensors Drawn(const DrawWeight& draw = nn::InitialElements) {
    testing::internal::CaptureStderr();
    const Status begun = InitializeParameters(*engine_, 42 + static_cast<uint64_t>(world_.rank()), draw);
    said_ = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(begun.ok()) << Message(begun);
    auto weights = DownloadParameters(*engine_);
    EXPECT_TRUE(weights.ok()) << Message(weights.status());
    return weights.ok() ? *weights : HostTensors{};
  }
  // What the seed of rank 0 stands for, whole.
  HostTensors Expected() {
    HostTensors expected;
    for (const auto& [name, entry] : engine_->layout().entries()) {
      if (!entry.is_weight()) continue;
      const Shape& shape = entry.whole_shape();
      expected[name] = {shape, nn::InitialValues(name, {DType::kF32, shape}, entry.initializer, 42)};
    }
    return expected;
  }
  // A weight that all ranks hold, wholly or in part, and draw by chance.
  std::string Odd() {
    for (const auto& [name, entry] : engine_->layout().entries()) {
      const bool by_chance =
          entry.initializer.kind != Initializer::kZeros && entry.initializer.kind != Initializer::kConstant;
      if (entry.is_weight() && by_chance) return name;
    }
    return "";
  }

  World& world_ = SharedWorld();
  std::unique_ptr<Task> task_;
  std::unique_ptr<Engine> engine_;
  std::string said_;
};

TEST_F(StartingWeights, AreDrawnByEachRankFromTheSeedOfRankZero) {
  ASSERT_TRUE(Prepare(SmallConfig()).ok());
  int drawn = 0;
  std::mutex mutex;
  const HostTensors weights = Drawn([&](const auto& name, const auto& runs, const auto& initializer, uint64_t seed) {
    const std::lock_guard lock(mutex);
    ++drawn;
    EXPECT_EQ(seed, 42u);
    return nn::InitialElements(name, runs, initializer, seed);
  });
  EXPECT_EQ(drawn, static_cast<int>(weights.size())) << "a rank that does not draw a weight by itself is sent it";
  ExpectEqual(weights, Expected());
  EXPECT_THAT(said_, Not(HasSubstr("differs")));
}

// However a model is divided, and whatever of its averages a rank has.
TEST_F(StartingWeights, AreDrawnByEachRankAsFarAsItHoldsThem) {
  struct Division {
    const char* name;
    int tp, pp, zero;
    bool shares;  // each element of a weight has one owner
  };
  for (const Division& division : {Division{"zero 1", 1, 1, 1, false},
                                   {"zero 3", 1, 1, 3, true},
                                   {"tp 2", 2, 1, 0, false},
                                   {"tp 2, zero 1", 2, 1, 1, false},
                                   {"tp 2, zero 3", 2, 1, 3, false},
                                   {"pp 2", 1, 2, 0, false}}) {
    SCOPED_TRACE(division.name);
    TrainConfig config = SmallConfig();
    config.ema_decay = 0.5f;
    config.tp = division.tp;
    config.pp = division.pp;
    config.zero = division.zero;
    config.accumulation = division.pp;
    if (world_.size() % (config.tp * config.pp) != 0) continue;
    const Status ready = Prepare(config);
    ASSERT_TRUE(ready.ok()) << Message(ready);
    std::atomic<int64_t> drawn = 0;
    const HostTensors weights = Drawn([&](const auto& name, const auto& runs, const auto& initializer, uint64_t seed) {
      const auto values = nn::InitialElements(name, runs, initializer, seed);
      for (const PartRun& run : runs) drawn += run.elements;
      return values;
    });
    const HostTensors expected = Expected();
    ExpectEqual(weights, expected);
    int64_t all = 0, held = 0;
    for (const auto& [name, tensor] : expected) {
      all += static_cast<int64_t>(tensor.values.size());
      const Layout::Entry& entry = *engine_->layout().Find(name);
      held += entry.part ? Elements(ShapeOf(*entry.part)) : entry.type.elements();
      std::vector<float> average(tensor.values.size());
      ASSERT_TRUE(DownloadWhole(*engine_, "ema/" + name, average.data()).ok());
      EXPECT_EQ(average, tensor.values) << "the average of " << name;
    }
    EXPECT_EQ(drawn, held);
    if (division.shares) {
      std::vector<int64_t> of_ranks(static_cast<size_t>(world_.size()));
      const int64_t own = drawn;
      ASSERT_TRUE(world_.communicator->AllGather("drawn", &own, of_ranks.data(), sizeof own, SY_U8).ok());
      EXPECT_EQ(std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0}), all);
    }
    EXPECT_THAT(said_, Not(HasSubstr("differs")));
  }
}

TEST_F(StartingWeights, ThatOneRankDrawsDifferentlyAreTakenFromTheFirstThatHoldsTheSameAndNamed) {
  for (const int tp : {1, 2}) {
    SCOPED_TRACE(tp);
    const int odd_rank = tp == 1 ? 1 : 3, first = odd_rank - (tp == 1 ? 1 : 2);
    if (world_.size() % tp != 0 || world_.size() <= odd_rank) continue;
    TrainConfig config = SmallConfig();
    config.tp = tp;
    config.ema_decay = 0.5f;
    ASSERT_TRUE(Prepare(config).ok());
    const std::string odd = Odd();
    const HostTensors weights = Drawn([&](const auto& name, const auto& runs, const auto& initializer, uint64_t seed) {
      auto values = nn::InitialElements(name, runs, initializer, seed);
      if (name == odd && world_.rank() == odd_rank) values.back() += 1e-3f;
      return values;
    });
    const HostTensors expected = Expected();
    ExpectEqual(weights, expected);
    std::vector<float> average(expected.at(odd).values.size());
    ASSERT_TRUE(DownloadWhole(*engine_, "ema/" + odd, average.data()).ok());
    EXPECT_EQ(average, expected.at(odd).values);
    if (world_.rank() == 0) {
      EXPECT_THAT(said_, HasSubstr(fmt::format("{} as rank {} draws it from the seed differs from that of rank {}", odd,
                                               odd_rank, first)));
    }
  }
}

TEST_F(StartingWeights, ThatWereReadDifferentlyAreRefusedByNameOnAllRanks) {
  ASSERT_TRUE(Prepare(SmallConfig()).ok());
  HostTensors weights = Drawn();
  EXPECT_TRUE(VerifyReadWeights(*engine_, weights, "file").ok());
  const std::string odd = weights.begin()->first;
  if (world_.rank() == 1) weights.begin()->second.values.back() += 1e-3f;
  const Status refused = VerifyReadWeights(*engine_, weights, "file");
  EXPECT_THAT(Message(refused),
              HasSubstr("the weights read from file are not the same on all ranks: rank 1 has \"" + odd));
}

}  // namespace
}  // namespace switchyard
