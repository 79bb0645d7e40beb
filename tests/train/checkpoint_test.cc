#include "core/train/checkpoint.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/train/file_calls.h"
#include "gmock/gmock.h"
#include "tests/train/example_checkpoint.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename File>
bool IsDamaged(const File& file) {
  return std::any_of(file.entries().begin(), file.entries().end(), [&](const TensorFile::Entry& entry) {
    return ReadTensor(file, entry.name).compare(0, 6, "error:") == 0;
  });
}

// Whether loading it and reading all its tensors meets an error.
bool IsRefused(const std::string& path) {
  const auto loaded = LoadCheckpoint(path);
  return !loaded.ok() || IsDamaged(loaded->weights) || IsDamaged(loaded->state);
}

// The system's calls, but for fsync, for which a test need not wait.
FileCalls CallsWithoutWaiting() {
  FileCalls calls = SystemFileCalls();
  calls.fsync = [](int) { return 0; };
  return calls;
}

class CheckpointTest : public Scratch {
 protected:
  CheckpointTest() { ReplaceFileCalls(&calls_); }
  ~CheckpointTest() override { ReplaceFileCalls(nullptr); }
  Status Save(int64_t step, SaveOptions options = {}) {
    const ExampleCheckpoint example(step);
    return SaveCheckpoint(In("run"), example.contents, options).status();
  }
  // Names in checkpoints/, sorted.
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(In("run/checkpoints"), none)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  bool HasTemporary() {
    const auto names = Names();
    return std::any_of(names.begin(), names.end(), [](const std::string& name) { return name[0] == '.'; });
  }
  const FileCalls calls_ = CallsWithoutWaiting();
};

// The system's calls until the n-th, which fails; the later ones work (an error), or fail too (the machine stopped).
class FailingCalls {
 public:
  enum class After { kWorks, kStopped };
  FailingCalls(const FileCalls& real, int n, After after, int error_number)
      : real_(&real), n_(n), after_(after), error_number_(error_number) {
    calls_.openat = [this, real](int folder, const char* name, int flags, mode_t mode) {
      return Fails() ? -1 : real.openat(folder, name, flags, mode);
    };
    calls_.write = [this, real](int descriptor, const void* data, size_t bytes) -> ssize_t {
      const bool torn = count_ + 1 == n_ && bytes > 1;
      if (torn) static_cast<void>(real.write(descriptor, data, bytes / 2));
      return Fails() ? -1 : real.write(descriptor, data, bytes);
    };
    calls_.fsync = [this, real](int descriptor) { return Fails() ? -1 : real.fsync(descriptor); };
    calls_.close = [this, real](int descriptor) {
      const int result = real.close(descriptor);  // no descriptor may leak in the test itself
      return Fails() ? -1 : result;
    };
    calls_.mkdirat = [this, real](int folder, const char* name, mode_t mode) {
      return Fails() ? -1 : real.mkdirat(folder, name, mode);
    };
    calls_.renameat = [this, real](int from_folder, const char* from, int to_folder, const char* to) {
      return Fails() ? -1 : real.renameat(from_folder, from, to_folder, to);
    };
    calls_.symlinkat = [this, real](const char* target, int folder, const char* link) {
      return Fails() ? -1 : real.symlinkat(target, folder, link);
    };
    calls_.unlinkat = [this, real](int folder, const char* name, int flags) {
      return Fails() ? -1 : real.unlinkat(folder, name, flags);
    };
    ReplaceFileCalls(&calls_);
  }
  ~FailingCalls() { ReplaceFileCalls(real_); }
  bool reached() const { return count_ >= n_; }

 private:
  bool Fails() {
    ++count_;
    if (count_ != n_ && !(count_ > n_ && after_ == After::kStopped)) return false;
    errno = error_number_;
    return true;
  }
  const FileCalls* real_;
  int n_;
  After after_;
  int error_number_;
  int count_ = 0;
  FileCalls calls_;
};

TEST_F(CheckpointTest, LoadsWhatWasSavedByEveryPath) {
  ASSERT_TRUE(Save(120, {.best = true}).ok());
  ASSERT_TRUE(Save(130).ok());
  EXPECT_THAT(Names(), ElementsAre("best", "latest", "step-00000120", "step-00000130"));
  EXPECT_EQ(WhichExample(In("run")), 130);
  EXPECT_EQ(WhichExample(In("run/")), 130);
  EXPECT_EQ(WhichExample(In("run/checkpoints")), 130);
  EXPECT_EQ(WhichExample(In("run/checkpoints/latest")), 130);
  EXPECT_EQ(WhichExample(In("run/latest")), 130);
  EXPECT_EQ(WhichExample(In("run/best")), 120);
  EXPECT_EQ(WhichExample(In("run/checkpoints/best/")), 120);
  EXPECT_EQ(WhichExample(In("run/checkpoints/step-00000120")), 120);
  EXPECT_EQ(ReadText(In("run/checkpoints/best/config.json")), ExampleCheckpoint(120).contents.config.dump(2) + "\n");
}

