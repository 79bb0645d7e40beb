#include "core/data/volume.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>

#include "core/data/files.h"
#include "core/data/volume_header.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr size_t kMostOfAHeader = 1 << 16;  // bytes: a .npy header of version 1 has no more

template <typename T>
T Converted(double value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    if (std::isnan(value)) return 0;
    return static_cast<T>(
        std::clamp<double>(std::nearbyint(value), std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
}

// Calls `with` with a value of the type that is stored.
template <typename With>
void AsStored(VoxelType type, With with) {
  switch (type) {
    case VoxelType::kU8:
      return with(uint8_t{});
    case VoxelType::kI8:
      return with(int8_t{});
    case VoxelType::kU16:
      return with(uint16_t{});
    case VoxelType::kI16:
      return with(int16_t{});
    case VoxelType::kU32:
      return with(uint32_t{});
    case VoxelType::kI32:
      return with(int32_t{});
    case VoxelType::kF32:
      return with(float{});
    case VoxelType::kF64:
      return with(double{});
  }
}

// Calls `with` with each voxel's place in memory and in the file.
template <typename With>
void ForEachVoxel(const Volume& v, With with) {
  const Extents extents = ExtentsOf(v);
  Extents in_file, strides;  // of the file's axes; of ours there
  for (size_t i = 0; i < 3; ++i) in_file[v.order.axis[i]] = extents[i];
  const Extents steps = {in_file[1] * in_file[2], in_file[2], 1};
  int64_t first = 0;
  for (size_t i = 0; i < 3; ++i) {
    strides[i] = steps[v.order.axis[i]];
    if (!v.order.reversed[i]) continue;
    first += strides[i] * (extents[i] - 1);
    strides[i] = -strides[i];
  }
  size_t place = 0;
  for (int64_t d = 0; d < v.depth; ++d) {
    for (int64_t h = 0; h < v.height; ++h) {
      int64_t at = first + d * strides[0] + h * strides[1];
      for (int64_t w = 0; w < v.width; ++w, ++place, at += strides[2]) with(place, static_cast<size_t>(at));
    }
  }
}

// What the voxels take as they are stored.
StatusOr<uint64_t> BytesOfVoxels(const std::string& path, const Volume& v) {
  uint64_t bytes = RowOf(v.stored).bytes;
  for (const int64_t extent : ExtentsOf(v)) {
    if (extent < 1 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
      return DataLoss("{}: expected three extents of at least 1 voxel, found ({})", path,
                      fmt::join(ExtentsOf(v), ", "));
    }
  }
  return bytes;
}

std::string OfVoxels(const Volume& v) { return fmt::format("of voxels for ({})", fmt::join(ExtentsOf(v), ", ")); }

// Voxels from the bytes after the header.
void Decode(std::span<const uint8_t> bytes, Volume* v) {
  v->voxels.resize(bytes.size() / RowOf(v->stored).bytes);
  const bool swapped = Swapped(v->big_endian);
  AsStored(v->stored, [&](auto stored) {
    using T = decltype(stored);
    ForEachVoxel(*v, [&](size_t place, size_t in_file) {
      const auto value = static_cast<double>(Load<T>(bytes.data() + in_file * sizeof(T), swapped));
      v->voxels[place] = static_cast<float>(v->slope * value + v->intercept);
    });
  });
}

}  // namespace

StatusOr<Volume> ReadVolume(const std::string& path, const FileOrder& otherwise) {
  SY_ASSIGN_OR_RETURN(FileStream file, FileStream::Open(path));
  std::vector<uint8_t> bytes;
  SY_RETURN_IF_ERROR(file.Append(kMostOfAHeader, &bytes));
  Volume volume;
  SY_ASSIGN_OR_RETURN(const size_t start, ReadVolumeHeader(path, bytes, otherwise, &volume));
  SY_ASSIGN_OR_RETURN(const uint64_t expected, BytesOfVoxels(path, volume));
  // Bounded so that the sum below cannot overflow.
  const uint64_t voxels = std::min(expected, uint64_t{1} << 60) / RowOf(volume.stored).bytes;
  // A damaged header asks for anything: what the file cannot have is missing, however much memory there is.
  if (start <= file.most_bytes() && expected <= file.most_bytes())
    SY_RETURN_IF_ERROR(CheckFitsInMemory(path, 2 * start + expected + voxels * sizeof(float)));
  if (start > bytes.size() && start <= file.most_bytes()) SY_RETURN_IF_ERROR(file.Append(start - bytes.size(), &bytes));
  if (start > bytes.size()) {
    return DataLoss("{}: expected voxels after the header and within {} bytes, found them at {}", path, bytes.size(),
                    start);
  }
  volume.header.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(start));
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(start));
  SY_RETURN_IF_ERROR(file.Finish(expected, OfVoxels(volume), &bytes));
  Decode(bytes, &volume);
  return volume;
}

StatusOr<Extents> ReadVolumeExtents(const std::string& path) {
  SY_ASSIGN_OR_RETURN(FileStream file, FileStream::Open(path));
  std::vector<uint8_t> bytes;
  SY_RETURN_IF_ERROR(file.Append(kMostOfAHeader, &bytes));
  Volume volume;
  SY_ASSIGN_OR_RETURN(const size_t start, ReadVolumeHeader(path, bytes, {}, &volume));
  SY_ASSIGN_OR_RETURN(const uint64_t expected, BytesOfVoxels(path, volume));
  const uint64_t most = file.most_bytes() - std::min<uint64_t>(start, file.most_bytes());
  if (expected > most) {  // a damaged header asks for anything
    return DataLoss("{}: expected {} bytes {}, found {}; fetch it again", path, expected, OfVoxels(volume), most);
  }
  return ExtentsOf(volume);
}

std::vector<uint8_t> EncodeVolume(const Volume& v) {
  std::vector<uint8_t> bytes = v.header;
  const size_t start = bytes.size();
  bytes.resize(start + v.voxels.size() * RowOf(v.stored).bytes);
  const bool swapped = Swapped(v.big_endian);
  AsStored(v.stored, [&](auto stored) {
    using T = decltype(stored);
    ForEachVoxel(v, [&](size_t place, size_t in_file) {
      const double value = (static_cast<double>(v.voxels[place]) - v.intercept) / v.slope;
      Store(Converted<T>(value), swapped, bytes.data() + start + in_file * sizeof(T));
    });
  });
  return v.gzip ? Gzip(bytes) : bytes;
}

Volume MaskLike(const Volume& like, std::span<const uint8_t> ids) {
  Volume mask = like;
  mask.stored = VoxelType::kU8;
  mask.slope = 1, mask.intercept = 0;
  mask.voxels.assign(ids.begin(), ids.end());
  RewriteVolumeHeader(&mask);
  return mask;
}

}  // namespace switchyard
