// As crash_test.cc: of a new run's folder with its first checkpoint, and of exported weights.
#include "core/train/run_folder.h"
#include "core/train/weight_files.h"
#include "gtest/gtest.h"
#include "tests/train/crash.h"
#include "tests/train/example_checkpoint.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class RunCrash : public CrashTest {};

TEST_F(RunCrash, ANewRunFolderStaysWithItsFirstCheckpointAndEveryFsyncIsNeededForThat) {
  fs::create_directory(In("disk"));
  RecordedDisk disk(In("disk"));
  TrainConfig config;
  config.output = In("disk/output");
  config.tag = "digits";
  config.suffix = "first";
  const auto run = CreateRunFolder(config, "plane");
  ASSERT_TRUE(run.ok()) << Message(run.status());
  EndPhase(disk);
  const ExampleCheckpoint example(10);
  ASSERT_TRUE(SaveCheckpoint(*run, example.contents, {.best = true}).ok());
  EndPhase(disk);
  const std::string settings = ReadText(*run + "/config.json"), inside = run->substr(In("disk").size());
  ExpectEveryFsyncIsNeeded(disk, [&](int cut, const std::string& folder) -> std::string {
    const std::string there = folder + inside, found = ReadText(there + "/config.json");
    const std::string latest = there + "/checkpoints/latest", best = there + "/checkpoints/best";
    if (found != settings && (Phase(cut) > 0 || fs::exists(there + "/config.json"))) return "the settings are lost";
    const auto whole = [&](const std::string& link, int needed) {
      return WhichExample(link) == 10 || (Phase(cut) < needed && !fs::is_symlink(link));
    };
    if (!whole(latest, 2) || !whole(best, 2)) return "a link names none";
    return WhichExample(latest) == 10 && WhichExample(best) != 10 ? "none is the best" : "";
  });
}

TEST_F(RunCrash, AFolderOfWeightsStaysOnceItIsWrittenAndEveryFsyncIsNeededForThat) {
  for (const bool there : {false, true}) {
    fs::create_directory(In("disk"));
    RecordedDisk disk(In("disk"));
    Forget();
    // As a process leaves it that was killed.
    if (there) {
      ASSERT_TRUE(Folder::Open(In("disk"))->CreateInside("weights").ok());
    }
    const std::vector<float> values = {1, 2, 3};
    const nlohmann::json config = {{"id2label", {{"0", "cat"}}}}, preprocessor = {{"size", 224}};
    ASSERT_TRUE(WriteWeightFolder(In("disk/weights"), {{"w", "F32", {3}, values.data()}}, config, preprocessor).ok());
    EndPhase(disk);
    ExpectEveryFsyncIsNeeded(disk, [&](int cut, const std::string& folder) -> std::string {
      if (Phase(cut) == 0) return "";  // nobody was told of it yet
      const auto weights = WeightSource::Open(folder + "/weights");
      if (!weights.ok()) return Message(weights.status());
      const auto read = weights->Read();
      if (!read.ok()) return Message(read.status());
      return read->at("w").values == values && weights->config() == config && weights->preprocessor() == preprocessor
                 ? ""
                 : "something else is read";
    });
    fs::remove_all(In("disk"));
  }
}

}  // namespace
}  // namespace switchyard