TEST_F(CheckpointTest, SaysWhatItLookedForWhereThereIsNone) {
  const auto loaded = LoadCheckpoint(In("nowhere"));
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(loaded.status()), HasSubstr("nowhere: expected a folder with state.json"));
}

TEST_F(CheckpointTest, KeepsTheNewestAndWhatTheLinksName) {
  for (const int64_t step : {10, 20, 30, 40, 50}) ASSERT_TRUE(Save(step, {.best = step == 20, .keep = 2}).ok());
  EXPECT_THAT(Names(), ElementsAre("best", "latest", "step-00000020", "step-00000040", "step-00000050"));
  ASSERT_TRUE(Save(30, {.keep = 2}).ok());  // back from an earlier checkpoint: `latest` is not the highest step
  EXPECT_EQ(WhichExample(In("run")), 30);
  ASSERT_TRUE(Save(60, {.best = true, .keep = 1}).ok());
  EXPECT_THAT(Names(), ElementsAre("best", "latest", "step-00000060"));
  for (const int64_t step : {70, 80, 90}) ASSERT_TRUE(Save(step, {.keep = 0}).ok());
  EXPECT_EQ(Names().size(), 6u);
}

TEST_F(CheckpointTest, WhatLiesAheadDoesNotCountForKeep) {
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(Save(step, {.keep = 0}).ok());
  for (const int64_t step : {21, 22, 23}) ASSERT_TRUE(Save(step, {.keep = 2}).ok());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000022", "step-00000023", "step-00000030", "step-00000040"));
}

TEST_F(CheckpointTest, GoingOnFromAnOlderOneSetsTheLaterOnesAside) {
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(Save(step, {.best = step == 30, .keep = 0}).ok());
  ASSERT_TRUE(SetLaterCheckpointsAside(In("run/checkpoints/step-00000020")).ok());
  EXPECT_THAT(Names(), ElementsAre("abandoned", "best", "latest", "step-00000010", "step-00000020"));
  EXPECT_EQ(WhichExample(In("run/latest")), 20);
  EXPECT_EQ(WhichExample(In("run/best")), 30) << "the best that there was";
  EXPECT_EQ(WhichExample(In("run/checkpoints/abandoned/step-00000040")), 40);

  // The run comes by the same steps again; those that were given up neither stay nor go in their place.
  for (const int64_t step : {25, 30, 35}) ASSERT_TRUE(Save(step, {.keep = 2}).ok());
  EXPECT_THAT(Names(), ElementsAre("abandoned", "best", "latest", "step-00000030", "step-00000035"));
  EXPECT_EQ(WhichExample(In("run/best")), 30);
  ASSERT_TRUE(SetLaterCheckpointsAside(In("run/checkpoints/step-00000030")).ok());
  ASSERT_TRUE(Save(40, {.best = true, .keep = 1}).ok());
  EXPECT_THAT(Names(), ElementsAre("abandoned", "best", "latest", "step-00000040"));
  ASSERT_TRUE(Save(39, {.keep = 1}).ok());
  ASSERT_TRUE(SetLaterCheckpointsAside(In("run/checkpoints/step-00000039")).ok());
  EXPECT_EQ(WhichExample(In("run/checkpoints/abandoned/step-00000040-2")), 40) << "beside the first";
  EXPECT_EQ(WhichExample(In("run/best")), 40);
}

