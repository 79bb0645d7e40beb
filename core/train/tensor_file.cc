#include "core/train/tensor_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/json.h"
#include "core/train/tensor_file_header.h"

namespace switchyard {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors payloads are little-endian");

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps what it writes in order, but looks keys up one by one

constexpr int64_t kLengthBytes = 8;
// A header of ours starts with this text and eight hexadecimal digits, which count as zeros in the checksum itself.
constexpr char kHeaderStart[] = R"({"__metadata__":{"header_crc32":")";
constexpr size_t kHeaderStartBytes = sizeof kHeaderStart - 1;
constexpr char kNoChecksum[] = "00000000";
constexpr char kTensorChecksum[] = "crc32:";
constexpr char kWriter[] = "writer";
constexpr char kWriterName[] = "switchyard";

uint32_t HeaderChecksum(const char length[kLengthBytes], std::string header) {
  header.replace(kHeaderStartBytes, 8, kNoChecksum);
  return Crc32(header.data(), header.size(), Crc32(length, kLengthBytes));
}

Status PreadAll(int descriptor, const std::string& path, int64_t offset, void* destination, int64_t bytes) {
  char* at = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor, at, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 30)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path, errno);
    if (got == 0) return DataLoss("{}: truncated at byte {}, {} more were expected", path, offset, bytes);
    at += got;
    offset += got;
    bytes -= got;
  }
  return OkStatus();
}

}  // namespace

int64_t ElementBytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return 0;
}

StatusOr<TensorFileSummary> WriteTensorFile(const Folder& folder, const std::string& name,
                                            const std::vector<NamedTensor>& tensors,
                                            const std::map<std::string, std::string>& metadata) {
  const std::string path = folder.PathOf(name);
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ElementBytes(tensors[a].dtype) > ElementBytes(tensors[b].dtype); });

  OrderedJson about = {{"header_crc32", kNoChecksum}, {"format", "pt"}, {kWriter, kWriterName}};
  for (const auto& [key, value] : metadata) about[key] = value;
  const size_t first_checksum = about.size();
  OrderedJson header = {{"__metadata__", OrderedJson::object()}};
  std::vector<uint32_t> checksums(tensors.size(), 0);
  Pieces pieces;
  int64_t offset = 0;
  for (const size_t i : order) {
    const NamedTensor& tensor = tensors[i];
    const int64_t element_bytes = ElementBytes(tensor.dtype);
    int64_t bytes = 0;
    if (element_bytes == 0) {
      return InvalidArgument("{}: tensor {}: unknown dtype '{}'", path, Quoted(tensor.name), tensor.dtype);
    }
    if (!PayloadBytes(tensor.shape, element_bytes, &bytes)) {
      return InvalidArgument("{}: tensor {}: the shape {} cannot be", path, Quoted(tensor.name),
                             ShapeText(tensor.shape));
    }
    if (bytes > 0 && tensor.data == nullptr && !tensor.read)
      return InvalidArgument("{}: tensor {}: no data given", path, Quoted(tensor.name));
    if (header.contains(tensor.name)) {
      return InvalidArgument("{}: tensor {} is given twice", path, Quoted(tensor.name));
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    about[kTensorChecksum + tensor.name] = kNoChecksum;
    const auto read = [&tensor, &checksum = checksums[i]](size_t begin, std::span<std::byte> to) -> Status {
      if (tensor.read) SY_RETURN_IF_ERROR(tensor.read(begin, to));
      if (!tensor.read) std::memcpy(to.data(), static_cast<const std::byte*>(tensor.data) + begin, to.size());
      checksum = Crc32(to.data(), to.size(), checksum);
      return OkStatus();
    };
    pieces.pieces.push_back({static_cast<size_t>(bytes), read});
    offset += bytes;
  }
  const auto text_of_header = [&] {
    auto& entries = about.get_ref<OrderedJson::object_t&>();  // by place: names would be looked up one by one
    for (size_t i = 0; i < order.size(); ++i)
      (entries.begin() + static_cast<ptrdiff_t>(first_checksum + i))->second =
          fmt::format("{:08x}", checksums[order[i]]);
    header["__metadata__"] = about;
    std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    text.append((8 - text.size() % 8) % 8, ' ');  // the payload starts on a multiple of 8
    return text;
  };
  const uint64_t length = text_of_header().size();  // whatever the checksums will be
  if (length > kLargestTensorFileHeader) return InvalidArgument("{}: a header of {} bytes is too large", path, length);
  TensorFileSummary summary;
  summary.bytes = kLengthBytes + static_cast<int64_t>(length) + offset;
  pieces.head_bytes = kLengthBytes + length;
  pieces.head = [&] {
    std::string length_bytes(kLengthBytes, '\0'), text = text_of_header();
    std::memcpy(length_bytes.data(), &length, kLengthBytes);
    summary.header_crc32 = HeaderChecksum(length_bytes.data(), text);
    text.replace(kHeaderStartBytes, 8, fmt::format("{:08x}", summary.header_crc32));
    return length_bytes + text;
  };
  SY_RETURN_IF_ERROR(folder.Write(name, pieces));
  return summary;
}

