// Ranks that have parts of the state write each its own: all that one rank gathers and writes is in their files, no
// rank holds more of it than it has, and the failure of any is that of the save on all.
#include <fcntl.h>
#include <sys/types.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "core/train/checkpoint.h"
#include "core/train/file_calls.h"
#include "core/train/plans.h"
#include "core/train/snapshot.h"
#include "gmock/gmock.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class ShardedSaving : public testing::Test {
 protected:
  ~ShardedSaving() override {
    ReplaceFileCalls(nullptr);
    world_.mesh = {.data = world_.size()};
  }

  TrainConfig Config(const std::string& suffix) const {
    TrainConfig config = SmallConfig();
    config.optimizer = "adamw";
    config.lr = 1e-3f;
    config.ema_decay = 0.9f;
    config.batch_size = 12 / world_.data_size();
    config.train_size = 48;
    config.steps = 4;
    config.save_every = 2;
    config.keep = 0;
    config.bucket_mb = 0.02;
    config.suffix = suffix;
    return config;
  }
  struct Ended {
    Status status;
    std::string folder;
    TrainConfig config;
    TrainableModel model;
    std::string Step(int step) const { return fmt::format("{}/checkpoints/step-{:08}", folder, step); }
  };
  Ended Train(const TrainConfig& config, const FileCalls* calls = nullptr) {
    auto run = MakeRun(config, world_);
    EXPECT_TRUE(run.ok()) << Message(run.status());
    if (!run.ok()) return {run.status(), "", {}, {}};
    ReplaceFileCalls(calls);
    const auto result = run->trainer->Train();
    ReplaceFileCalls(nullptr);
    TakeTurns();
    return {result.status(), run->trainer->run_folder(), run->setup.config, run->setup.model};
  }
  static std::set<std::string> FilesIn(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
  }
  // The path of an open file.
  static std::string PathOf(int descriptor) {
    std::error_code none;
    return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), none).string();
  }

  World& world_ = SharedWorld();
};

TEST_F(ShardedSaving, HasWhatOneRankGathers) {
  struct Division {
    const char* name;
    int zero, tensor, pipeline;
    const char* precision;
  };
  for (const Division& division :
       {Division{"zero1", 1, 1, 1, "fp32"}, Division{"zero3", 3, 1, 1, "fp32"}, Division{"halves", 1, 1, 1, "bf16"},
        Division{"tensor", 0, 2, 1, "fp32"}, Division{"stages", 0, 1, 2, "fp32"},
        Division{"shared_tensor", 2, 2, 1, "fp32"}, Division{"shared_stages", 1, 1, 2, "fp32"},
        Division{"stages_of_tensors", 0, 2, 2, "fp32"}}) {
    const int ranks = division.tensor * division.pipeline;
    if (world_.size() % ranks != 0 || (division.zero > 0 && world_.size() == ranks)) continue;
    SCOPED_TRACE(division.name);
    world_.mesh = {.data = world_.size() / ranks, .pipeline = division.pipeline, .tensor = division.tensor};
    TrainConfig config = Config(fmt::format("sharded_{}", division.name));
    config.zero = division.zero;
    config.tp = division.tensor;
    config.pp = division.pipeline;
    if (division.pipeline > 1) {
      config.accumulation = 2;
      config.batch_size /= 2;
    }
    config.precision = division.precision;
    if (config.precision != "fp32") config.amp = "O2";
    const Ended sharded = Train(config);
    config.suffix = fmt::format("gathered_{}", division.name);
    config.sharded_checkpoints = false;
    const Ended gathered = Train(config);
    ASSERT_TRUE(sharded.status.ok() && gathered.status.ok()) << Message(sharded.status) << Message(gathered.status);
    if (world_.rank() == 0) {
      const std::set<std::string> files = FilesIn(sharded.Step(4));
      EXPECT_TRUE(files.contains(kShardIndex));
      const int writers = division.zero > 0 ? world_.size() : ranks;
      EXPECT_TRUE(files.contains(ShardName(writers - 1, writers))) << "each rank that others are not like";
      EXPECT_FALSE(files.contains("state.safetensors"));
      EXPECT_TRUE(FilesIn(gathered.Step(4)).contains("state.safetensors"));
      for (const int step : {2, 4}) {
        EXPECT_EQ(Bytes(sharded.Step(step) + "/model.safetensors"), Bytes(gathered.Step(step) + "/model.safetensors"));
        ExpectEqualTensors(StateOf(sharded.Step(step), sharded.model), StateOf(gathered.Step(step), gathered.model));
      }
    }
    TakeTurns();
  }
}

