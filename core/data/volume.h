// A volume of voxels from a file, NIfTI-1 (.nii, .nii.gz) or NumPy's .npy, and the way back: what is read, and a mask
// of what was read, is written in the format that came in, with its orientation. Voxels are (depth, height, width), the
// last fastest. Those of a NIfTI file whose header says how it lies in the body run upwards, forwards and to the right
// (RAS+), each along the axis of the file that is nearest; others are as stored: dim[3], dim[2], dim[1], and the
// dimensions of a .npy. Sources: the NIfTI-1 header as of nifti1.h
// (https://nifti.nimh.nih.gov/nifti-1), NumPy's NEP 1. Thread-safe: free functions on the caller's objects. Errors name
// the file, what was expected and what was found: InvalidArgument for what is not such a volume or is not supported
// (pairs of .hdr and .img, complex and colour types, other than three dimensions), DataLoss where bytes are missing or
// too many.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

using Extents = std::array<int64_t, 3>;  // (depth, height, width) in voxels
inline int64_t VoxelsOf(const Extents& e) { return e[0] * e[1] * e[2]; }

enum class VoxelType { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kF64 };

// How voxels lie in their file: axis i of a volume is axis `axis[i]` of the file, of which the first is the slowest,
// and runs against it where `reversed[i]`.
struct FileOrder {
  std::array<size_t, 3> axis = {0, 1, 2};
  std::array<bool, 3> reversed = {};
  bool operator==(const FileOrder&) const = default;
};

struct Volume {
  int64_t depth = 0, height = 0, width = 0;
  std::vector<float> voxels;  // slope · stored + intercept, rounded to f32
  VoxelType stored = VoxelType::kF32;
  double slope = 1, intercept = 0;  // NIfTI's scl_slope and scl_inter; 1 and 0 where the file scales nothing
  bool nifti = true;                // else .npy
  bool gzip = false;                // the name ends in .gz
  bool big_endian = false;
  FileOrder order;
  bool oriented = false;        // the file says how it lies: NIfTI's sform or qform
  std::vector<uint8_t> header;  // the file's bytes before its voxels, extensions of NIfTI included
};

inline Extents ExtentsOf(const Volume& v) { return {v.depth, v.height, v.width}; }

// `otherwise`: how a NIfTI file lies whose header does not say.
StatusOr<Volume> ReadVolume(const std::string& path, const FileOrder& otherwise = {});
// Of the file's header alone: whether all voxels are there is not known yet.
StatusOr<Extents> ReadVolumeExtents(const std::string& path);

// The content of a file. Whole-number types are rounded to nearest and saturate; NaN becomes 0 there.
std::vector<uint8_t> EncodeVolume(const Volume& volume);

// A volume of class ids, one byte a voxel and unscaled, with everything else as in `like`. ids: (depth, height, width).
Volume MaskLike(const Volume& like, std::span<const uint8_t> ids);

}  // namespace switchyard
