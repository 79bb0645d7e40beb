// The JSON header of a tensor file, read and checked. Private to tensor_file.h, which says what may stand in it. Errors
// are DataLoss with `path` or `where` and the field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/train/tensor_file.h"

namespace switchyard {

inline constexpr uint64_t kLargestTensorFileHeader = 100'000'000;  // bytes, as the format's own reader

StatusOr<nlohmann::json> ParseTensorFileHeader(const std::string& path, const std::string& text);

// What the header says of the tensor `name`. `where` names file and tensor.
StatusOr<TensorFile::Entry> ParseTensorFileEntry(const std::string& where, const std::string& name,
                                                 const nlohmann::json& value);

// shape × element bytes; false on a negative dimension or beyond 2^62.
bool PayloadBytes(const std::vector<int64_t>& shape, int64_t element_bytes, int64_t* bytes);

std::string Quoted(const std::string& name);  // 'name', as it may stand in a message

}  // namespace switchyard
