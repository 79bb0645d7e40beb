// A copy of the state holds the state as it was when the copy began, however late it is read; on a device that copies
// in the thread that asks, steps keep for it what they write before it was read, and nothing else is copied.
#include "core/train/state_copy.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <set>
#include <span>
#include <thread>

#include "core/train/parameters.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

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
    return std::thread([this] {
      const Status updated = Update();
      EXPECT_TRUE(updated.ok()) << Message(updated);
      ended_ = true;
    });
  }
  RunSetup setup_;
  std::unique_ptr<Task> task_;
  Engine engine_{SharedWorld()};
  HostBatch batch_;
  int64_t updates_ = 0;
  std::atomic<bool> ended_ = false;
};
INSTANTIATE_TEST_SUITE_P(Models, StateCopyOf, testing::Values("vit_micro", "resnet18"),
                         [](const auto& info) { return std::string(info.param); });

// Before a step, beside it and after it: whatever has been read until then.
TEST_P(StateCopyOf, HoldsTheStateOfItsBeginningHoweverLateItIsRead) {
  StateCopy copy(engine_);
  for (const double before : {0.0, 0.4, 1.0}) {
    SCOPED_TRACE(before);
    const std::vector<char> expected = State();
    std::vector<std::byte> found(expected.size());
    const auto read = [&](double from, double to) {
      for (const auto& [name, entry] : engine_.layout().entries()) {
        if (entry.arena != kStateArena) continue;
        const auto part = [&](double share) { return static_cast<uint64_t>(share * static_cast<double>(entry.bytes)); };
        const std::span<std::byte> all = std::span(found).subspan(entry.offset, entry.bytes);
        const Status status = copy.Read(entry, part(from), all.subspan(part(from), part(to) - part(from)));
        ASSERT_TRUE(status.ok()) << Message(status);
      }
    };
    auto reading = copy.Begin();
    ASSERT_TRUE(reading.ok()) << Message(reading.status());
    ASSERT_TRUE(copy.Wait().ok());
    read(0, before);
    std::thread step = UpdateBeside();
    read(before, (before + 1) / 2);
    step.join();
    EXPECT_TRUE(ended_) << "a step waits for the copy to be read";
    ASSERT_TRUE(engine_.Synchronize().ok());
    read((before + 1) / 2, 1);
    for (const auto& [name, entry] : engine_.layout().entries()) {
      if (entry.arena != kStateArena) continue;
      EXPECT_EQ(std::memcmp(&found[entry.offset], &expected[entry.offset], entry.bytes), 0) << name;
    }
    EXPECT_FALSE(State() == expected) << "the step did nothing";
  }
}

TEST_P(StateCopyOf, NothingIsKeptForThoseWhoHaveGone) {
  StateCopy copy(engine_);
  auto reading = copy.Begin();
  ASSERT_TRUE(reading.ok()) << Message(reading.status());
  reading->reset();
  ASSERT_TRUE(Update().ok() && engine_.Synchronize().ok());
  EXPECT_EQ(copy.kept_bytes(), 0u);
}

TEST_P(StateCopyOf, WhatWasReadAsAnnouncedIsNotKept) {
  if (engine_.async()) GTEST_SKIP() << "an asynchronous device copies its state at once";
  StateCopy copy(engine_);
  const std::vector<char> expected = State();
  auto reading = copy.Begin();
  ASSERT_TRUE(reading.ok()) << Message(reading.status());
  uint64_t unread = 0;
  for (const auto& [name, entry] : engine_.layout().entries()) {
    if (entry.arena != kStateArena || name.starts_with("moment2/")) continue;  // which nobody is to read
    copy.Announce(entry, entry.bytes);
    copy.Announce(entry, entry.bytes);  // for two who read
    std::vector<std::byte> bytes(entry.bytes);
    ASSERT_TRUE(copy.Read(entry, 0, bytes).ok());
    if (name.starts_with("moment1/")) {
      unread += entry.bytes;
    } else {
      ASSERT_TRUE(copy.Read(entry, 0, bytes).ok());
    }
  }
  ASSERT_GT(unread, 0u);
  copy.AllAnnounced();
  ASSERT_TRUE(Update().ok());
  EXPECT_EQ(copy.kept_bytes(), unread);
  for (const auto& [name, entry] : engine_.layout().entries()) {
    if (!name.starts_with("moment1/")) continue;
    std::vector<std::byte> bytes(entry.bytes);
    ASSERT_TRUE(copy.Read(entry, 0, bytes).ok());
    EXPECT_EQ(std::memcmp(bytes.data(), &expected[entry.offset], entry.bytes), 0) << name;
  }
}