TEST_F(CheckpointTest, SettingAsideMayStopAnywhereAndBeDoneAgain) {
  bool reached = true;
  int n = 1;
  for (; reached; ++n) {
    fs::remove_all(In("run"));
    for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Save(step, {.best = step == 20}).ok());
    {
      FailingCalls failing(calls_, n, FailingCalls::After::kStopped, EIO);
      const Status status = SetLaterCheckpointsAside(In("run/checkpoints/step-00000010"));
      reached = failing.reached();
      ASSERT_EQ(status.ok(), !reached);
    }
    ASSERT_GE(WhichExample(In("run/latest")), 10) << "call " << n;
    ASSERT_GE(WhichExample(In("run/best")), 10) << "call " << n;
    ASSERT_TRUE(SetLaterCheckpointsAside(In("run/checkpoints/step-00000010")).ok()) << "call " << n;
    auto names = Names();
    std::erase_if(names, [](const std::string& name) { return name[0] == '.'; });  // of a link; the next one clears it
    ASSERT_THAT(names, ElementsAre("abandoned", "best", "latest", "step-00000010")) << "call " << n;
    ASSERT_GE(WhichExample(In("run/best")), 10) << "call " << n;
  }
  EXPECT_GT(n, 12);
}

TEST_F(CheckpointTest, NeverChangesAPublishedCheckpoint) {
  ASSERT_TRUE(Save(10, {.best = true}).ok());
  const std::string before = ReadText(In("run/checkpoints/step-00000010/state.json"));
  ExampleCheckpoint again(10);
  again.contents.record["epoch"] = 99;
  const auto folder = SaveCheckpoint(In("run"), again.contents, {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(*folder, In("run/checkpoints/step-00000010-2"));
  EXPECT_EQ(ReadText(In("run/checkpoints/step-00000010/state.json")), before);
  EXPECT_EQ(LoadCheckpoint(In("run"))->record["epoch"], 99);
  EXPECT_EQ(WhichExample(In("run/best")), 10);
}

TEST_F(CheckpointTest, NothingWrittenOrRemovedGoesThroughALink) {
  fs::create_directories(In("run/checkpoints"));
  fs::create_directories(In("victim/inner"));
  WriteText(In("victim/precious"), "precious");
  WriteText(In("victim/inner/too"), "precious");
  const auto expect_unharmed = [&] {
    EXPECT_EQ(ReadText(In("victim/precious")), "precious");
    EXPECT_EQ(ReadText(In("victim/inner/too")), "precious");
  };
  for (const char* name : {".step-00000001.tmp", ".step-00000002.removed", ".step-00000010.tmp", ".latest.tmp"}) {
    fs::create_directory_symlink(In("victim"), In("run/checkpoints/") + name);
  }
  fs::create_directories(In("run/checkpoints/.step-00000003.removed"));
  fs::create_directory_symlink(In("victim"), In("run/checkpoints/.step-00000003.removed/link"));
  fs::create_directory_symlink(In("victim"), In("run/checkpoints/step-00000004"));  // named as an old checkpoint
  ASSERT_TRUE(Save(10, {.best = true, .keep = 1}).ok());
  EXPECT_THAT(Names(), ElementsAre("best", "latest", "step-00000010"));
  expect_unharmed();

  // A link in the place of the folder itself is refused, and so is one on the way to the log.
  fs::remove_all(In("run/checkpoints"));
  fs::create_directory_symlink(In("victim"), In("run/checkpoints"));
  EXPECT_THAT(Message(Save(20)), HasSubstr("run/checkpoints: expected a folder, found a file or a symbolic link"));
  expect_unharmed();
  EXPECT_EQ(std::distance(fs::directory_iterator(In("victim")), {}), 2);

  // What the user calls the run may be a link.
  fs::create_directories(In("elsewhere"));
  fs::create_directory_symlink(In("elsewhere"), In("by_link"));
  ASSERT_TRUE(SaveCheckpoint(In("by_link"), ExampleCheckpoint(30).contents, {}).ok());
  EXPECT_EQ(WhichExample(In("elsewhere")), 30);
}

TEST_F(CheckpointTest, AStrayFileBlocksNoSave) {
  fs::create_directories(In("run/checkpoints"));
  WriteText(In("run/checkpoints/.step-00000007.tmp"), "not a folder");
  WriteText(In("run/checkpoints/.step-notes"), "the user's");
  WriteText(In("run/checkpoints/.latest.tmp"), "not a link");
  ASSERT_TRUE(Save(10).ok());
  EXPECT_THAT(Names(), ElementsAre(".step-notes", "latest", "step-00000010"));
}

TEST_F(CheckpointTest, AFileThatIsNotRegularIsRefusedAtOnce) {
  ASSERT_TRUE(Save(10).ok());
  const std::string folder = In("run/checkpoints/step-00000010/");
  for (const char* name : {"model.safetensors", "state.safetensors", "state.json", "config.json"}) {
    const std::string whole = ReadText(folder + name);
    fs::remove(folder + name);
    ASSERT_EQ(mkfifo((folder + name).c_str(), 0600), 0);
    EXPECT_THAT(Message(LoadCheckpoint(folder).status()), HasSubstr("expected a regular file, found a pipe")) << name;
    fs::remove(folder + name);
    WriteText(folder + name, whole);
  }
}

TEST_F(CheckpointTest, JsonThatIsNestedTooDeeplyIsRefused) {
  ExampleCheckpoint example(10);
  ASSERT_TRUE(SaveCheckpoint(In("run"), example.contents, {}).ok());
  const std::string record = In("run/checkpoints/step-00000010/state.json");
  std::string text = "{\"deep\": " + std::string(200000, '[') + std::string(200000, ']');
  text += fmt::format(",\n  \"state_crc32\": \"{:08x}\"\n}}\n",
                      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
  WriteText(record, text);
  EXPECT_THAT(Message(LoadCheckpoint(In("run")).status()), HasSubstr("nested deeper than 64 levels"));
}

TEST_F(CheckpointTest, LeavesFoldersOfOthersAlone) {
  fs::create_directories(In("run/checkpoints/step-final"));
  fs::create_directories(In("run/checkpoints/step-1"));
  fs::create_directories(In("run/checkpoints/notes"));
  ASSERT_TRUE(Save(10, {.keep = 1}).ok());
  ASSERT_TRUE(Save(20, {.keep = 1}).ok());
  EXPECT_THAT(Names(), ElementsAre("latest", "notes", "step-00000020", "step-1", "step-final"));
}

TEST_F(CheckpointTest, FindsEveryFlippedBitInEveryFile) {
  ASSERT_TRUE(Save(10).ok());
  const std::string folder = In("run/checkpoints/step-00000010/");
  for (const char* name :
       {"model.safetensors", "state.safetensors", "state.json", "config.json", "preprocessor_config.json"}) {
    const std::string whole = ReadText(folder + name);
    ASSERT_FALSE(whole.empty()) << name;
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      FlipBit(folder + name, bit);
      ASSERT_TRUE(IsRefused(folder)) << name << ", bit " << bit % 8 << " of byte " << bit / 8;
      FlipBit(folder + name, bit);
    }
    for (size_t size = whole.size(); size-- > 0;) {
      fs::resize_file(folder + name, size);
      ASSERT_TRUE(IsRefused(folder)) << name << " cut to " << size;
    }
    WriteText(folder + name, whole);
  }
  EXPECT_EQ(WhichExample(folder), 10);
}

TEST_F(CheckpointTest, NamesTheDamagedOrMissingFile) {
  ASSERT_TRUE(Save(10).ok());
  ASSERT_TRUE(Save(20).ok());
  const std::string ten = In("run/checkpoints/step-00000010/"), twenty = In("run/checkpoints/step-00000020/");
  fs::copy_file(ten + "model.safetensors", twenty + "model.safetensors", fs::copy_options::overwrite_existing);
  EXPECT_THAT(Message(LoadCheckpoint(twenty).status()), HasSubstr("model.safetensors: header_crc32"));
  fs::remove(ten + "state.safetensors");
  EXPECT_THAT(Message(LoadCheckpoint(ten).status()), HasSubstr("step-00000010/state.safetensors"));
}

TEST_F(CheckpointTest, AnErrorAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  for (const auto after : {FailingCalls::After::kWorks, FailingCalls::After::kStopped}) {
    for (const int error_number : {ENOSPC, EIO}) {
      bool reached = true;
      int n = 1, old_seen = 0, new_seen = 0;
      for (; reached; ++n) {
        fs::remove_all(In("run"));
        ASSERT_TRUE(Save(10, {.best = true, .keep = 1}).ok());
        Status status;
        {
          FailingCalls failing(calls_, n, after, error_number);
          status = Save(20, {.best = true, .keep = 1});
          reached = failing.reached();
        }
        const auto where = fmt::format("call {} fails with {}: {}", n, std::strerror(error_number), Message(status));
        for (const char* link : {"run/latest", "run/best"}) {
          const int64_t found = WhichExample(In(link));
          ASSERT_TRUE(found == 10 || found == 20) << link << ", " << where;
          ++(found == 10 ? old_seen : new_seen);
        }
        if (!reached) {
          ASSERT_TRUE(status.ok()) << status;
          break;
        }
        ASSERT_FALSE(status.ok()) << where;
        ASSERT_THAT(Message(status), HasSubstr(std::strerror(error_number)));
        ASSERT_THAT(Message(status), HasSubstr(In("run")));
        if (error_number == ENOSPC) {
          ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << where;
        }
        const bool published = fs::exists(In("run/checkpoints/step-00000020"));
        if (after == FailingCalls::After::kWorks && !published) {
          ASSERT_FALSE(HasTemporary()) << where;
        }
        // The next save works, and clears away what was left.
        ASSERT_TRUE(Save(30, {.best = true, .keep = 1}).ok()) << where;
        ASSERT_EQ(WhichExample(In("run")), 30) << where;
        ASSERT_THAT(Names(), ElementsAre("best", "latest", "step-00000030")) << where;
      }
      EXPECT_GT(n, 35) << "calls of one save";
      EXPECT_GT(old_seen, 20);
      EXPECT_GT(new_seen, 4);
    }
  }
}

TEST_F(CheckpointTest, ASignalInACallIsNoError) {
  for (int n = 1; n <= 12; ++n) {
    FailingCalls interrupted(calls_, n, FailingCalls::After::kWorks, EINTR);
    const Status status = Save(n);
    // open, write and fsync are tried again; the others are never interrupted on Linux.
    if (!status.ok()) {
      EXPECT_THAT(Message(status), ::testing::Not(::testing::AnyOf(HasSubstr("write"), HasSubstr("fsync")))) << n;
    }
  }
}

TEST_F(CheckpointTest, TheWriterHoldsTheTensorsUntilTheyAreWrittenAndNoLonger) {
  CheckpointWriter writer(In("run"));
  auto example = std::make_shared<const ExampleCheckpoint>(10);
  const std::weak_ptr<const ExampleCheckpoint> watched = example;
  CheckpointContents contents = example->contents;
  contents.storage = std::move(example);
  ASSERT_TRUE(writer.Save(std::move(contents), {.best = true}).ok());
  const ExampleCheckpoint next(20);
  ASSERT_TRUE(writer.Save(next.contents, {}).ok());
  EXPECT_TRUE(watched.expired());
  ASSERT_TRUE(writer.Finish().ok());
  EXPECT_EQ(WhichExample(In("run/best")), 10);
  EXPECT_EQ(WhichExample(In("run/latest")), 20);
}

TEST_F(CheckpointTest, AnOlderFormatIsRefusedAndSaysWhatItsWeightsServeFor) {
  ASSERT_TRUE(Save(10).ok());
  const std::string path = In("run/checkpoints/step-00000010/state.json");
  std::string text = ReadText(path);
  text.replace(text.find("switchyard-checkpoint/5"), 23, "switchyard-checkpoint/1");
  text.resize(text.rfind(",\n  \"state_crc32\""));
  text += fmt::format(",\n  \"state_crc32\": \"{:08x}\"\n}}\n",
                      crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
  WriteText(path, text);
  const std::string error = Message(LoadCheckpoint(In("run")).status());
  EXPECT_THAT(error, HasSubstr("found \"switchyard-checkpoint/1\", this program reads switchyard-checkpoint/5"));
  EXPECT_THAT(error, HasSubstr("--pretrained=" + In("run/checkpoints/step-00000010/model.safetensors")));
}

TEST_F(CheckpointTest, TheWriterTellsTheErrorOnTheNextCall) {
  const ExampleCheckpoint example(10);
  CheckpointWriter writer(In("run"));
  {
    FailingCalls failing(calls_, 5, FailingCalls::After::kWorks, ENOSPC);
    ASSERT_TRUE(writer.Save(example.contents, {}).ok());
    EXPECT_EQ(writer.Save(example.contents, {}).code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(writer.Finish().ok()) << "told once";
  EXPECT_TRUE(writer.Save(example.contents, {}).ok());
  EXPECT_TRUE(writer.Finish().ok());
  EXPECT_EQ(WhichExample(In("run")), 10);
}

TEST_F(CheckpointTest, WhatMakesTheContentsMayThrow) {
  CheckpointWriter writer(In("run"));
  const auto make = []() -> StatusOr<CheckpointContents> { throw std::out_of_range("no such tensor"); };
  ASSERT_TRUE(writer.Save(make, {}).ok());
  EXPECT_THAT(Message(writer.Finish()), HasSubstr("no such tensor; what was saved before is whole"));
}

TEST_F(CheckpointTest, RefusesARecordThatIsNoObject) {
  ExampleCheckpoint example(10);
  example.contents.record = {1, 2};
  EXPECT_THAT(Message(SaveCheckpoint(In("run"), example.contents, {}).status()), HasSubstr("JSON object, found array"));
}

}  // namespace
}  // namespace switchyard
