// Checkpoints in files of several ranks: pieces of any division are put together again as whole tensors and as the
// pieces of any other; what is wrong with a file or the index is an error that names it, and a save that one of the
// writers cannot end leaves the checkpoint before.
#include "core/train/shards.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <latch>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "core/train/checkpoint.h"
#include "core/train/file_calls.h"
#include "gmock/gmock.h"
#include "tests/train/example_checkpoint.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;

// How `ranks` ranks hold a tensor; a rank that has nothing of it has an empty part, and none is all of it.
using Held = std::vector<std::optional<Part>>;

DividedAxis Elementwise(const Shape& shape) { return {DividedAxis::kAllElements, 1, Elements(shape), 1}; }
Part Within(Part part, const Part& of) {
  part.of = std::make_shared<const Part>(of);
  return part;
}

// (12, 5): rows of q, k and v, divided in two, whose elements each three share; columns; a list of elements; whole.
std::vector<Held> Divisions() {
  const Shape whole = {12, 5};
  std::vector<Held> all(4);
  for (int i = 0; i < 6; ++i) {
    const Part rows = PartOf(whole, {0, 3, 2, 2}, i / 3, 2);
    all[0].push_back(Within(PartOf(ShapeOf(rows), Elementwise(ShapeOf(rows)), i % 3, 3), rows));
  }
  for (int i = 0; i < 5; ++i) all[1].push_back(PartOf(whole, {1, 1, 5, 1}, i, 5));
  for (int i = 0; i < 7; ++i) all[2].push_back(PartOf(whole, Elementwise(whole), i, 7));
  all[2].push_back(Part{whole, Elementwise(whole), 60, 60});
  all[3] = {std::nullopt};
  return all;
}

// A checkpoint that as many ranks write as hold parts, each in a thread of its own.
class Shared {
 public:
  Shared(int64_t step, const Held& held) : example_(step) {
    whole_.resize(60);
    std::iota(whole_.begin(), whole_.end(), static_cast<float>(step));
    for (size_t rank = 0; rank < held.size(); ++rank) {
      std::vector<TensorPiece>& pieces = pieces_.emplace_back();
      const std::optional<Part>& part = held[rank];
      const Shape shape = part ? ShapeOf(*part) : Shape{12, 5};
      values_.emplace_back(static_cast<size_t>(Elements(shape)));
      if (part) CutPart(*part, sizeof(float), Bytes(whole_), Bytes(values_.back()));
      if (!part) values_.back() = whole_;
      if (Elements(shape) > 0)
        pieces.push_back({{"moment1/w", "F32", {shape.begin(), shape.end()}, values_.back().data()}, {12, 5}, part});
      if (rank == 0) pieces.push_back({{"update", "I64", {}, &example_.update}, {}, std::nullopt});
    }
  }

  // `fails`: the rank whose writing does; 0: none.
  Status Save(const std::string& run, size_t fails = 0, SaveOptions options = {}) {
    CheckpointContents contents = example_.contents;
    contents.state.clear();
    SharedWriting& shared = contents.shared.emplace();
    shared.files = static_cast<int>(pieces_.size());
    shared.own = pieces_[0];
    std::vector<std::future<StatusOr<TensorFileSummary>>> others;
    shared.begin = [&](const std::string& draft) {
      for (size_t rank = 1; rank < pieces_.size(); ++rank) {
        others.push_back(std::async(std::launch::async, [=, this]() -> StatusOr<TensorFileSummary> {
          if (rank == fails) return ResourceExhausted("rank {}: No space left on device", rank);
          SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Open(run + "/checkpoints/" + draft));
          return WriteShard(folder, ShardName(static_cast<int>(rank), static_cast<int>(pieces_.size())), pieces_[rank]);
        }));
      }
      return OkStatus();
    };
    shared.wait = [&]() -> StatusOr<std::vector<TensorFileSummary>> {
      std::vector<TensorFileSummary> summaries;
      for (auto& other : others) {
        SY_ASSIGN_OR_RETURN(const TensorFileSummary summary, other.get());
        summaries.push_back(summary);
      }
      return summaries;
    };
    return SaveCheckpoint(run, contents, options).status();
  }

  const std::vector<float>& whole() const { return whole_; }

 private:
  static std::byte* Bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

  ExampleCheckpoint example_;
  std::vector<float> whole_;
  std::vector<std::vector<float>> values_;  // by rank
  std::vector<std::vector<TensorPiece>> pieces_;
};

