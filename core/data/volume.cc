#include "core/data/volume.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "core/base/text.h"
#include "core/data/files.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr size_t kMostOfAHeader = 1 << 16;  // bytes: a .npy header of version 1 has no more

struct TypeRow {
  VoxelType type;
  int nifti;        // datatype of nifti1.h
  const char* npy;  // descr without its byte order
  size_t bytes;
};
constexpr std::array<TypeRow, 8> kTypes = {{{VoxelType::kU8, 2, "u1", 1},
                                            {VoxelType::kI8, 256, "i1", 1},
                                            {VoxelType::kU16, 512, "u2", 2},
                                            {VoxelType::kI16, 4, "i2", 2},
                                            {VoxelType::kU32, 768, "u4", 4},
                                            {VoxelType::kI32, 8, "i4", 4},
                                            {VoxelType::kF32, 16, "f4", 4},
                                            {VoxelType::kF64, 64, "f8", 8}}};

const TypeRow& RowOf(VoxelType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.type == type; });
}

bool Swapped(bool big_endian) { return big_endian != (std::endian::native == std::endian::big); }

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
  size_t place = 0;
  for (int64_t d = 0; d < v.depth; ++d) {
    for (int64_t h = 0; h < v.height; ++h) {
      for (int64_t w = 0; w < v.width; ++w, ++place)
        with(place, v.first_fastest ? static_cast<size_t>(d + v.depth * (h + v.height * w)) : place);
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

Status MissingVoxels(const std::string& path, const Volume& v, uint64_t expected, uint64_t found) {
  return DataLoss("{}: expected {} bytes of voxels for ({}), found {}; fetch it again", path, expected,
                  fmt::join(ExtentsOf(v), ", "), found);
}

// Voxels from the bytes after the header.
Status Decode(const std::string& path, std::span<const uint8_t> bytes, Volume* v) {
  SY_ASSIGN_OR_RETURN(const uint64_t expected, BytesOfVoxels(path, *v));
  if (bytes.size() != expected) return MissingVoxels(path, *v, expected, bytes.size());
  v->voxels.resize(expected / RowOf(v->stored).bytes);
  const bool swapped = Swapped(v->big_endian);
  AsStored(v->stored, [&](auto stored) {
    using T = decltype(stored);
    ForEachVoxel(*v, [&](size_t place, size_t in_file) {
      const auto value = static_cast<double>(Load<T>(bytes.data() + in_file * sizeof(T), swapped));
      v->voxels[place] = static_cast<float>(v->slope * value + v->intercept);
    });
  });
  return OkStatus();
}

// Byte offsets of fields in the header of nifti1.h.
constexpr size_t kNiftiHeader = 348, kDim = 40, kDatatype = 70, kBitpix = 72, kVoxOffset = 108, kSlope = 112,
                 kIntercept = 116, kCalMax = 124, kCalMin = 128, kMagic = 344;
constexpr float kFarthestVoxels = 1e15f;  // bytes

// Where the voxels start, which may be beyond the bytes; all of the volume but header and voxels.
StatusOr<size_t> ReadNiftiHeader(const std::string& path, std::span<const uint8_t> bytes, Volume* v) {
  if (bytes.size() < kNiftiHeader)
    return DataLoss("{}: expected a NIfTI-1 header of 348 bytes, found {} bytes", path, bytes.size());
  v->big_endian = Load<int32_t>(bytes.data(), Swapped(true)) == 348;
  const bool swapped = Swapped(v->big_endian);
  if (Load<int32_t>(bytes.data(), swapped) != 348)
    return InvalidArgument("{}: expected a NIfTI-1 file, which starts with the number 348, found something else", path);
  if (std::memcmp(&bytes[kMagic], "n+1", 4) != 0) {
    return InvalidArgument(
        "{}: expected a NIfTI-1 file with its voxels inside (magic \"n+1\"), found {}", path,
        std::memcmp(&bytes[kMagic], "ni1", 4) == 0 ? "one half of a pair of .hdr and .img" : "another magic");
  }
  std::array<int16_t, 8> dim;
  for (size_t i = 0; i < dim.size(); ++i) dim[i] = Load<int16_t>(&bytes[kDim + 2 * i], swapped);
  const int rank = std::clamp<int>(dim[0], 0, 7);
  if (dim[0] != rank || rank < 3 || !std::all_of(dim.begin() + 4, dim.begin() + 1 + rank, [](int d) { return d == 1; }))
    return InvalidArgument("{}: expected one volume of 3 dimensions, found {} ({})", path, dim[0],
                           fmt::join(dim.begin() + 1, dim.begin() + 1 + rank, ", "));
  v->depth = dim[3], v->height = dim[2], v->width = dim[1];
  const int datatype = Load<int16_t>(&bytes[kDatatype], swapped);
  const auto* const row =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.nifti == datatype; });
  if (row == kTypes.end()) {
    return InvalidArgument("{}: expected voxels of 8, 16 or 32 bit integers, f32 or f64, found NIfTI datatype {}", path,
                           datatype);
  }
  v->stored = row->type;
  const float offset = Load<float>(&bytes[kVoxOffset], swapped);
  if (!(offset >= kNiftiHeader && offset < kFarthestVoxels))
    return DataLoss("{}: expected voxels after the header of 348 bytes, found them at {}", path, offset);
  const float slope = Load<float>(&bytes[kSlope], swapped), intercept = Load<float>(&bytes[kIntercept], swapped);
  if (slope != 0 && std::isfinite(slope) && std::isfinite(intercept)) v->slope = slope, v->intercept = intercept;
  return static_cast<size_t>(offset);
}

