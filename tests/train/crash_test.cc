// The machine stops at any call of a save, and the disk has lost any of what was not fsynced: what it then holds is the
// old or the new content, whole. Each fsync of ours is needed for that: leaving out any one of them makes some crash
// lose something, so none can be dropped, misplaced or added for nothing without a test that fails.
#include "tests/train/crash.h"

#include <set>

#include "gmock/gmock.h"
#include "tests/train/example_checkpoint.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// Says which checkpoint of a run is not whole, or "".
std::string Torn(const std::string& run) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && WhichExample(entry.path().string()) < 0) return name + " is torn";
  }
  return "";
}

TEST_F(CrashTest, ACheckpointIsTheOldOrTheNewOneAndEveryFsyncIsNeededForThat) {
  fs::create_directory(In("disk"));
  RecordedDisk disk(In("disk"));
  for (const int64_t step : {10, 20, 30}) {
    const ExampleCheckpoint example(step);
    ASSERT_TRUE(SaveCheckpoint(In("disk/deep/run"), example.contents, {.best = step != 20, .keep = 1}).ok());
    EndPhase(disk);
  }
  const Judge judge = [&](int cut, const std::string& folder) -> std::string {
    const std::string run = folder + "/deep/run";
    const int done = Phase(cut);
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
    return complaint.empty() ? Torn(run) : complaint;
  };
  ExpectEveryFsyncIsNeeded(disk, judge);
  EXPECT_GT(judged(), 200) << "different crashes";
}

// A long one goes past the page cache, all but its end.
TEST_F(CrashTest, AReplacedFileIsTheOldOrTheNewOneAndEveryFsyncIsNeededForThat) {
  const std::string texts[] = {"old", std::string((size_t{4} << 20) + 3, 'n')};
  fs::create_directory(In("disk"));
  RecordedDisk disk(In("disk"));
  for (const std::string& text : texts) {
    const auto folder = Folder::Make(In("disk/run/log"));
    ASSERT_TRUE(folder.ok() && folder->Replace("config.json", {BytesOf(text)}).ok());
    EndPhase(disk);
  }
  const Judge judge = [&](int cut, const std::string& folder) -> std::string {
    const std::string path = folder + "/run/log/config.json", found = ReadText(path);
    const int done = Phase(cut);
    if ((done == 0 && !fs::exists(path)) || (done < 2 && found == texts[0]) || (done > 0 && found == texts[1])) return "";
    if (done == 0 && found == texts[0]) return "";
    return fmt::format("after {} writes it holds {} bytes: \"{:.20}\"", done, found.size(), found);
  };
  ExpectEveryFsyncIsNeeded(disk, judge);
}

// The state in files of two ranks, which write one after the other; weights that are put together from those.
TEST_F(CrashTest, ACheckpointOfSeveralRanksIsTheOldOrTheNewOneAndEveryFsyncIsNeededForThat) {
  fs::create_directory(In("disk"));
  RecordedDisk disk(In("disk"));
  for (const int64_t step : {10, 20}) {
    const ExampleCheckpoint example(step);
    const auto half = [&](int rank) {
      const Part part{{2}, {DividedAxis::kAllElements, 1, 2, 1}, rank, rank + 1};
      return TensorPiece{{"adam.m.fc.weight", "F32", {1}, example.moment.data() + rank}, {2}, part};
    };
    CheckpointContents contents = example.contents;
    contents.state.clear();
    SharedWriting& shared = contents.shared.emplace();
    shared.files = 2;
    shared.own = {half(0), {{"update", "I64", {}, &example.update}, {}, std::nullopt}};
    std::vector<TensorFileSummary> of_others;
    shared.begin = [&](const std::string& draft) -> Status {
      SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Open(In("disk/run/checkpoints/") + draft));
      SY_ASSIGN_OR_RETURN(of_others.emplace_back(), WriteShard(folder, ShardName(1, 2), {half(1)}));
      return OkStatus();
    };
    shared.wait = [&] { return of_others; };
    shared.join_weights = [&](const Folder& folder, const std::string& name, const SavedTensors&) {
      return WriteTensorFile(folder, name, example.contents.weights);
    };
    ASSERT_TRUE(SaveCheckpoint(In("disk/run"), contents, {.keep = 1}).ok());
    EndPhase(disk);
  }
  const Judge judge = [&](int cut, const std::string& folder) -> std::string {
    const std::string latest = folder + "/run/checkpoints/latest";
    const int64_t found = WhichExample(latest), done = Phase(cut);
    const bool none_yet = done == 0 && found == -1 && !fs::is_symlink(latest);
    if (found == 10 * done || (done < 2 && found == 10 * (done + 1)) || none_yet) return Torn(folder + "/run");
    return fmt::format("latest is {} after {} saves", found, done);
  };
  ExpectEveryFsyncIsNeeded(disk, judge);
}

