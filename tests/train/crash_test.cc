// The machine stops at any call of a save, and the disk has lost any of what was not fsynced: what it then holds is the
// old or the new content, whole. Each fsync of ours is needed for that: leaving out any one of them makes some crash
// lose something, so none can be dropped, misplaced or added for nothing without a test that fails.
#include <functional>

#include "gmock/gmock.h"
#include "tests/train/example_checkpoint.h"
#include "tests/train/lossy_disk.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class CrashTest : public Scratch {
 protected:
  // Says what is wrong with a folder that a crash before call `cut` left, or "".
  using Judge = std::function<std::string(int cut, const std::string& folder)>;

  // Looks at every crash: before each call; with all that was pending lost, with nothing lost, with each single thing
  // lost and with each single thing kept. Returns the first complaint.
  std::string FirstLoss(const RecordedDisk& disk, int forgotten, const Judge& judge) {
    for (int cut = 0; cut <= disk.calls(); ++cut) {
      const std::vector<int> pending = disk.Pending(cut, forgotten);
      std::vector<std::vector<int>> losses = {pending, {}};
      for (const int one : pending) {
        losses.push_back({one});
        losses.push_back(pending);
        std::erase(losses.back(), one);
      }
      for (const auto& lost : losses) {
        const DiskContent content = disk.AfterCrash(cut, lost);
        std::string& verdict = Verdict(cut, content, judge);
        if (verdict == "whole") continue;
        std::string text = fmt::format("before {}: {}; lost:", disk.Describe(cut), verdict);
        for (const int one : lost) text += " " + disk.Describe(one) + ",";
        return text;
      }
    }
    return "";
  }

  void ExpectEveryFsyncIsNeeded(const RecordedDisk& disk, const Judge& judge) {
    EXPECT_EQ(FirstLoss(disk, -1, judge), "");
    const std::vector<int> fsyncs = disk.Fsyncs();
    EXPECT_FALSE(fsyncs.empty());
    for (const int forgotten : fsyncs) {
      EXPECT_NE(FirstLoss(disk, forgotten, judge), "") << "not needed: " << disk.Describe(forgotten);
    }
  }

  int64_t judged() const { return static_cast<int64_t>(verdicts_.size()); }

 private:
  // Crashes of which the same is left, at calls that are judged alike, are looked at once.
  std::string& Verdict(int cut, const DiskContent& content, const Judge& judge) {
    const auto [found, fresh] = verdicts_.try_emplace({phase_(cut), content});
    if (fresh) {
      const std::string folder = In("after");
      fs::create_directory(folder);
      WriteDisk(content, folder);
      const std::string complaint = judge(cut, folder);
      found->second = complaint.empty() ? "whole" : complaint;
      fs::remove_all(folder);
    }
    return found->second;
  }

 protected:
  std::function<int(int cut)> phase_ = [](int) { return 0; };

 private:
  std::map<std::pair<int, DiskContent>, std::string> verdicts_;
};

TEST_F(CrashTest, ACheckpointIsTheOldOrTheNewOneAndEveryFsyncIsNeededForThat) {
  fs::create_directory(In("disk"));
  RecordedDisk disk(In("disk"));
  std::vector<int> saved;  // the call after each save
  for (const int64_t step : {10, 20, 30}) {
    const ExampleCheckpoint example(step);
    ASSERT_TRUE(SaveCheckpoint(In("disk/deep/run"), example.contents, {.best = step != 20, .keep = 1}).ok());
    saved.push_back(disk.calls());
  }
  phase_ = [&](int cut) {
    return static_cast<int>(std::count_if(saved.begin(), saved.end(), [&](int s) { return cut >= s; }));
  };
  const Judge judge = [&](int cut, const std::string& folder) -> std::string {
    const std::string run = folder + "/deep/run";
    const int done = phase_(cut);
    const auto expect = [&](const char* link, int64_t old_step, int64_t new_step) -> std::string {
      const int64_t found = WhichExample(run + "/checkpoints/" + link);
      const bool absent = found == -1 && !fs::is_symlink(run + "/checkpoints/" + link);
      if (found == old_step || found == new_step || (old_step == 0 && absent)) return "";
      return fmt::format("{} is {}, expected {} or {}", link, found, old_step, new_step);
    };
    // After each number of finished saves: (old, new) of `latest` and of `best`.
    constexpr int64_t kLatest[][2] = {{0, 10}, {10, 20}, {20, 30}, {30, 30}};
    constexpr int64_t kBest[][2] = {{0, 10}, {10, 10}, {10, 30}, {30, 30}};
    std::string complaint = expect("latest", kLatest[done][0], kLatest[done][1]);
    if (complaint.empty()) complaint = expect("best", kBest[done][0], kBest[done][1]);
    // A run that goes on from `latest` makes no better one of what was the best there.
    const int64_t latest = WhichExample(run + "/checkpoints/latest"), best = WhichExample(run + "/checkpoints/best");
    if (complaint.empty() && best < (latest == 20 ? 10 : latest))
      complaint = fmt::format("best is {} where latest is {}", best, latest);
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run + "/checkpoints", none)) {
      const std::string name = entry.path().filename().string();
      if (complaint.empty() && name.starts_with("step-") && WhichExample(entry.path().string()) < 0) {
        complaint = name + " is torn";
      }
    }
    return complaint;
  };
  ExpectEveryFsyncIsNeeded(disk, judge);
  EXPECT_GT(judged(), 200) << "different crashes";
}

// A long one goes past the page cache, all but its end.
TEST_F(CrashTest, AReplacedFileIsTheOldOrTheNewOneAndEveryFsyncIsNeededForThat) {
  const std::string texts[] = {"old", std::string((size_t{4} << 20) + 3, 'n')};
  fs::create_directory(In("disk"));
  RecordedDisk disk(In("disk"));
  std::vector<int> saved;
  for (const std::string& text : texts) {
    const auto folder = Folder::Make(In("disk/run/log"));
    ASSERT_TRUE(folder.ok() && folder->Replace("config.json", {BytesOf(text)}).ok());
    saved.push_back(disk.calls());
  }
  phase_ = [&](int cut) {
    return static_cast<int>(std::count_if(saved.begin(), saved.end(), [&](int s) { return cut >= s; }));
  };
  const Judge judge = [&](int cut, const std::string& folder) -> std::string {
    const std::string path = folder + "/run/log/config.json", found = ReadText(path);
    const int done = phase_(cut);
    if ((done == 0 && !fs::exists(path)) || (done < 2 && found == texts[0]) || (done > 0 && found == texts[1])) return "";
    if (done == 0 && found == texts[0]) return "";
    return fmt::format("after {} writes it holds {} bytes: \"{:.20}\"", done, found.size(), found);
  };
  ExpectEveryFsyncIsNeeded(disk, judge);
}

}  // namespace
}  // namespace switchyard