// What follows 'key': in the header's dictionary.
std::optional<absl::string_view> NpyField(absl::string_view text, const std::string& key) {
  const size_t at = text.find(fmt::format("'{}':", key));
  if (at == absl::string_view::npos) return std::nullopt;
  return absl::StripLeadingAsciiWhitespace(text.substr(at + key.size() + 3));
}

// As ReadNiftiHeader.
StatusOr<size_t> ReadNpyHeader(const std::string& path, std::span<const uint8_t> bytes, Volume* v) {
  if (bytes.size() < 12) return DataLoss("{}: ends inside its .npy header", path);
  const int version = bytes[6];
  const size_t prefix = version == 1 ? 10 : 12;
  const size_t length =
      version == 1 ? Load<uint16_t>(&bytes[8], Swapped(false)) : size_t{Load<uint32_t>(&bytes[8], Swapped(false))};
  if (version < 1 || version > 3) return InvalidArgument("{}: expected .npy version 1 to 3, found {}", path, version);
  if (length > bytes.size() - prefix) return DataLoss("{}: ends inside its .npy header", path);
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()) + prefix, length);
  const auto descr = NpyField(text, "descr"), order = NpyField(text, "fortran_order"), shape = NpyField(text, "shape");
  if (!descr || !order || !shape || descr->size() < 5)
    return InvalidArgument("{}: expected a .npy header with descr, fortran_order and shape, found {}", path,
                           Printable(std::string(text)));
  const auto* const row = std::find_if(
      kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return descr->substr(2, 3) == std::string(r.npy) + "'"; });
  if (row == kTypes.end() || (*descr)[0] != '\'' || !absl::StrContains("<>|=", (*descr)[1])) {
    return InvalidArgument("{}: expected voxels u1, i1, u2, i2, u4, i4, f4 or f8, found {}", path,
                           Printable(std::string(descr->substr(0, descr->find(',')))));
  }
  v->stored = row->type;
  v->big_endian = (*descr)[1] == '>';
  v->first_fastest = absl::StartsWith(*order, "True");
  const absl::string_view tuple = shape->substr(0, shape->find(')'));
  std::vector<int64_t> extents;
  for (const absl::string_view part : absl::StrSplit(absl::StripPrefix(tuple, "("), ',', absl::SkipWhitespace())) {
    if (!absl::SimpleAtoi(part, &extents.emplace_back())) extents.back() = 0;
  }
  if (extents.size() != 3)
    return InvalidArgument("{}: expected an array of 3 dimensions, found ({})", path, fmt::join(extents, ", "));
  v->depth = extents[0], v->height = extents[1], v->width = extents[2];
  return prefix + length;
}

