// Small files in the formats that core/data reads, written by the tests themselves into a folder that goes away.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/data/image.h"

namespace switchyard {

using Bytes = std::vector<uint8_t>;

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path() const { return path_.string(); }
  // Writes a file, making its folders; returns its full path.
  std::string Write(const std::string& name, const Bytes& bytes) const;

 private:
  std::filesystem::path path_;
};

// A fixed picture: (7 x² + 13 y + 29 c + 3 x y) mod 256.
Image Pattern(int height, int width, int channels);
uint32_t Crc(const Bytes& bytes);

Bytes IdxBytes(const std::vector<uint32_t>& dims, const Bytes& elements);
Bytes JpegBytes(const Image& image, int quality = 95, bool progressive = false);
Bytes PngBytes(const Image& image);  // 1, 3 or 4 channels
Bytes GzipBytes(const Bytes& bytes);

// A NIfTI-1 file of bytes, the first index fastest; with twelve numbers for srow_x, srow_y and srow_z as its sform.
Bytes NiftiOfBytes(const std::array<int16_t, 3>& extents, const Bytes& voxels, const std::vector<float>& srow = {});

enum class TarNames { kUstar, kGnu, kPax };  // how names above 100 characters are kept
Bytes TarBytes(const std::vector<std::pair<std::string, Bytes>>& files, TarNames names = TarNames::kUstar);

// train/ and val/ with classes ant, bee and cat: (train, val) files of each class, JPEG, and one PNG in cat.
std::vector<std::pair<std::string, Bytes>> SmallImageFolder(int train, int val);

}  // namespace switchyard
