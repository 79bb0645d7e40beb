// Saving goes on beside training: steps are taken while a checkpoint is written, which holds the state of its own step
// all the same; a save that fails ends the run at the next one or at its end, and links name whole checkpoints only.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "core/train/checkpoint.h"
#include "core/train/file_calls.h"
#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr int kFirstSave = 2, kSteps = 6;

std::string Content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class Saving : public testing::Test {
 protected:
  ~Saving() override { ReplaceFileCalls(nullptr); }

  // A run that saves every second update and logs each; `during`: the calls from the start of Train to its end.
  StatusOr<TrainingResult> Train(const std::string& name, const FileCalls& during, int steps = kSteps) {
    TrainConfig config = config_;
    config.optimizer = "adamw";
    config.train_size = 200;
    config.steps = steps;
    config.log_every = 1;
    config.save_every = kFirstSave;
    config.keep = 0;
    config.suffix = name;
    SY_ASSIGN_OR_RETURN(const switchyard::Run run, MakeRun(config, SharedWorld()));
    ReplaceFileCalls(&during);
    auto result = run.trainer->Train();
    ReplaceFileCalls(nullptr);
    folder_ = run.trainer->run_folder();
    return result;
  }
  std::string Checkpoint(const std::string& run_folder, int step) const {
    const std::string folder = fmt::format("{}/checkpoints/step-{:08}", run_folder, step);
    const std::string all = Content(folder + "/model.safetensors") + Content(folder + "/state.safetensors");
    EXPECT_GT(all.size(), 1000u) << folder;
    return all;
  }

  const std::thread::id trains_ = std::this_thread::get_id();
  const FileCalls calls_ = SystemFileCalls();
  TrainConfig config_ = SmallConfig();
  std::string folder_;  // of the last run
};

TEST_F(Saving, StepsGoOnWhileACheckpointIsWrittenWhichHoldsItsOwnStep) {
  const auto plain = Train("plain", calls_);
  ASSERT_TRUE(plain.ok()) << Message(plain.status());
  const std::string plain_folder = folder_;
  // The writing of the first checkpoint waits until the training thread has logged another update.
  std::mutex mutex;
  std::condition_variable logged;
  int updates = 0;
  bool first = true, in_time = false;
  FileCalls slow = calls_;
  slow.write = [&](int descriptor, const void* data, size_t bytes) {
    std::unique_lock lock(mutex);
    if (std::this_thread::get_id() == trains_) {
      const std::string text(static_cast<const char*>(data), bytes);
      updates += text.find("grad_norm") != std::string::npos;
      logged.notify_all();
    } else if (std::exchange(first, false)) {
      in_time = logged.wait_for(lock, std::chrono::seconds(30), [&] { return updates >= kFirstSave + 1; });
    }
    lock.unlock();
    return calls_.write(descriptor, data, bytes);
  };
  const auto beside = Train("beside", slow);
  ASSERT_TRUE(beside.ok()) << Message(beside.status());
  EXPECT_TRUE(in_time) << "no update while the first checkpoint was written";
  for (int step = 2; step <= kSteps; step += 2)
    EXPECT_TRUE(Checkpoint(folder_, step) == Checkpoint(plain_folder, step)) << "step " << step;
}

// Where reading the state takes longer than a step, as it does here at SWITCHYARD_NULL_COPY_MB_S: what is saved is the
// state that a run has which ends there, with no step behind.
TEST_F(Saving, WhatIsSavedIsTheStateBehindItsStep) {
  config_.model = "mlp";
  config_.own = {{"width", 256}};
  const auto whole = Train("whole", calls_);
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const std::string of_whole = folder_;
  const auto ended = Train("ended", calls_, kFirstSave);
  ASSERT_TRUE(ended.ok()) << Message(ended.status());
  EXPECT_TRUE(Checkpoint(of_whole, kFirstSave) == Checkpoint(folder_, kFirstSave));
}

TEST_F(Saving, TakesTheMemoryThatExplainTellsOf) {
  const World& world = SharedWorld();
  const auto free_bytes = [&] {
    const auto info = world.device->plugin().Describe(world.device->info().index);
    EXPECT_TRUE(info.ok()) << Message(info.status());
    return info.ok() ? info->free_bytes : 0;
  };
  TrainConfig config = SmallConfig();
  config.steps = 1;
  config.suffix = "memory";
  const auto run = MakeRun(config, SharedWorld());
  ASSERT_TRUE(run.ok()) << Message(run.status());
  TrainingPlans explained;
  ASSERT_TRUE(
      explained.CompileRun(run->setup.config, run->setup.model, world.mesh, 0, 1, *world.device, world.reference.get())
          .ok());
  const uint64_t told = explained.Report().checkpoint_bytes;
  EXPECT_EQ(told > 0, world.device->async());
  if (!world.device->async()) return;
  const uint64_t before = free_bytes();
  const auto result = run->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(before - free_bytes(), told);
  EXPECT_NE(explained.Report().ToText().find("from the first checkpoint on"), std::string::npos);
}

TEST_F(Saving, AFailureIsTheRunsAtTheNextSaveOrAtTheEnd) {
  // From `step` on: the record of its checkpoint, which is written last, does not fit on the disk.
  for (const int step : {2, kSteps}) {
    FileCalls full = calls_;
    full.openat = [&, step](int folder, const char* name, int flags, mode_t mode) {
      std::error_code none;
      const std::string at = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", folder), none).string();
      if (std::string(name) == "state.json" && at.find(fmt::format("step-{:08}", step)) != std::string::npos) {
        errno = ENOSPC;
        return -1;
      }
      return calls_.openat(folder, name, flags, mode);
    };
    const auto result = Train(fmt::format("full-{}", step), full);
    ASSERT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << Message(result.status());
    EXPECT_THAT(Message(result.status()), HasSubstr(fmt::format("step-{:08}", step)));
    const auto latest = LoadCheckpoint(folder_);
    if (step == 2) {
      EXPECT_EQ(latest.status().code(), absl::StatusCode::kNotFound);
    } else {
      ASSERT_TRUE(latest.ok()) << Message(latest.status());
      EXPECT_EQ(latest->record["step"], kSteps - 2) << "the one before is whole and the latest";
    }
  }
}

}  // namespace
}  // namespace switchyard