StatusOr<size_t> ReadHeader(const std::string& path, std::span<const uint8_t> bytes, Volume* v) {
  constexpr std::array<uint8_t, 6> kNumpy = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  v->gzip = absl::EndsWithIgnoreCase(path, ".gz");
  v->nifti = bytes.size() < kNumpy.size() || !std::equal(kNumpy.begin(), kNumpy.end(), bytes.begin());
  return v->nifti ? ReadNiftiHeader(path, bytes, v) : ReadNpyHeader(path, bytes, v);
}

// A header of version 1, padded so that the voxels start at a multiple of 64 bytes.
std::vector<uint8_t> NpyHeader(const Volume& v) {
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': {}, 'shape': ({}, {}, {}), }}",
                                 RowOf(v.stored).bytes == 1 ? '|' : (v.big_endian ? '>' : '<'), RowOf(v.stored).npy,
                                 v.first_fastest ? "True" : "False", v.depth, v.height, v.width);
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::vector<uint8_t> header = {0x93,
                                 'N',
                                 'U',
                                 'M',
                                 'P',
                                 'Y',
                                 1,
                                 0,
                                 static_cast<uint8_t>(text.size() & 0xFF),
                                 static_cast<uint8_t>(text.size() >> 8)};
  header.insert(header.end(), text.begin(), text.end());
  return header;
}

std::vector<uint8_t> Gzip(const std::vector<uint8_t>& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  std::vector<uint8_t> packed;
  std::array<uint8_t, 1 << 16> piece;
  size_t taken = 0;
  for (int code = Z_OK; code != Z_STREAM_END;) {
    if (stream.avail_in == 0) {
      const size_t next = std::min<size_t>(bytes.size() - taken, 1 << 30);
      stream.next_in = const_cast<uint8_t*>(bytes.data()) + taken;
      stream.avail_in = static_cast<unsigned>(next);
      taken += next;
    }
    stream.next_out = piece.data();
    stream.avail_out = static_cast<unsigned>(piece.size());
    code = deflate(&stream, taken == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    packed.insert(packed.end(), piece.data(), stream.next_out);
  }
  deflateEnd(&stream);
  return packed;
}

}  // namespace

StatusOr<Volume> ReadVolume(const std::string& path) {
  std::vector<uint8_t> bytes;
  SY_RETURN_IF_ERROR(ReadWholeFile(path, &bytes));
  Volume volume;
  SY_ASSIGN_OR_RETURN(const size_t start, ReadHeader(path, bytes, &volume));
  if (start > bytes.size()) {
    return DataLoss("{}: expected voxels after the header and within {} bytes, found them at {}", path, bytes.size(),
                    start);
  }
  volume.header.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(start));
  SY_RETURN_IF_ERROR(Decode(path, std::span(bytes).subspan(start), &volume));
  return volume;
}

StatusOr<Extents> ReadVolumeExtents(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const FileStart file, ReadFileStart(path, kMostOfAHeader));
  Volume volume;
  SY_ASSIGN_OR_RETURN(const size_t start, ReadHeader(path, file.bytes, &volume));
  SY_ASSIGN_OR_RETURN(const uint64_t expected, BytesOfVoxels(path, volume));
  const uint64_t most = file.most_bytes - std::min<uint64_t>(start, file.most_bytes);
  if (expected > most) return MissingVoxels(path, volume, expected, most);  // a damaged header asks for anything
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
  if (!mask.nifti) {
    mask.header = NpyHeader(mask);
    return mask;
  }
  const bool swapped = Swapped(mask.big_endian);
  Store(int16_t{2}, swapped, &mask.header[kDatatype]);
  Store(int16_t{8}, swapped, &mask.header[kBitpix]);
  Store(1.0f, swapped, &mask.header[kSlope]);
  for (const size_t field : {kIntercept, kCalMax, kCalMin}) Store(0.0f, swapped, &mask.header[field]);
  return mask;
}

}  // namespace switchyard
