#include "core/data/volume_header.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include <cmath>
#include <optional>

#include "core/base/text.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

// Byte offsets of fields in the header of nifti1.h.
constexpr size_t kNiftiHeader = 348, kDim = 40, kDatatype = 70, kBitpix = 72, kVoxOffset = 108, kSlope = 112,
                 kIntercept = 116, kCalMax = 124, kCalMin = 128, kPixdim = 76, kQformCode = 252, kSformCode = 254,
                 kQuaternion = 256, kSrow = 280, kMagic = 344;
constexpr float kFarthestVoxels = 1e15f;  // bytes

// Column j is where the body's coordinates (right, front, up) go with one more of index j of the file, the fastest
// first; of any length.
using Directions = std::array<std::array<double, 3>, 3>;

Directions Sform(std::span<const uint8_t> bytes, bool swapped) {
  Directions d;
  for (size_t row = 0; row < 3; ++row) {
    for (size_t j = 0; j < 3; ++j)
      d[j][row] = static_cast<double>(Load<float>(&bytes[kSrow + 16 * row + 4 * j], swapped));
  }
  return d;
}

// The rotation of nifti1.h's method 2, whose third axis is turned round where pixdim[0] is negative.
Directions Qform(std::span<const uint8_t> bytes, bool swapped) {
  const auto number = [&](size_t at) { return static_cast<double>(Load<float>(&bytes[at], swapped)); };
  const double b = number(kQuaternion), c = number(kQuaternion + 4), d = number(kQuaternion + 8);
  const double a = std::sqrt(std::max(0.0, 1 - b * b - c * c - d * d)), side = number(kPixdim) < 0 ? -1 : 1;
  return {{{a * a + b * b - c * c - d * d, 2 * (b * c + a * d), 2 * (b * d - a * c)},
           {2 * (b * c - a * d), a * a + c * c - b * b - d * d, 2 * (c * d + a * b)},
           {side * 2 * (b * d + a * c), side * 2 * (c * d - a * b), side * (a * a + d * d - c * c - b * b)}}};
}

// Which axis of the file each of ours is: as nibabel's io_orientation has it, the axis of the file that lies nearest to
// one of the body's chooses first, and each takes the nearest that is left. None where the directions are not three.
std::optional<FileOrder> Nearest(Directions d) {
  std::array<double, 3> nearest = {};  // its largest cosine
  for (size_t j = 0; j < 3; ++j) {
    const double length = std::hypot(d[j][0], d[j][1], d[j][2]);
    if (!std::isfinite(length) || length == 0) return std::nullopt;
    for (double& part : d[j]) {
      part /= length;
      nearest[j] = std::max(nearest[j], std::abs(part));
    }
  }
  std::array<size_t, 3> turns = {0, 1, 2};
  std::stable_sort(turns.begin(), turns.end(), [&](size_t a, size_t b) { return nearest[a] > nearest[b]; });
  FileOrder order;
  std::array<bool, 3> taken = {};
  for (const size_t j : turns) {
    size_t body = 3;
    for (size_t i = 0; i < 3; ++i) {
      if (!taken[i] && (body == 3 || std::abs(d[j][i]) > std::abs(d[j][body]))) body = i;
    }
    if (d[j][body] == 0) return std::nullopt;
    taken[body] = true;
    order.axis[2 - body] = 2 - j;
    order.reversed[2 - body] = d[j][body] < 0;
  }
  return order;
}

// The sform where there is one, as nibabel and MONAI do, else the qform.
Status ReadOrientation(const std::string& path, std::span<const uint8_t> bytes, bool swapped, Volume* v) {
  const bool has_sform = Load<int16_t>(&bytes[kSformCode], swapped) > 0;
  if (!has_sform && Load<int16_t>(&bytes[kQformCode], swapped) <= 0) return OkStatus();
  const auto order = Nearest(has_sform ? Sform(bytes, swapped) : Qform(bytes, swapped));
  if (!order) {
    return DataLoss(
        "{}: the header says that its {} places the voxels, but that gives its three axes no direction each; "
        "expected one that does, or a code of 0",
        path, has_sform ? "sform" : "qform");
  }
  v->oriented = true;
  v->order = *order;
  return OkStatus();
}

// Where the voxels start, which may be beyond the bytes; all of the volume but header and voxels.
StatusOr<size_t> ReadNiftiHeader(const std::string& path, std::span<const uint8_t> bytes, const FileOrder& otherwise,
                                 Volume* v) {
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
  v->order = otherwise;
  SY_RETURN_IF_ERROR(ReadOrientation(path, bytes, swapped, v));
  const auto extent = [&](size_t axis) { return dim[3 - v->order.axis[axis]]; };
  v->depth = extent(0), v->height = extent(1), v->width = extent(2);
  const int datatype = Load<int16_t>(&bytes[kDatatype], swapped);
  const auto* const row =
      std::find_if(kVoxelTypes.begin(), kVoxelTypes.end(), [&](const VoxelTypeRow& r) { return r.nifti == datatype; });
  if (row == kVoxelTypes.end()) {
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
  const auto* const row = std::find_if(kVoxelTypes.begin(), kVoxelTypes.end(), [&](const VoxelTypeRow& r) {
    return descr->substr(2, 3) == std::string(r.npy) + "'";
  });
  if (row == kVoxelTypes.end() || (*descr)[0] != '\'' || !absl::StrContains("<>|=", (*descr)[1])) {
    return InvalidArgument("{}: expected voxels u1, i1, u2, i2, u4, i4, f4 or f8, found {}", path,
                           Printable(std::string(descr->substr(0, descr->find(',')))));
  }
  v->stored = row->type;
  v->big_endian = (*descr)[1] == '>';
  if (absl::StartsWith(*order, "True")) v->order.axis = {2, 1, 0};
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

// A header of version 1, padded so that the voxels start at a multiple of 64 bytes.
std::vector<uint8_t> NpyHeader(const Volume& v) {
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': {}, 'shape': ({}, {}, {}), }}",
                                 RowOf(v.stored).bytes == 1 ? '|' : (v.big_endian ? '>' : '<'), RowOf(v.stored).npy,
                                 v.order.axis[0] == 2 ? "True" : "False", v.depth, v.height, v.width);
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

}  // namespace

StatusOr<size_t> ReadVolumeHeader(const std::string& path, std::span<const uint8_t> bytes, const FileOrder& otherwise,
                                  Volume* v) {
  constexpr std::array<uint8_t, 6> kNumpy = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  v->gzip = absl::EndsWithIgnoreCase(path, ".gz");
  v->nifti = bytes.size() < kNumpy.size() || !std::equal(kNumpy.begin(), kNumpy.end(), bytes.begin());
  return v->nifti ? ReadNiftiHeader(path, bytes, otherwise, v) : ReadNpyHeader(path, bytes, v);
}

void RewriteVolumeHeader(Volume* v) {
  if (!v->nifti) {
    v->header = NpyHeader(*v);
    return;
  }
  const bool swapped = Swapped(v->big_endian);
  const VoxelTypeRow& row = RowOf(v->stored);
  Store(static_cast<int16_t>(row.nifti), swapped, &v->header[kDatatype]);
  Store(static_cast<int16_t>(8 * row.bytes), swapped, &v->header[kBitpix]);
  Store(1.0f, swapped, &v->header[kSlope]);
  for (const size_t field : {kIntercept, kCalMax, kCalMin}) Store(0.0f, swapped, &v->header[field]);
}

}  // namespace switchyard