StatusOr<TensorFileSummary> WriteTensorFile(const std::string& path, const std::vector<NamedTensor>& tensors,
                                            const std::map<std::string, std::string>& metadata) {
  SY_ASSIGN_OR_RETURN(const PlaceInFolder place, MakePlace(path));
  return WriteTensorFile(place.folder, place.name, tensors, metadata);
}

StatusOr<TensorFile> TensorFile::Open(const std::string& path) {
  TensorFile file;
  file.path_ = path;
  SY_ASSIGN_OR_RETURN(file.file_, OpenRegularFile(path));
  SY_RETURN_IF_ERROR(file.ReadHeader());
  return file;
}

Status TensorFile::ReadHeader() {
  SY_ASSIGN_OR_RETURN(const size_t file_bytes, FileBytes(file_, path_));
  summary_.bytes = static_cast<int64_t>(file_bytes);
  if (summary_.bytes < kLengthBytes) {
    return DataLoss("{}: truncated: {} bytes, a safetensors file has at least 8", path_, summary_.bytes);
  }
  char length_bytes[kLengthBytes];
  SY_RETURN_IF_ERROR(PreadAll(file_.get(), path_, 0, length_bytes, kLengthBytes));
  uint64_t length = 0;
  std::memcpy(&length, length_bytes, kLengthBytes);
  if (length > kLargestTensorFileHeader) {
    return DataLoss("{}: header length: {} bytes, expected at most {}; not a safetensors file, or damaged", path_,
                    length, kLargestTensorFileHeader);
  }
  if (length > static_cast<uint64_t>(summary_.bytes - kLengthBytes)) {
    return DataLoss("{}: header length: {} bytes, but the file ends after {}: truncated or damaged", path_, length,
                    summary_.bytes - kLengthBytes);
  }
  std::string text(length, '\0');
  SY_RETURN_IF_ERROR(PreadAll(file_.get(), path_, kLengthBytes, text.data(), static_cast<int64_t>(length)));
  payload_ = kLengthBytes + static_cast<int64_t>(length);

  const bool checked = text.size() >= kHeaderStartBytes + 8 && text.compare(0, kHeaderStartBytes, kHeaderStart) == 0;
  if (checked) {
    summary_.header_crc32 = HeaderChecksum(length_bytes, text);
    const std::string found = text.substr(kHeaderStartBytes, 8);
    const std::string expected = fmt::format("{:08x}", summary_.header_crc32);
    if (found != expected) {
      return DataLoss("{}: header_crc32: the header has {}, it records {}: the file is damaged", path_, expected,
                      Printable(found));
    }
  } else {
    summary_.header_crc32 = Crc32(text.data(), text.size(), Crc32(length_bytes, kLengthBytes));
  }

  SY_ASSIGN_OR_RETURN(const Json header, ParseTensorFileHeader(path_, text));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return DataLoss("{}: __metadata__: expected an object of texts", path_);
      for (const auto& [key, item] : value.items()) {
        if (!item.is_string()) return DataLoss("{}: __metadata__: {}: expected text", path_, Quoted(key));
        metadata_[key] = item.get<std::string>();
      }
      continue;
    }
    SY_ASSIGN_OR_RETURN(Entry entry,
                        ParseTensorFileEntry(fmt::format("{}: tensor {}", path_, Quoted(name)), name, value));
    entries_.push_back(std::move(entry));
  }
  const auto writer = metadata_.find(kWriter);
  const auto sum = metadata_.lower_bound(kTensorChecksum);
  const bool ours = (writer != metadata_.end() && writer->second == kWriterName) ||
                    (sum != metadata_.end() && sum->first.compare(0, sizeof kTensorChecksum - 1, kTensorChecksum) == 0);
  if (ours && !checked)
    return DataLoss(
        "{}: header_crc32: missing from the beginning of a file of ours: it is damaged, or another program has "
        "written it anew with our metadata; let that leave the metadata out",
        path_);

  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].offset != end) {
      return DataLoss("{}: tensor {}: data_offsets: begins at byte {}, expected {}: {}", path_,
                      Quoted(entries_[i].name), entries_[i].offset, end,
                      entries_[i].offset < end ? "it overlaps another" : "a gap before it");
    }
    end += entries_[i].bytes;
    index_[entries_[i].name] = i;
  }
  if (end != summary_.bytes - payload_) {
    return DataLoss("{}: payload: {} bytes, but the header describes {}: truncated or damaged", path_,
                    summary_.bytes - payload_, end);
  }
  return OkStatus();
}

const TensorFile::Entry* TensorFile::Find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

Status TensorFile::Read(const Entry& entry, void* destination) const {
  SY_RETURN_IF_ERROR(PreadAll(file_.get(), path_, payload_ + entry.offset, destination, entry.bytes));
  const auto recorded = metadata_.find(kTensorChecksum + entry.name);
  if (recorded == metadata_.end()) return OkStatus();
  const std::string found = fmt::format("{:08x}", Crc32(destination, static_cast<size_t>(entry.bytes)));
  if (found != recorded->second) {
    return DataLoss("{}: tensor {}: the payload has checksum {}, the header records {}: the file is damaged", path_,
                    Quoted(entry.name), found, Printable(recorded->second));
  }
  return OkStatus();
}

}  // namespace switchyard