class Shards : public Scratch {
 protected:
  ~Shards() override { ReplaceFileCalls(nullptr); }
  std::string Run() const { return In("run"); }
  std::string Checkpoint(int step) const { return fmt::format("{}/checkpoints/step-{:08}/", Run(), step); }
  // The message of the first error in loading it and reading all of its state.
  static std::string ErrorOf(const std::string& path) {
    const auto loaded = LoadCheckpoint(path);
    if (!loaded.ok()) return Message(loaded.status());
    for (const TensorFile::Entry& entry : loaded->state.entries()) {
      const std::string read = ReadTensor(loaded->state, entry.name);
      if (read.starts_with("error:")) return read;
    }
    return "";
  }
};

TEST_F(Shards, OfAnyDivisionAreReadInAnyOther) {
  const std::vector<Held> divisions = Divisions();
  for (size_t saved = 0; saved < divisions.size(); ++saved) {
    SCOPED_TRACE(saved);
    const int64_t step = 10 * static_cast<int64_t>(saved + 1);
    Shared shared(step, divisions[saved]);
    const Status status = shared.Save(Run());
    ASSERT_TRUE(status.ok()) << Message(status);
    const auto loaded = LoadCheckpoint(Run());
    ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
    EXPECT_EQ(loaded->record["step"], step);
    EXPECT_TRUE(loaded->state.in_pieces());
    EXPECT_EQ(loaded->state.files().size(), divisions[saved].size());
    EXPECT_EQ(ReadTensor(loaded->state, "moment1/w"), RawBytes(shared.whole()));
    EXPECT_EQ(ReadTensor(loaded->state, "update"), RawBytes(std::vector<int64_t>{step}));
    EXPECT_EQ(ReadTensor(loaded->weights, "fc.weight").size(), 12u) << "one file for all programs";
    const TensorFile::Entry* const entry = loaded->state.Find("moment1/w");
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->shape, (std::vector<int64_t>{12, 5}));
    for (const Held& held : divisions) {
      for (const std::optional<Part>& part : held) {
        if (!part) continue;
        std::vector<float> expected(static_cast<size_t>(Elements(ShapeOf(*part)))), found(expected.size());
        CutPart(*part, sizeof(float), reinterpret_cast<const std::byte*>(shared.whole().data()),
                reinterpret_cast<std::byte*>(expected.data()));
        const Status read = loaded->state.Read(*entry, *part, found.data());
        ASSERT_TRUE(read.ok()) << Message(read);
        EXPECT_EQ(found, expected);
      }
    }
  }
}

// A rank opens what it has some of: of the others a file may be damaged.
TEST_F(Shards, AreReadWhereTheyHoldWhatIsWanted) {
  const Held held = Divisions()[2];
  ASSERT_TRUE(Shared(10, held).Save(Run()).ok());
  FlipBit(Checkpoint(10) + ShardName(4, 8), 8 * (fs::file_size(Checkpoint(10) + ShardName(4, 8)) - 1));
  const auto loaded = LoadCheckpoint(Run());
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  const TensorFile::Entry& entry = *loaded->state.Find("moment1/w");
  std::vector<float> values(60);
  for (size_t rank = 0; rank < 7; ++rank) {
    const Status read = loaded->state.Read(entry, *held[rank], values.data());
    EXPECT_EQ(read.ok(), rank != 4) << Message(read);
    if (rank == 4) {
      EXPECT_THAT(Message(read), HasSubstr("state-00005-of-00008.safetensors: tensor 'moment1/w'"));
    }
  }
}

TEST_F(Shards, WhatIsWrongWithThemIsNamed) {
  Shared ten(10, Divisions()[0]), twenty(20, Divisions()[0]);
  ASSERT_TRUE(ten.Save(Run()).ok());
  ASSERT_TRUE(twenty.Save(Run()).ok());
  EXPECT_EQ(ErrorOf(Checkpoint(10)), "");
  const std::string name = ShardName(3, 6), path = Checkpoint(10) + name, content = ReadText(path);
  const std::string index = Checkpoint(10) + kShardIndex, index_content = ReadText(index);

  WriteText(path, ReadText(Checkpoint(20) + name));
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr(name + ": header_crc32")) << "of another step";
  WriteText(path, content.substr(0, content.size() - 1));
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr(name + ": ")) << "truncated";
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr("bytes, but state.json records"));
  fs::remove(path);
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr(name)) << "missing";
  WriteText(path, content);
  FlipBit(path, 8 * (content.size() - 1));
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr(name + ": tensor 'moment1/w': the payload has checksum"));
  WriteText(path, content);
  FlipBit(path, 8 * 100);
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr(name + ": header_crc32"));
  WriteText(path, content);
  FlipBit(index, 8 * 30);
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr("state.index.json: crc32"));
  fs::remove(index);
  EXPECT_THAT(ErrorOf(Checkpoint(10)), HasSubstr("state.index.json"));
  WriteText(index, index_content);
  EXPECT_EQ(ErrorOf(Checkpoint(10)), "");
}