// A run goes back to its first checkpoint of three, of which the third or the first is the best.
TEST_F(CrashTest, LaterCheckpointsAreSetAsideWithoutLosingOneAndEveryFsyncIsNeededForThat) {
  for (const int64_t best : {30, 10}) {
    SCOPED_TRACE(best);
    fs::create_directory(In("disk"));
    RecordedDisk disk(In("disk"));
    Forget();
    for (const int64_t step : {10, 20, 30}) {
      const ExampleCheckpoint example(step);
      ASSERT_TRUE(SaveCheckpoint(In("disk/run"), example.contents, {.best = step == best, .keep = 0}).ok());
    }
    from_ = disk.calls();
    ASSERT_TRUE(SetLaterCheckpointsAside(In("disk/run/checkpoints/step-00000010")).ok());
    const int end = disk.calls();
    EndPhase(disk);
    const Judge judge = [&](int cut, const std::string& folder) -> std::string {
      const std::string checkpoints = folder + "/run/checkpoints";
      const int64_t latest = WhichExample(checkpoints + "/latest"), found = WhichExample(checkpoints + "/best");
      if (latest != 10 && (latest != 30 || cut == end)) return fmt::format("latest is {}", latest);
      if (found != best && (found != 10 || cut == end)) return fmt::format("best is {}", found);
      std::set<int64_t> there;
      for (const std::string& place : {checkpoints, checkpoints + "/abandoned"}) {
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(place, none)) {
          if (!entry.path().filename().string().starts_with("step-")) continue;
          const int64_t step = WhichExample(entry.path().string());
          if (step > 10 && cut == end && place == checkpoints) return fmt::format("{} counts again", step);
          there.insert(step);
        }
      }
      return there == std::set<int64_t>{10, 20, 30} ? "" : "one is lost, or torn";
    };
    ExpectEveryFsyncIsNeeded(disk, judge);
    fs::remove_all(In("disk"));
  }
}

// A process that is killed leaves a folder that it made and did not fsync; the machine goes on, and stops later. Of
// several folders it is the last: each is fsynced before the next is made.
TEST_F(CrashTest, FoldersStayThatAKilledProcessHadMadeWhereTheyAreMadeAgain) {
  const std::vector<std::string> paths = {"/deep", "/deep/run", "/deep/run/checkpoints"};
  for (size_t left = 0; left < paths.size(); ++left) {
    for (const bool inside : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", left, inside));
      fs::create_directory(In("disk"));
      RecordedDisk disk(In("disk"));
      Forget();
      const std::string killed = In("disk") + paths[left];
      const auto above = Folder::Make(fs::path(killed).parent_path().string());
      ASSERT_TRUE(above.ok() && above->CreateInside(fs::path(killed).filename().string()).ok());
      from_ = disk.calls();
      if (inside) {
        ASSERT_TRUE(above->MakeInside(fs::path(killed).filename().string()).ok());
      } else {
        ASSERT_TRUE(Folder::Make(In("disk") + paths.back()).ok());
      }
      const int end = disk.calls();
      const std::string expected = inside ? paths[left] : paths.back();
      EndPhase(disk);
      ExpectEveryFsyncIsNeeded(disk, [&](int cut, const std::string& after) {
        return cut < end || fs::is_directory(after + expected) ? "" : expected + " is lost";
      });
      fs::remove_all(In("disk"));
    }
  }
}

TEST_F(CrashTest, ALogThatCannotBeSyncedIsTheErrorOfASaveThatIsPublished) {
  const ExampleCheckpoint example(10);
  const auto sync_log = [&] {
    EXPECT_EQ(WhichExample(In("run/checkpoints/step-00000010")), 10);
    EXPECT_EQ(WhichExample(In("run/checkpoints/latest")), -1) << "links turn behind it";
    return ResourceExhausted("the log's disk is full");
  };
  const auto saved = SaveCheckpoint(In("run"), example.contents, {.best = true, .sync_log = sync_log});
  EXPECT_EQ(Message(saved.status()), "the log's disk is full");
  EXPECT_EQ(WhichExample(In("run/checkpoints/latest")), 10);
  EXPECT_EQ(WhichExample(In("run/checkpoints/best")), 10);
}

}  // namespace
}  // namespace switchyard
