// Files that are written past the page cache: the same bytes, whatever the disk allows.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "core/train/file_calls.h"
#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool IsDirect(int descriptor) { return (::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0; }

class BulkWriteTest : public Scratch {
 protected:
  BulkWriteTest() : calls_(SystemFileCalls()) {
    calls_.fsync = [](int) { return 0; };
    calls_.write = [this](int descriptor, const void* data, size_t bytes) {
      direct_ += IsDirect(descriptor) ? 1 : 0;
      cached_ += IsDirect(descriptor) ? 0 : bytes;
      const ssize_t written = disk_(descriptor, data, bytes);
      refused_ += written < 0 ? 1 : 0;
      return written;
    };
    ReplaceFileCalls(&calls_);
  }
  ~BulkWriteTest() override { ReplaceFileCalls(nullptr); }

  // Pieces of these sizes, a few bytes apart; one that begins a page comes first.
  std::vector<ByteView> Pieces(const std::vector<size_t>& sizes) {
    constexpr size_t kApart = 5;
    memory_.resize(std::accumulate(sizes.begin(), sizes.end(), kPage + sizes.size() * kApart));
    uint32_t word = 1;
    for (size_t i = 0; i + sizeof word <= memory_.size(); i += sizeof word) {
      word = word * 1664525 + 1013904223;
      std::memcpy(&memory_[i], &word, sizeof word);
    }
    size_t at = (kPage - reinterpret_cast<uintptr_t>(memory_.data()) % kPage) % kPage;
    std::vector<ByteView> pieces;
    for (const size_t size : sizes) {
      pieces.push_back(std::as_bytes(std::span(memory_)).subspan(at, size));
      at += size + kApart;
    }
    return pieces;
  }
  void ExpectWritten(const std::vector<ByteView>& pieces) {
    const auto folder = Folder::Open(In(""));
    ASSERT_TRUE(folder.ok());
    const Status status = folder->Write("file", pieces);
    ASSERT_TRUE(status.ok()) << status;
    std::string expected;
    for (const ByteView piece : pieces) expected.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    EXPECT_TRUE(ReadText(In("file")) == expected);
    std::filesystem::remove(In("file"));
  }
  bool DiskTakesDirectWrites() {
    WriteText(In("probe"), "");
    const Descriptor probe(::open(In("probe").c_str(), O_WRONLY | O_DIRECT));
    return probe.get() >= 0;
  }

  static constexpr size_t kPage = 4096;
  std::function<ssize_t(int, const void*, size_t)> disk_ = ::write;
  int direct_ = 0;     // writes past the cache
  size_t cached_ = 0;  // bytes through it
  int refused_ = 0;

 private:
  FileCalls calls_;
  std::string memory_;
};

TEST_F(BulkWriteTest, OnlyWhatFillsNoBlockGoesThroughTheCache) {
  if (!DiskTakesDirectWrites()) GTEST_SKIP() << "this file system has no O_DIRECT";
  for (const auto& sizes : std::vector<std::vector<size_t>>{
           {4 * kMiB}, {4 * kMiB + 1}, {8, 4000, 9 * kMiB + 4095}, {kPage, 9 * kMiB, 3, 5 * kMiB}, {8 * kMiB, 0, 7}}) {
    direct_ = 0, cached_ = 0;
    ExpectWritten(Pieces(sizes));
    EXPECT_GT(direct_, 0);
    EXPECT_EQ(cached_, std::accumulate(sizes.begin(), sizes.end(), size_t{0}) % kPage);
    EXPECT_EQ(refused_, 0);
  }
  direct_ = 0;
  ExpectWritten(Pieces({kMiB, kMiB}));
  EXPECT_EQ(direct_, 0) << "a small file";
}

// It is asked for when all else is written, and stands before it.
TEST_F(BulkWriteTest, TheHeadIsWrittenLast) {
  for (const size_t bytes : {size_t{3}, 5 * kMiB + 1}) {
    bool all_read = false;
    switchyard::Pieces pieces = PiecesOf(std::vector<ByteView>{});
    const auto read = [&](size_t begin, std::span<std::byte> to) {
      std::fill(to.begin(), to.end(), std::byte{'p'});
      all_read = begin + to.size() == bytes;
      return OkStatus();
    };
    pieces.pieces = {{bytes, read}};
    pieces.head_bytes = 5000;
    pieces.head = [&] { return std::string(5000, all_read ? 'h' : 'x'); };
    const auto folder = Folder::Open(In(""));
    ASSERT_TRUE(folder.ok() && folder->Write("file", pieces).ok());
    EXPECT_TRUE(ReadText(In("file")) == std::string(5000, 'h') + std::string(bytes, 'p')) << bytes;
    std::filesystem::remove(In("file"));
  }
}

TEST_F(BulkWriteTest, ADiskThatAllowsNoDirectWriteGetsThemThroughTheCache) {
  for (const int error_number : {EINVAL, EFAULT}) {
    for (const int allowed : {0, 1}) {  // direct writes before the first that is refused
      direct_ = 0;
      disk_ = [&](int descriptor, const void* data, size_t bytes) -> ssize_t {
        if (!IsDirect(descriptor) || direct_ <= allowed) return ::write(descriptor, data, bytes);
        errno = error_number;
        return -1;
      };
      ExpectWritten(Pieces({100, 9 * kMiB + 17, 3 * kMiB}));
      EXPECT_LE(direct_, allowed + 1);
    }
  }
}

// A disk that is all but full takes a part of what it is given: any number of bytes.
TEST_F(BulkWriteTest, AWriteThatEndsEarlyGoesOn) {
  disk_ = [](int descriptor, const void* data, size_t bytes) {
    if (!IsDirect(descriptor)) return ::write(descriptor, data, std::min(bytes, size_t{1'000'003}));
    return ::write(descriptor, data, std::min(bytes, 3 * size_t{512}));
  };
  ExpectWritten(Pieces({100, 4 * kMiB + 17}));
}

TEST_F(BulkWriteTest, AnErrorNamesTheFileAndLeavesNone) {
  for (const bool while_direct : {true, false}) {
    disk_ = [&](int descriptor, const void* data, size_t bytes) -> ssize_t {
      if (IsDirect(descriptor) != while_direct) return ::write(descriptor, data, bytes);
      errno = ENOSPC;
      return -1;
    };
    if (while_direct && !DiskTakesDirectWrites()) continue;
    const auto folder = Folder::Open(In(""));
    const Status status = folder->Write("file", Pieces({9 * kMiB + 17}));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(status), ::testing::HasSubstr("/file: No space left on device"));
    EXPECT_FALSE(folder->Has("file"));
  }
}

}  // namespace
}  // namespace switchyard