TEST_F(Shards, AnIndexThatCannotBeIsRefused) {
  ASSERT_TRUE(Shared(10, Divisions()[0]).Save(Run()).ok());
  const Json index = Json::parse(ReadText(Checkpoint(10) + kShardIndex));
  const auto open = [&](const std::string& name) { return TensorFile::Open(Checkpoint(10) + name); };
  const auto error = [&](const char* pointer, const Json& value) -> std::string {
    Json changed = index;
    changed[Json::json_pointer(pointer)] = value;
    const auto saved = SavedTensors::Of(changed, "i.json", 1 << 20, open);
    if (!saved.ok()) return Message(saved.status());
    const std::string read = ReadTensor(*saved, "moment1/w");
    return read.starts_with("error:") ? read : "";
  };
  const std::string tensor = "/tensors/moment1~1w", cut = tensor + "/pieces/1/cuts/0";
  EXPECT_EQ(error("/files", index["files"]), "");
  for (const Json& files : {Json(), Json("a"), Json{"../a.safetensors", "b.safetensors"}, Json{"a"}, Json{1, 2}})
    EXPECT_THAT(error("/files", files), HasSubstr("i.json: files")) << files;
  EXPECT_THAT(error("/tensors", 3), HasSubstr("i.json: tensors"));
  EXPECT_THAT(error((tensor + "/dtype").c_str(), "F33"), HasSubstr("tensor 'moment1/w': dtype"));
  for (const Json& shape : {Json(), Json{-1, 5}, Json{int64_t{1} << 40, 5}, Json{1e3, 5}})
    EXPECT_THAT(error((tensor + "/shape").c_str(), shape), HasSubstr("shape")) << shape;
  EXPECT_THAT(error((tensor + "/pieces").c_str(), Json::array()), HasSubstr("pieces: fewer"));
  EXPECT_THAT(error((tensor + "/pieces/0/file").c_str(), 6), HasSubstr("pieces: expected one of 6 files"));
  EXPECT_THAT(error((tensor + "/pieces/0/file").c_str(), 5), HasSubstr("that are the piece"));
  EXPECT_THAT(error((tensor + "/pieces/0").c_str(), index[Json::json_pointer(tensor + "/pieces/1")]),
              HasSubstr("in none of them, or in several"));
  EXPECT_THAT(error((tensor + "/pieces/0/cuts").c_str(), Json::array()), HasSubstr("pieces: more"));
  for (const char* field : {"shape", "axis", "range"})
    EXPECT_THAT(error((cut + "/" + field).c_str(), Json{7, 7}), HasSubstr("pieces: no part of")) << field;
  EXPECT_THAT(error((cut + "/axis").c_str(), Json{0, 3, int64_t{1} << 62, 2}), HasSubstr("pieces: no part of"));
  EXPECT_THAT(error((cut + "/range").c_str(), Json{1, 0}), HasSubstr("pieces: no part of"));
  EXPECT_THAT(error((tensor + "/pieces/1/cuts").c_str(), Json(std::vector<int>(9))), HasSubstr("pieces: expected"));
}

// Ranks that hold the same piece, as stages that share a parameter: one is enough.
TEST_F(Shards, ThatTwoRanksHaveCountOnce) {
  Held held = Divisions()[2];
  held.push_back(held[1]);
  Shared shared(10, held);
  ASSERT_TRUE(shared.Save(Run()).ok());
  const auto loaded = LoadCheckpoint(Run());
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  EXPECT_EQ(ReadTensor(loaded->state, "moment1/w"), RawBytes(shared.whole()));
}

