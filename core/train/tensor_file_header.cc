#include "core/train/tensor_file_header.h"

#include "core/base/text.h"

namespace switchyard {
namespace {

constexpr size_t kMostDimensions = 64;

}  // namespace

StatusOr<nlohmann::json> ParseTensorFileHeader(const std::string& path, const std::string& text) {
  JsonRules rules;
  rules.bytes = kLargestTensorFileHeader;
  rules.depth = 4;
  rules.unique_keys = true;
  auto header = ParseJson(text, rules);
  if (!header.ok()) {
    return DataLoss("{}: header: expected a JSON object, found {}; the file is damaged or not a safetensors file", path,
                    Message(header.status()));
  }
  if (!header->is_object()) return DataLoss("{}: header: expected a JSON object, found {}", path, header->type_name());
  return header;
}

StatusOr<TensorFile::Entry> ParseTensorFileEntry(const std::string& where, const std::string& name,
                                                 const nlohmann::json& value) {
  if (!value.is_object()) return DataLoss("{}: expected an object with dtype, shape, data_offsets", where);
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field)) return DataLoss("{}: the field {} is missing", where, field);
  }
  TensorFile::Entry entry;
  entry.name = name;
  const nlohmann::json& dtype = value["dtype"];
  if (!dtype.is_string()) return DataLoss("{}: dtype: expected text", where);
  entry.dtype = dtype.get<std::string>();
  const int64_t element_bytes = ElementBytes(entry.dtype);
  if (element_bytes == 0) return DataLoss("{}: dtype: {} is not one that can be read", where, Quoted(entry.dtype));
  if (!value["shape"].is_array() || value["shape"].size() > kMostDimensions) {
    return DataLoss("{}: shape: expected a list of at most {} numbers", where, kMostDimensions);
  }
  for (const nlohmann::json& dimension : value["shape"]) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > uint64_t{1} << 62) {
      return DataLoss("{}: shape: expected whole numbers from 0 up", where);
    }
    entry.shape.push_back(dimension.get<int64_t>());
  }
  const nlohmann::json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned() || offsets[0].get<uint64_t>() > offsets[1].get<uint64_t>() ||
      offsets[1].get<uint64_t>() > uint64_t{1} << 62) {
    return DataLoss("{}: data_offsets: expected [begin, end] with begin ≤ end", where);
  }
  entry.offset = offsets[0].get<int64_t>();
  entry.bytes = offsets[1].get<int64_t>() - entry.offset;
  int64_t expected = 0;
  if (!PayloadBytes(entry.shape, element_bytes, &expected)) {
    return DataLoss("{}: shape: {} is too large", where, ShapeText(entry.shape));
  }
  if (expected != entry.bytes) {
    return DataLoss("{}: data_offsets: {} bytes, expected {} for {} {}", where, entry.bytes, expected, entry.dtype,
                    ShapeText(entry.shape));
  }
  return entry;
}

bool PayloadBytes(const std::vector<int64_t>& shape, int64_t element_bytes, int64_t* bytes) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  *bytes = element_bytes;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return false;
    if (dimension == 0) empty = true;
    if (dimension > 0 && *bytes > kLimit / dimension) return false;
    if (dimension > 0) *bytes *= dimension;
  }
  if (empty) *bytes = 0;
  return true;
}

std::string Quoted(const std::string& name) { return "'" + Printable(name) + "'"; }

}  // namespace switchyard
