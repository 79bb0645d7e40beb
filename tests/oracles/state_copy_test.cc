// A copy of the state holds the state as it was when the copy began, however long it takes; on a device that copies in
// the thread that asks, steps are computed beside it up to where they write what is not copied yet.
#include "core/train/state_copy.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/train/parameters.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

constexpr std::chrono::milliseconds kMoment{50};  // in which a step of these models is over many times

// An engine that trains, with parameters and the batch of its first update.
class StateCopyOf : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TrainConfig config = SmallConfig();
    config.model = GetParam();
    if (config.model == "resnet18") {  // which has running statistics
      config.own = {{"width", 8}};
      config.dataset = "synthetic";
      config.image_size = 32;
    }
    config.optimizer = "adamw";
    auto settled = SettledRun(config, SharedWorld());
    ASSERT_TRUE(settled.ok()) << Message(settled.status());
    setup_ = std::move(*settled);
    const Status ready = Prepare();
    ASSERT_TRUE(ready.ok()) << Message(ready);
  }
  Status Prepare() {
    World& world = SharedWorld();
    SY_ASSIGN_OR_RETURN(task_, TaskOf(setup_.config, setup_.model, world.device.get()));
    SY_ASSIGN_OR_RETURN(Program program, ProgramOf(setup_.config, *task_, world.mesh, 0, 4, {}));
    SY_RETURN_IF_ERROR(engine_.Compile(setup_.config, std::move(program)));
    SY_RETURN_IF_ERROR(engine_.Allocate(task_->tensors()));
    SY_RETURN_IF_ERROR(InitializeParameters(engine_, 42));
    SY_RETURN_IF_ERROR(InitializeStates(engine_));
    const float rates[] = {0.1f, 0.1f, 0.1f, 0.1f};
    SY_RETURN_IF_ERROR(engine_.memory().Upload("lr_table", rates, sizeof rates));
    for (int i = 0; i < setup_.config.batch_size; ++i) batch_.Append(setup_, "batch", i);
    SY_RETURN_IF_ERROR(Update());
    return engine_.Synchronize();
  }
  Status Update() {
    const int32_t samples[] = {0, 1, 2, 3};
    const void* const tensors[] = {batch_.images.data(), batch_.labels.data()};
    SY_RETURN_IF_ERROR(engine_.Upload(tensors, samples, updates_++, 0));
    return engine_.RunMicroStep(0);
  }
  std::vector<char> BytesOf(int arena) {
    std::vector<char> bytes(engine_.layout().bytes(arena));
    const Status read = SharedWorld().device->Download(bytes.data(), engine_.memory().place(arena, 0, 0), bytes.size());
    EXPECT_TRUE(read.ok()) << Message(read);
    return bytes;
  }
  std::vector<char> State() { return BytesOf(kStateArena); }
  // Another update, in a thread of its own, which sets `ended_`.
  std::thread UpdateBeside() {
    ended_ = false;
    gradients_ = BytesOf(kGradientsArena);
    return std::thread([this] {
      const Status updated = Update();
      EXPECT_TRUE(updated.ok()) << Message(updated);
      ended_ = true;
    });
  }
  // Waits for that, but not for ever.
  bool HasGradients() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      if (BytesOf(kGradientsArena) != gradients_) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  RunSetup setup_;
  std::unique_ptr<Task> task_;
  Engine engine_{SharedWorld()};
  HostBatch batch_;
  int64_t updates_ = 0;
  std::vector<char> gradients_;  // of the update before
  std::atomic<bool> ended_ = false;
};
INSTANTIATE_TEST_SUITE_P(Models, StateCopyOf, testing::Values("vit_micro", "resnet18"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StateCopyOf, HoldsTheStateOfItsBeginningWhileAStepIsComputed) {
  StateCopy copy(engine_);
  for (int round = 0; round < 2; ++round) {
    const std::vector<char> expected = State();
    ASSERT_TRUE(copy.Begin().ok());
    std::thread step = UpdateBeside();
    const bool writes_in_forward = setup_.config.model == "resnet18";
    EXPECT_TRUE(writes_in_forward || HasGradients()) << "no step beside a copy";
    std::this_thread::sleep_for(kMoment);
    EXPECT_TRUE(engine_.async() || !ended_) << "a step wrote the state before it was copied";
    const Status copied = copy.Wait();
    step.join();
    ASSERT_TRUE(copied.ok()) << Message(copied);
    ASSERT_TRUE(engine_.Synchronize().ok());
    for (const auto& [name, entry] : engine_.layout().entries()) {
      if (entry.arena != kStateArena) continue;
      EXPECT_EQ(std::memcmp(copy.At(entry), expected.data() + entry.offset, entry.bytes), 0) << name;
    }
    EXPECT_FALSE(State() == expected) << "the step did nothing";
  }
}

// Moments lie behind what forward writes: it does not wait for them.
TEST_P(StateCopyOf, AStepWaitsForThoseBytesOnlyThatItWrites) {
  if (engine_.async()) GTEST_SKIP() << "an asynchronous device copies its state at once";
  uint64_t moments = engine_.layout().bytes(kStateArena);
  for (const auto& [name, entry] : engine_.layout().entries()) {
    if (name.starts_with("moment")) moments = std::min(moments, entry.offset);
  }
  for (const auto& [name, entry] : engine_.layout().entries()) {
    ASSERT_TRUE(!entry.of_model || entry.offset < moments) << name;
  }
  StateReading& reading = engine_.memory().state_reading();
  reading.Begin();
  std::thread step = UpdateBeside();
  reading.Reach(moments);
  EXPECT_TRUE(HasGradients());
  std::this_thread::sleep_for(kMoment);
  EXPECT_FALSE(ended_);
  reading.End();
  step.join();
  EXPECT_TRUE(ended_);
}

}  // namespace
}  // namespace switchyard
