// The machine stops at any call of a run that saves beside its steps: no checkpoint is newer than the run's log, and
// when the run has ended, all of its log stays.
#include "core/base/json.h"
#include "core/train/checkpoint.h"
#include "core/train/metrics.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"
#include "tests/train/crash.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int kLastUpdate = 6;

// The last update of the log in a run folder; 0: none.
int64_t LastLogged(const std::string& run) {
  const auto records = ReadMetrics(run + "/0/log/metrics.jsonl");
  if (!records.ok() || records->empty()) return 0;
  return records->back().value("step", int64_t{0});
}

// The pieces of event files that say where an update's loss stands.
int Events(const std::string& run) {
  constexpr std::string_view kTag = "Loss/training/train_loss";
  std::error_code none;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(run + "/0/log", none)) {
    if (!entry.path().filename().string().starts_with("events.")) continue;
    const std::string text = ReadText(entry.path().string());
    for (size_t at = text.find(kTag); at != std::string::npos; at = text.find(kTag, at + 1)) ++count;
  }
  return count;
}

class LogCrash : public CrashTest {};

TEST_F(LogCrash, NoCheckpointIsNewerThanTheLog) {
  fs::create_directory(In("disk"));
  TrainConfig config = SmallConfig();
  config.output = In("disk");
  config.train_size = 200;
  config.steps = kLastUpdate;
  config.log_every = 1;
  config.save_every = 2;
  config.tensorboard = true;
  config.suffix = "run";
  const auto run = MakeRun(config, SharedWorld());
  ASSERT_TRUE(run.ok()) << Message(run.status());
  RecordedDisk disk(In("disk"));
  const auto result = run->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EndPhase(disk);
  const std::string inside = run->trainer->run_folder().substr(In("disk").size());
  ASSERT_EQ(LastLogged(run->trainer->run_folder()), kLastUpdate);
  ASSERT_EQ(Events(run->trainer->run_folder()), kLastUpdate);
  only_all_ = true;
  const Judge judge = [&](int cut, const std::string& folder) -> std::string {
    int64_t needed = Phase(cut) > 0 ? kLastUpdate : 0;
    if (fs::is_symlink(folder + inside + "/checkpoints/latest")) {
      const auto latest = LoadCheckpoint(folder + inside);
      if (!latest.ok()) return Message(latest.status());
      needed = std::max(needed, latest->record["step"].get<int64_t>());
    } else if (needed > 0) {
      return "no checkpoint is left";
    }
    const int64_t logged = LastLogged(folder + inside);
    if (logged < needed) return fmt::format("the log ends at {}, the latest checkpoint is {}", logged, needed);
    const int events = Events(folder + inside);
    return events < needed ? fmt::format("{} events for {} updates", events, needed) : "";
  };
  EXPECT_EQ(FirstLoss(disk, -1, judge), "");
  EXPECT_GT(judged(), 20) << "different crashes";
}

}  // namespace
}  // namespace switchyard
