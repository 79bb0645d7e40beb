// Fields of the JSON that programs of others keep beside weights, read with their types and ranges checked. A missing
// field and null stand for the default. Thread-safe: pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace switchyard::foreign_json {

inline constexpr int kMost = 1 << 20;  // of a whole number

// Null where the field is missing.
inline const nlohmann::json& At(const nlohmann::json& json, const char* field) {
  static const nlohmann::json& none = *new nlohmann::json();
  const auto found = json.find(field);
  return found == json.end() ? none : *found;
}

// "field: expected …, found …", of which a bounded part is shown.
Status Unexpected(const char* field, const std::string& expected, const nlohmann::json& found);

StatusOr<int> Positive(const nlohmann::json& json, const char* field, int otherwise);  // 1 to kMost
// A count of classes, 1 to kMost; 0, of a model without a classifier, counts as missing: the data say how many.
StatusOr<int> Classes(const nlohmann::json& json, const char* field, int otherwise);
// A side given as 224, [224, 224] or {"height": 224, "width": 224}.
StatusOr<int> Side(const nlohmann::json& json, const char* field, int otherwise);
StatusOr<bool> Flag(const nlohmann::json& json, const char* field, bool otherwise);

// The ratio of an MLP's width to a block's as `ratio` has it here, in a number from which Python's int(width * ratio)
// makes the same hidden widths, for each of the widths of blocks.
nlohmann::json RatioIn(float ratio, const std::vector<int>& widths);

// One number per channel, each with the fewest digits that are this float.
nlohmann::json Repeated(const std::vector<float>& numbers, int channels);

}  // namespace switchyard::foreign_json
