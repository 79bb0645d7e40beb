// What a compressed file takes of memory while it is opened: what its header says and little more, however much is
// packed behind it. Measured in a process of its own, of which the kernel knows the most that it had.
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/host_memory.h"
#include "core/data/dataset.h"
#include "core/data/files.h"
#include "core/data/volume.h"
#include "gmock/gmock.h"
#include "tests/data/files_for_tests.h"
#include "tests/data/in_a_process.h"
#include "tests/data/opened_data.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBomb = 60 << 20;      // bytes, of zeros
constexpr size_t kArchive = 140 << 20;  // so that one that doubles as it grows has more than kLittle beside it
constexpr int64_t kLittle = 40 << 20;   // what a process takes for other things

class Inflating : public ::testing::Test {
 protected:
  // `bytes` with zeros behind them.
  static Bytes Bomb(Bytes bytes) {
    bytes.resize(bytes.size() + kBomb);
    return GzipBytes(bytes);
  }
  const TemporaryFolder folder_;
};

TEST_F(Inflating, AVolumeTakesWhatItsHeaderSays) {
  const std::string path = folder_.Write("bomb.nii.gz", Bomb(NiftiOfBytes({8, 8, 8}, Bytes(512, 1))));
  ASSERT_LT(std::filesystem::file_size(path), 1u << 20);
  const Opened opened = InAProcess([&] { return ReadVolume(path).status(); });
  EXPECT_THAT(opened.message,
              HasSubstr("bomb.nii.gz: expected 512 bytes of voxels for (8, 8, 8), found more than that"));
  EXPECT_LT(opened.peak, kLittle);
  EXPECT_TRUE(ReadVolumeExtents(path).ok()) << "which asks for the header alone";
}

TEST_F(Inflating, AVolumeOfNumpyTakesWhatItsHeaderSays) {
  const std::string text = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 4), }\n";
  Bytes bytes = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<uint8_t>(text.size()), 0};
  bytes.insert(bytes.end(), text.begin(), text.end());
  const std::string path = folder_.Write("bomb.npy", Bomb(bytes));
  const Opened opened = InAProcess([&] { return ReadVolume(path).status(); });
  EXPECT_THAT(opened.message, HasSubstr("bomb.npy: expected 24 bytes of voxels for (2, 3, 4), found more than that"));
  EXPECT_LT(opened.peak, kLittle);
}

// The dataset's own way to them: labels are read when it is opened, the image when its turn comes.
TEST_F(Inflating, ADatasetOfVolumesTakesWhatTheirHeadersSay) {
  const Bytes good = NiftiOfBytes({8, 8, 8}, Bytes(512, 1));
  folder_.Write("train/images/a.nii.gz", Bomb(good));
  folder_.Write("train/labels/a.nii.gz", GzipBytes(good));
  folder_.Write("train/images/b.nii.gz", GzipBytes(good));
  folder_.Write("train/labels/b.nii.gz", Bomb(good));
  const Opened opened = InAProcess([&]() -> Status {
    SY_ASSIGN_OR_RETURN(const auto volumes, OpenData("volume", folder_.path(), Split::kTrain));
    const Status image = volumes->Get(0).status(), label = volumes->Get(1).status();
    return InvalidArgument("{}; {}", Message(image), Message(label));
  });
  EXPECT_THAT(opened.message, AllOf(HasSubstr("images/a.nii.gz: expected 512 bytes"),
                                    HasSubstr("labels/b.nii.gz: expected 512 bytes")));
  EXPECT_LT(opened.peak, kLittle);
}

TEST_F(Inflating, AnIdxFileTakesWhatItsHeaderSays) {
  folder_.Write("train-images-idx3-ubyte.gz", Bomb(IdxBytes({2, 4, 4}, Bytes(32, 1))));
  folder_.Write("train-labels-idx1-ubyte.gz", GzipBytes(IdxBytes({2}, {0, 1})));
  const Opened opened = InAProcess([&] { return OpenData("idx", folder_.path(), Split::kTrain).status(); });
  EXPECT_THAT(opened.message, HasSubstr("ubyte.gz: expected 32 bytes after its IDX header, found more than that"));
  EXPECT_LT(opened.peak, kLittle);
}