TEST_F(Shards, OfARankThatCannotWriteLeaveTheCheckpointBefore) {
  ASSERT_TRUE(Shared(10, Divisions()[0]).Save(Run(), 0, {.best = true}).ok());
  const Status status = Shared(20, Divisions()[0]).Save(Run(), 4, {.best = true});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("rank 4: No space left on device"));
  const auto latest = LoadCheckpoint(Run());
  ASSERT_TRUE(latest.ok()) << Message(latest.status());
  EXPECT_EQ(latest->record["step"], 10);
  ASSERT_TRUE(Shared(30, Divisions()[0]).Save(Run()).ok()) << "what was left of it is in nobody's way";
  EXPECT_EQ(LoadCheckpoint(Run())->record["step"], 30);
}

// Rank 0 cannot write its own, and the others take their time: what there is of it is removed behind the last of them.
TEST_F(Shards, OfAFailedSaveAreRemovedWhenAllHaveEnded) {
  const FileCalls real = SystemFileCalls();
  FileCalls calls = real;
  std::mutex mutex;
  std::set<int> open;  // descriptors of the others' files
  int opened = 0, at_removal = -1;
  std::latch failed(1);
  calls.openat = [&](int folder, const char* name, int flags, mode_t mode) {
    const std::string file = name;
    if (file == ShardName(0, 5)) {
      failed.count_down();
      errno = ENOSPC;
      return -1;
    }
    const bool of_other = file.starts_with("state-");
    if (of_other) {
      failed.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const int descriptor = real.openat(folder, name, flags, mode);
    const std::scoped_lock lock(mutex);
    if (of_other && descriptor >= 0) opened += open.insert(descriptor).second;
    return descriptor;
  };
  calls.close = [&](int descriptor) {
    {
      const std::scoped_lock lock(mutex);
      open.erase(descriptor);
    }
    return real.close(descriptor);
  };
  calls.unlinkat = [&](int folder, const char* name, int flags) {
    if ((flags & AT_REMOVEDIR) != 0) {
      const std::scoped_lock lock(mutex);
      at_removal = opened - static_cast<int>(open.size());
    }
    return real.unlinkat(folder, name, flags);
  };
  ReplaceFileCalls(&calls);
  const Status status = Shared(10, Divisions()[1]).Save(Run());
  ReplaceFileCalls(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << Message(status);
  EXPECT_EQ(at_removal, 4) << "files of others that were whole, when what there was went";
  EXPECT_TRUE(fs::is_empty(Run() + "/checkpoints"));
}

// The machine stops at every call of a save, of any of the writers: what `latest` names is whole, and the next save
// succeeds.
TEST_F(Shards, AreACheckpointOnlyTogether) {
  const FileCalls real = SystemFileCalls();
  const Held held = Divisions()[1];
  ASSERT_TRUE(Shared(1, held).Save(Run()).ok());
  bool ended = false;
  for (int n = 1; !ended && n < 1000; ++n) {
    SCOPED_TRACE(n);
    std::atomic<int> count = 0;
    const auto stopped = [&] { return ++count >= n; };
    FileCalls calls = real;
    const auto fail = [] {
      errno = EIO;
      return -1;
    };
    calls.openat = [&](int folder, const char* name, int flags, mode_t mode) {
      return stopped() ? fail() : real.openat(folder, name, flags, mode);
    };
    calls.write = [&](int descriptor, const void* data, size_t bytes) -> ssize_t {
      return stopped() ? fail() : real.write(descriptor, data, bytes);
    };
    calls.fsync = [&](int) { return stopped() ? fail() : 0; };
    calls.mkdirat = [&](int folder, const char* name, mode_t mode) {
      return stopped() ? fail() : real.mkdirat(folder, name, mode);
    };
    calls.renameat = [&](int from_folder, const char* from, int to_folder, const char* to) {
      return stopped() ? fail() : real.renameat(from_folder, from, to_folder, to);
    };
    calls.symlinkat = [&](const char* target, int folder, const char* link) {
      return stopped() ? fail() : real.symlinkat(target, folder, link);
    };
    calls.unlinkat = [&](int folder, const char* name, int flags) {
      return stopped() ? fail() : real.unlinkat(folder, name, flags);
    };
    ReplaceFileCalls(&calls);
    const Status status = Shared(2 * n, held).Save(Run());
    ReplaceFileCalls(nullptr);
    ended = count < n;
    EXPECT_EQ(status.ok(), ended) << Message(status);
    EXPECT_EQ(ErrorOf(Run()), "");
    const int64_t step = LoadCheckpoint(Run())->record["step"];
    EXPECT_TRUE(step == 2 * n || step == 2 * n - 1) << step;
    ASSERT_TRUE(Shared(2 * n + 1, held).Save(Run()).ok());
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace switchyard