// What a rank writes is what it has: an equal part of the moments, which are two thirds of the state, and of weights
// and averages too where the stage shares those.
TEST_F(ShardedSaving, NoRankHoldsWhatOthersHave) {
  TrainConfig config = Config("bytes");
  config.zero = 3;
  std::mutex mutex;
  std::map<std::string, uint64_t> written;  // by file
  const FileCalls real = SystemFileCalls();
  FileCalls counting = real;
  counting.write = [&](int descriptor, const void* data, size_t bytes) {
    const std::lock_guard lock(mutex);
    written[std::filesystem::path(PathOf(descriptor)).filename()] += bytes;
    return real.write(descriptor, data, bytes);
  };
  const Ended ended = Train(config, &counting);
  ASSERT_TRUE(ended.status.ok()) << Message(ended.status);
  uint64_t own = 0, all = 0;
  int files = 0;
  for (const std::string& name : FilesIn(ended.Step(4))) {
    if (!name.starts_with("state-")) continue;
    ++files;
    all += 2 * std::filesystem::file_size(ended.Step(4) + "/" + name);  // of two checkpoints
    own += written.contains(name) ? written[name] : 0;
    EXPECT_EQ(written.contains(name), name == ShardName(world_.rank(), world_.size())) << name;
  }
  EXPECT_EQ(files, world_.size());
  EXPECT_LT(static_cast<double>(own), 1.2 * static_cast<double>(all) / world_.size());
  // Nor does it take memory for more than that.
  TrainingPlans plans;
  const Status compiled = plans.CompileRun(ended.config, ended.model, world_.mesh, world_.rank(), 4, *world_.device,
                                           world_.reference.get());
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_EQ(plans.Report().checkpoint_host_bytes, plans.layout->bytes(kStateArena));
  EXPECT_GT(GatheredBytes(*plans.layout, false, world_.data_size()), plans.layout->bytes(kStateArena));
}

// The disk of one rank, which is not rank 0, is full from the second checkpoint on.
TEST_F(ShardedSaving, AFailureOfAnyRankIsToldToAllAndLeavesTheCheckpointBefore) {
  TrainConfig config = Config("full");
  config.zero = 1;
  config.steps = 8;
  const int victim = world_.size() - 1;
  const FileCalls real = SystemFileCalls();
  FileCalls full = real;
  full.write = [&](int descriptor, const void* data, size_t bytes) -> ssize_t {
    const std::string path = PathOf(descriptor);
    if (path.find("step-00000004") != std::string::npos && path.find("/state-") != std::string::npos) {
      errno = ENOSPC;
      return -1;
    }
    return real.write(descriptor, data, bytes);
  };
  const Ended ended = Train(config, world_.rank() == victim ? &full : nullptr);
  EXPECT_EQ(ended.status.code(), absl::StatusCode::kResourceExhausted) << Message(ended.status);
  EXPECT_THAT(Message(ended.status), HasSubstr("No space left on device"));
  EXPECT_THAT(Message(ended.status), HasSubstr(ShardName(victim, world_.size())));
  if (world_.rank() != victim) {
    EXPECT_THAT(Message(ended.status), HasSubstr(fmt::format("rank {}: ", victim)));
  }
  const auto latest = LoadCheckpoint(ended.folder);
  ASSERT_TRUE(latest.ok()) << Message(latest.status());
  EXPECT_EQ(latest->record["step"], 2);
  // It goes on from there, where there is room again.
  TakeTurns();
  config.resume = ended.folder;
  const Ended again = Train(config);
  ASSERT_TRUE(again.status.ok()) << Message(again.status);
  EXPECT_EQ(LoadCheckpoint(ended.folder)->record["step"], 8);
  TakeTurns();
}

// And that of rank 0, before and behind what the others write.
TEST_F(ShardedSaving, AFailureOfRank0IsToldToAll) {
  for (const std::string file : {"state-", "state.index.json", "state.json"}) {
    SCOPED_TRACE(file);
    TrainConfig config = Config("full_" + file);
    config.zero = 1;
    const FileCalls real = SystemFileCalls();
    FileCalls full = real;
    full.openat = [&](int folder, const char* name, int flags, mode_t mode) {
      if (std::string(name).starts_with(file) && (flags & O_CREAT) != 0 &&
          PathOf(folder).find("step-00000002") != std::string::npos) {
        errno = ENOSPC;
        return -1;
      }
      return real.openat(folder, name, flags, mode);
    };
    const Ended ended = Train(config, world_.rank() == 0 ? &full : nullptr);
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kResourceExhausted) << Message(ended.status);
    EXPECT_EQ(LoadCheckpoint(ended.folder).status().code(), absl::StatusCode::kNotFound);
    TakeTurns();
  }
}

}  // namespace
}  // namespace switchyard
