// The headers of volumes' files: NIfTI-1 and NumPy's .npy, read into what a Volume says of its file. Private to
// volume.h.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/data/volume.h"

namespace switchyard {

struct VoxelTypeRow {
  VoxelType type;
  int nifti;        // datatype of nifti1.h
  const char* npy;  // descr without its byte order
  size_t bytes;
};
inline constexpr std::array<VoxelTypeRow, 8> kVoxelTypes = {{{VoxelType::kU8, 2, "u1", 1},
                                                             {VoxelType::kI8, 256, "i1", 1},
                                                             {VoxelType::kU16, 512, "u2", 2},
                                                             {VoxelType::kI16, 4, "i2", 2},
                                                             {VoxelType::kU32, 768, "u4", 4},
                                                             {VoxelType::kI32, 8, "i4", 4},
                                                             {VoxelType::kF32, 16, "f4", 4},
                                                             {VoxelType::kF64, 64, "f8", 8}}};

inline const VoxelTypeRow& RowOf(VoxelType type) {
  return *std::find_if(kVoxelTypes.begin(), kVoxelTypes.end(),
                       [&](const VoxelTypeRow& row) { return row.type == type; });
}

inline bool Swapped(bool big_endian) { return big_endian != (std::endian::native == std::endian::big); }

template <typename T>
T Load(const uint8_t* at, bool swapped) {
  std::array<uint8_t, sizeof(T)> bytes;
  std::memcpy(bytes.data(), at, sizeof(T));
  if (swapped) std::reverse(bytes.begin(), bytes.end());
  return std::bit_cast<T>(bytes);
}

template <typename T>
void Store(T value, bool swapped, uint8_t* at) {
  auto bytes = std::bit_cast<std::array<uint8_t, sizeof(T)>>(value);
  if (swapped) std::reverse(bytes.begin(), bytes.end());
  std::memcpy(at, bytes.data(), sizeof(T));
}

// Where the voxels start, which may be beyond the bytes; all of the volume but header and voxels. `otherwise`: how a
// NIfTI file lies whose header does not say.
StatusOr<size_t> ReadVolumeHeader(const std::string& path, std::span<const uint8_t> bytes, const FileOrder& otherwise,
                                  Volume* v);

// The header that goes before the volume's voxels where they are no longer those of the file that `header` came from:
// unscaled, and of the type `stored`.
void RewriteVolumeHeader(Volume* v);

}  // namespace switchyard