// In the copy's memory it stays as it is made there, whatever steps do.
TEST_P(StateCopyOf, WhatIsTakenIsTheCopysOwn) {
  StateCopy copy(engine_);
  const std::vector<char> before = State();
  auto reading = copy.Begin();
  ASSERT_TRUE(reading.ok()) << Message(reading.status());
  ASSERT_TRUE(copy.Wait().ok());
  const Layout::Entry& entry = *engine_.layout().Find(setup_.config.model == "resnet18" ? "fc.weight" : "head.weight");
  const auto taken = copy.Take(entry);
  ASSERT_TRUE(taken.ok()) << Message(taken.status());
  EXPECT_EQ(std::memcmp(*taken, &before[entry.offset], entry.bytes), 0);
  std::memset(*taken, 7, entry.bytes);
  ASSERT_TRUE(Update().ok() && engine_.Synchronize().ok());
  EXPECT_EQ((*taken)[0], std::byte{7});
  std::vector<std::byte> bytes(entry.bytes);
  EXPECT_EQ(copy.Read(entry, 0, bytes).ok(), engine_.async());
  const std::vector<char> after = State();
  EXPECT_NE(std::memcmp(&after[entry.offset], *taken, entry.bytes), 0) << "the device has what was made of the copy";
  EXPECT_NE(std::memcmp(&after[entry.offset], &before[entry.offset], entry.bytes), 0) << "the step did nothing";
}

// Running statistics in the forward pass, and no weight beside them; all in the update.
TEST_P(StateCopyOf, AStepHasThoseBytesKeptThatItWrites) {
  if (engine_.async()) GTEST_SKIP() << "an asynchronous device copies its state at once";
  const auto overlaps = [](const Layout::Entry& entry, uint64_t begin, uint64_t end) {
    return entry.arena == kStateArena && entry.offset < end && begin < entry.offset + entry.bytes;
  };
  const std::vector<char> gradients = BytesOf(kGradientsArena);
  std::set<std::string> in_forward, in_update;
  engine_.memory().state_reading().Begin([&](uint64_t begin, uint64_t end) {
    const bool updates = BytesOf(kGradientsArena) != gradients;
    for (const auto& [name, entry] : engine_.layout().entries()) {
      if (overlaps(entry, begin, end)) (updates ? in_update : in_forward).insert(name);
    }
  });
  const std::vector<char> before = State();
  ASSERT_TRUE(Update().ok());
  engine_.memory().state_reading().End();
  const std::vector<char> after = State();
  uint64_t statistics = 0;
  for (const auto& [name, entry] : engine_.layout().entries()) {
    if (entry.arena != kStateArena) continue;
    statistics += entry.of_model ? 1 : 0;
    EXPECT_FALSE(in_forward.contains(name) && !entry.of_model) << name << " is kept in forward";
    const bool written = std::memcmp(&before[entry.offset], &after[entry.offset], entry.bytes) != 0;
    EXPECT_TRUE(!written || in_forward.contains(name) || in_update.contains(name)) << name << " is not kept";
  }
  EXPECT_EQ(in_forward.size(), statistics);
  EXPECT_EQ(statistics > 0, setup_.config.model == "resnet18");
}

// An upload writes too.
TEST_P(StateCopyOf, HoldsWhatAnUploadOverwrites) {
  StateCopy copy(engine_);
  const std::vector<char> before = State();
  auto reading = copy.Begin();
  ASSERT_TRUE(reading.ok()) << Message(reading.status());
  ASSERT_TRUE(copy.Wait().ok());
  const std::string name = setup_.config.model == "resnet18" ? "fc.weight" : "head.weight";
  const Layout::Entry& entry = *engine_.layout().Find(name);
  ASSERT_TRUE(engine_.memory().Upload(name, std::vector<char>(entry.bytes, 3).data(), entry.bytes).ok());
  std::vector<std::byte> bytes(entry.bytes);
  ASSERT_TRUE(copy.Read(entry, 0, bytes).ok());
  EXPECT_EQ(std::memcmp(bytes.data(), &before[entry.offset], entry.bytes), 0);
}

}  // namespace
}  // namespace switchyard
