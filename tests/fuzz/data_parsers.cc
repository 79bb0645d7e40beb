#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/data/class_map.h"
#include "core/data/files.h"
#include "core/data/formats.h"
#include "core/data/image.h"
#include "core/data/volume.h"
#include "tests/data/files_for_tests.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace switchyard {
namespace {

// An image of 2^28 pixels is within the limit, and takes a second: what says that it is large is passed over.
constexpr uint32_t kMostPixels = 1 << 20;

uint32_t BigEndian(const uint8_t* at, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | at[i];
  return value;
}

bool IsSmall(uint64_t width, uint64_t height) { return width * height <= kMostPixels; }

}  // namespace

int FuzzJpeg(const uint8_t* data, size_t size) {
  for (size_t i = 0; i + 9 < size; ++i) {
    const bool frame = data[i] == 0xFF && data[i + 1] >= 0xC0 && data[i + 1] <= 0xCF;
    if (frame && !IsSmall(BigEndian(data + i + 7, 2), BigEndian(data + i + 5, 2))) return 0;
  }
  Image image;
  DecodeImage({data, size}, &image).IgnoreError();
  DecodeJpeg({data, size}, &image).IgnoreError();
  return 0;
}

namespace {

// The PNG with right checksums of its chunks, so that a changed chunk is read; empty where it says that it is large.
Bytes SealedPng(const uint8_t* data, size_t size) {
  if (size >= 24 && !IsSmall(BigEndian(data + 16, 4), BigEndian(data + 20, 4))) return {};
  Bytes png(data, data + size);
  for (uint64_t at = 8; at + 12 <= png.size();) {
    const uint64_t end = at + 8 + BigEndian(&png[at], 4);
    if (end + 4 > png.size()) break;
    const uint32_t crc = Crc(Bytes(png.begin() + static_cast<long>(at) + 4, png.begin() + static_cast<long>(end)));
    for (int i = 0; i < 4; ++i) png[end + static_cast<uint64_t>(i)] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    at = end + 4;
  }
  return png;
}

}  // namespace

int FuzzPng(const uint8_t* data, size_t size) {
  Image image;
  DecodePng(SealedPng(data, size), &image).IgnoreError();
  return 0;
}

int FuzzMask(const uint8_t* data, size_t size) {
  Image mask;
  if (!DecodeMask(SealedPng(data, size), &mask).ok()) return 0;
  if (mask.channels != 1) std::abort();
  MapClasses(Identity(3), "mask", &mask).IgnoreError();
  return 0;
}

int FuzzTar(const uint8_t* data, size_t size) {
  // The checksums of the headers.
  Bytes tar(data, data + size);
  for (size_t at = 0; at + 512 <= tar.size(); at += 512) {
    if (!std::equal(&tar[at + 257], &tar[at + 262], "ustar")) continue;
    std::fill_n(&tar[at + 148], 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += tar[at + i];
    const std::string text = fmt::format("{:06o}", sum);
    std::copy_n(text.begin(), 6, &tar[at + 148]);
    tar[at + 154] = 0;
  }
  const MemoryFile file(tar.data(), tar.size());
  const auto tree = FileTree::Open(file.path());
  if (!tree.ok()) return 0;
  std::vector<uint8_t> bytes;
  for (const FileTree::Entry& entry : (*tree)->entries()) {
    if (!entry.folder) (*tree)->Read(entry, &bytes).IgnoreError();
  }
  OpenImageFolder("fuzz", file.path(), Split::kTrain).IgnoreError();
  OpenCityscapes(file.path(), Split::kTrain).IgnoreError();
  const auto masked = OpenMaskFolders("fuzz", file.path(), Split::kTrain);
  if (masked.ok()) (*masked)->Checksum();
  return 0;
}

int FuzzIdx(const uint8_t* data, size_t size) {
  ReadIdx(MemoryFile(data, size).path()).IgnoreError();
  return 0;
}

int FuzzVolume(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  ReadVolumeExtents(file.path()).IgnoreError();
  const auto volume = ReadVolume(file.path());
  if (volume.ok()) EncodeVolume(MaskLike(*volume, std::vector<uint8_t>(volume->voxels.size(), 1)));
  return 0;
}

int FuzzCifar(const uint8_t* data, size_t size) {
  const Bytes tar = TarBytes({{"data_batch_1.bin", Bytes(data, data + size)}});
  const auto dataset = OpenCifar10(MemoryFile(tar.data(), tar.size()).path(), Split::kTrain);
  if (dataset.ok()) (*dataset)->Checksum();
  return 0;
}

}  // namespace switchyard
