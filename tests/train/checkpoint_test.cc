#include "core/train/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "core/train/file_calls.h"
#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A checkpoint whose every value depends on its step.
struct Example {
  explicit Example(int64_t step) : weight{step * 1.5f, 2.f, -3.f}, moment{0.25f, step * 0.5f}, update(step) {
    contents.step = step;
    contents.weights = {{"fc.weight", "F32", {3, 1}, weight.data()}};
    contents.state = {{"adam.m.fc.weight", "F32", {2}, moment.data()}, {"update", "I64", {}, &update}};
    contents.record = {{"epoch", step / 10}, {"step", step}, {"arch", "vit_micro"}, {"best", {{"top1", 0.1 * step}}}};
    contents.config = {{"id2label", {{"0", "cat"}, {"1", "dog"}}}, {"step", step}};
    contents.preprocessor = {{"size", step}};
  }
  Example(const Example&) = delete;
  std::vector<float> weight, moment;
  int64_t update;
  CheckpointContents contents;
};

std::string ReadTensor(const TensorFile& file, const std::string& name) {
  const TensorFile::Entry* entry = file.Find(name);
  if (entry == nullptr) return "absent";
  std::string bytes(static_cast<size_t>(entry->bytes), '\0');
  const Status status = file.Read(*entry, bytes.data());
  return status.ok() ? bytes : "error: " + Message(status);
}

template <typename T>
std::string RawBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The step of the checkpoint that `path` loads, if it is an Example bit for bit; −1 where it does not load, −2 where
// it loads as something else.
int64_t WhichExample(const std::string& path) {
  const auto loaded = LoadCheckpoint(path);
  if (!loaded.ok()) return -1;
  const Example expected(loaded->record.value("step", int64_t{-2}));
  const bool same = loaded->record == expected.contents.record && loaded->config == expected.contents.config &&
                    loaded->preprocessor == expected.contents.preprocessor &&
                    ReadTensor(loaded->weights, "fc.weight") == RawBytes(expected.weight) &&
                    ReadTensor(loaded->state, "adam.m.fc.weight") == RawBytes(expected.moment) &&
                    ReadTensor(loaded->state, "update") == RawBytes(std::vector<int64_t>{expected.update});
  return same ? expected.update : -2;
}

// Whether loading it and reading all its tensors meets an error.
bool IsRefused(const std::string& path) {
  const auto loaded = LoadCheckpoint(path);
  if (!loaded.ok()) return true;
  for (const TensorFile* file : {&loaded->weights, &loaded->state}) {
    for (const auto& entry : file->entries()) {
      if (ReadTensor(*file, entry.name).compare(0, 6, "error:") == 0) return true;
    }
  }
  return false;
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
    const Example example(step);
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
    calls_.open = [this, real](const char* path, int flags, mode_t mode) {
      return Fails() ? -1 : real.open(path, flags, mode);
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
    calls_.mkdir = [this, real](const char* path, mode_t mode) { return Fails() ? -1 : real.mkdir(path, mode); };
    calls_.rename = [this, real](const char* from, const char* to) { return Fails() ? -1 : real.rename(from, to); };
    calls_.symlink = [this, real](const char* target, const char* link) {
      return Fails() ? -1 : real.symlink(target, link);
    };
    calls_.unlink = [this, real](const char* path) { return Fails() ? -1 : real.unlink(path); };
    calls_.rmdir = [this, real](const char* path) { return Fails() ? -1 : real.rmdir(path); };
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
  EXPECT_EQ(ReadText(In("run/checkpoints/best/config.json")), Example(120).contents.config.dump(2) + "\n");
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

TEST_F(CheckpointTest, NeverChangesAPublishedCheckpoint) {
  ASSERT_TRUE(Save(10, {.best = true}).ok());
  const std::string before = ReadText(In("run/checkpoints/step-00000010/state.json"));
  Example again(10);
  again.contents.record["epoch"] = 99;
  const auto folder = SaveCheckpoint(In("run"), again.contents, {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(*folder, In("run/checkpoints/step-00000010-2"));
  EXPECT_EQ(ReadText(In("run/checkpoints/step-00000010/state.json")), before);
  EXPECT_EQ(LoadCheckpoint(In("run"))->record["epoch"], 99);
  EXPECT_EQ(WhichExample(In("run/best")), 10);
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

TEST_F(CheckpointTest, EveryFileIsOnDiskBeforeItIsNamed) {
  const FileCalls real = SystemFileCalls();
  FileCalls watched = real;
  std::set<std::string> unsynced;  // files and folders written since their last fsync
  std::map<int, std::string> open_paths;
  const auto parent = [](const char* path) { return fs::path(path).parent_path().string(); };
  watched.open = [&](const char* path, int flags, mode_t mode) {
    const int descriptor = real.open(path, flags, mode);
    open_paths[descriptor] = path;
    if ((flags & O_CREAT) != 0) unsynced.insert({path, parent(path)});
    return descriptor;
  };
  watched.fsync = [&](int descriptor) {
    unsynced.erase(open_paths[descriptor]);
    return 0;
  };
  std::vector<std::string> named;
  watched.rename = [&](const char* from, const char* to) {
    EXPECT_TRUE(unsynced.empty()) << *unsynced.begin() << " is not on disk when " << to << " is named";
    named.push_back(fs::path(to).filename().string());
    unsynced.insert(parent(to));
    return real.rename(from, to);
  };
  watched.symlink = [&](const char* target, const char* link) {
    EXPECT_TRUE(unsynced.empty()) << *unsynced.begin() << " is not on disk when " << link << " is made";
    return real.symlink(target, link);
  };
  ReplaceFileCalls(&watched);
  ASSERT_TRUE(Save(10).ok());
  EXPECT_THAT(named, ElementsAre("step-00000010", "latest"));
  EXPECT_TRUE(unsynced.empty()) << *unsynced.begin();
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

TEST_F(CheckpointTest, TheWriterCopiesAndReturns) {
  CheckpointWriter writer(In("run"));
  {
    Example example(10);
    ASSERT_TRUE(writer.Save(example.contents, {.best = true}).ok());
    std::fill(example.weight.begin(), example.weight.end(), 0.f);  // ours to change at once
    example.update = 0;
  }
  const Example next(20);
  ASSERT_TRUE(writer.Save(next.contents, {}).ok());
  ASSERT_TRUE(writer.Finish().ok());
  EXPECT_EQ(WhichExample(In("run/best")), 10);
  EXPECT_EQ(WhichExample(In("run/latest")), 20);
}

TEST_F(CheckpointTest, TheWriterTellsTheErrorOnTheNextCall) {
  const Example example(10);
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

TEST_F(CheckpointTest, RefusesARecordThatIsNoObject) {
  Example example(10);
  example.contents.record = {1, 2};
  EXPECT_THAT(Message(SaveCheckpoint(In("run"), example.contents, {}).status()), HasSubstr("JSON object, found array"));
}

}  // namespace
}  // namespace switchyard