// What a header asks for and what there is not is not taken either.
TEST_F(Inflating, AHeaderThatAsksForMoreThanThereIsTakesWhatThereIs) {
  // Random bytes do not shrink: the rest could be two gigabytes, as far as the length of the file tells.
  Bytes elements(2 << 20);
  for (size_t i = 0, x = 1; i < elements.size(); ++i)
    elements[i] = static_cast<uint8_t>((x = x * 6364136223846793005u + 1) >> 56);
  folder_.Write("train-labels-idx1-ubyte.gz", GzipBytes(IdxBytes({1'000'000'000}, elements)));
  folder_.Write("train-images-idx3-ubyte.gz", GzipBytes(IdxBytes({1, 1, 1}, {0})));
  const Opened opened = InAProcess([&] { return OpenData("idx", folder_.path(), Split::kTrain).status(); });
  EXPECT_THAT(opened.message, HasSubstr("expected 1000000000 bytes after its IDX header, found 2097152"));
  EXPECT_LT(opened.peak, kLittle);
}

// An archive is held as it is unpacked, once.
TEST_F(Inflating, AnArchiveTakesWhatIsInIt) {
  const std::string path =
      folder_.Write("data.tar.gz", GzipBytes(TarBytes({{"a", Bytes(kArchive)}, {"b", {1, 2, 3}}})));
  const Opened opened = InAProcess([&]() -> Status {
    SY_ASSIGN_OR_RETURN(const auto tree, FileTree::Open(path));
    Bytes bytes;
    for (const FileTree::Entry& entry : tree->entries()) {
      if (entry.name == "b") SY_RETURN_IF_ERROR(tree->Read(entry, &bytes));
    }
    return bytes == Bytes{1, 2, 3} ? OkStatus() : Internal("found something else");
  });
  EXPECT_EQ(opened.message, "");
  EXPECT_LT(opened.peak, static_cast<int64_t>(kArchive) + kLittle);
}

// Its members lie in memory in several pieces.
TEST_F(Inflating, MembersOfACompressedArchiveAreThoseOfAPlainOne) {
  std::vector<std::pair<std::string, Bytes>> files;
  for (size_t i = 0; i < 5; ++i) {
    Bytes& bytes = files.emplace_back(fmt::format("{}", i), Bytes((7 << 20) + 300 * i)).second;
    for (size_t at = 0; at < bytes.size(); at += 97) bytes[at] = static_cast<uint8_t>(at / 97 + i);
  }
  const auto tree = FileTree::Open(folder_.Write("data.tar.gz", GzipBytes(TarBytes(files))));
  ASSERT_TRUE(tree.ok()) << Message(tree.status());
  ASSERT_EQ((*tree)->entries().size(), files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    Bytes bytes;
    ASSERT_TRUE((*tree)->Read((*tree)->entries()[i], &bytes).ok());
    EXPECT_TRUE(bytes == files[i].second) << i;
  }
}

TEST_F(Inflating, WhatIsTakenIsHalfOfWhatTheControlGroupLeaves) {
  folder_.Write("proc/meminfo", {});
  std::ofstream(folder_.path() + "/proc/meminfo") << "MemTotal: 64000 kB\nMemAvailable: 40000 kB\n";
  EXPECT_EQ(MostInMemory(folder_.path()), 20'000u * 1024);
  folder_.Write("sys/fs/cgroup/memory.max", {'8', '0', '0', '0', '\n'});
  folder_.Write("sys/fs/cgroup/memory.current", {'2', '0', '0', '0', '\n'});
  EXPECT_EQ(MostInMemory(folder_.path()), 3000u);
}

// Files of more bytes than there is memory, nearly all of them holes.
TEST_F(Inflating, WhatDoesNotFitIsRefusedBeforeItIsRead) {
  const auto available = AvailableHostBytes();
  if (!available) GTEST_SKIP() << "nobody says how much memory there is";
  const auto extent = static_cast<uint32_t>(*available / (64 << 10) + 1);
  const std::string images = folder_.Write("train-images-idx3-ubyte", IdxBytes({extent, 256, 256}, {}));
  folder_.Write("train-labels-idx1-ubyte", IdxBytes({2}, {0, 1}));
  std::error_code error;
  std::filesystem::resize_file(images, 16 + (uint64_t{extent} << 16), error);
  if (error) GTEST_SKIP() << "no file of that size here: " << error.message();
  Bytes nifti = NiftiOfBytes({8, 8, 8}, {});
  const int16_t side = 32767;
  for (const size_t at : {42, 44, 46}) std::memcpy(&nifti[at], &side, 2);
  const std::string volume = folder_.Write("large.nii", nifti);
  std::filesystem::resize_file(volume, nifti.size() + int64_t{side} * side * side, error);
  const Opened idx = InAProcess([&] { return OpenData("idx", folder_.path(), Split::kTrain).status(); });
  EXPECT_THAT(idx.message, AllOf(HasSubstr("images-idx3-ubyte: takes"), HasSubstr("half of what is left")));
  EXPECT_LT(idx.peak, kLittle);
  if (error) return;
  const Opened nii = InAProcess([&] { return ReadVolume(volume).status(); });
  EXPECT_THAT(nii.message, AllOf(HasSubstr("large.nii: takes"), HasSubstr("half of what is left")));
  EXPECT_LT(nii.peak, kLittle);
}

}  // namespace
}  // namespace switchyard
