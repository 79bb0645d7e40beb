#include "models/foreign_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/base/logging.h"

namespace switchyard::foreign_json {

using Json = nlohmann::json;

Status Unexpected(const char* field, const std::string& expected, const Json& found) {
  const std::string shown = found.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return InvalidArgument("{}: expected {}, found {}", field, expected, shown.substr(0, 120));
}

StatusOr<int> Positive(const Json& json, const char* field, int otherwise) {
  const Json& value = At(json, field);
  if (value.is_null()) return otherwise;
  if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMost)
    return Unexpected(field, fmt::format("a whole number from 1 to {}", kMost), value);
  return value.get<int>();
}

StatusOr<int> Classes(const Json& json, const char* field, int otherwise) {
  return At(json, field) == 0 ? otherwise : Positive(json, field, otherwise);
}

StatusOr<bool> Flag(const Json& json, const char* field, bool otherwise) {
  const Json& value = At(json, field);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return Unexpected(field, "true or false", value);
  return value.get<bool>();
}

StatusOr<int> Side(const Json& json, const char* field, int otherwise) {
  const Json& value = At(json, field);
  const Json *height = &value, *width = &value;
  if (value.is_array() && value.size() == 2) {
    height = &value[0], width = &value[1];
  } else if (value.is_object()) {
    height = &At(value, "height"), width = &At(value, "width");
  } else if (value.is_null()) {
    return otherwise;
  }
  if (*height != *width || !height->is_number_integer() || height->get<int64_t>() < 1 || height->get<int64_t>() > kMost)
    return Unexpected(field, "the side of a square in pixels", value);
  return height->get<int>();
}

Json RatioIn(float ratio, const std::vector<int>& widths) {
  const auto is_same = [&](double r) {
    return std::all_of(widths.begin(), widths.end(), [&](int width) {
      return static_cast<int64_t>(width * r) == static_cast<int64_t>(ratio * static_cast<float>(width));
    });
  };
  const double plain = std::strtod(fmt::format("{}", ratio).c_str(), nullptr);  // as it was typed
  if (is_same(plain)) return plain;
  // Where the widest is at its number, the others, which are parts of it, are nearly always at theirs.
  const int widest = *std::max_element(widths.begin(), widths.end());
  const auto hidden = static_cast<int64_t>(ratio * static_cast<float>(widest));
  double r = static_cast<double>(hidden) / widest;
  while (static_cast<int64_t>(widest * r) < hidden) r = std::nextafter(r, std::numeric_limits<double>::infinity());
  if (!is_same(r)) LogWarning("mlp_ratio {}: others round the widths of MLPs otherwise than here", ratio);
  return r;
}

Json Repeated(const std::vector<float>& numbers, int channels) {
  Json list = Json::array();
  for (int c = 0; c < channels; ++c) {
    const float number = numbers[numbers.size() == 1 ? 0 : static_cast<size_t>(c)];
    list.push_back(std::strtod(fmt::format("{}", number).c_str(), nullptr));
  }
  return list;
}

}  // namespace switchyard::foreign_json
