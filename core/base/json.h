// JSON from outside: configs, checkpoints, logs, manifests. Parsing is bounded in size and depth (what is nested a
// million times parses, and then overflows the stack where it is copied, printed or compared), and fields are read with
// their type and range checked. No function here throws but for memory. Errors name no file: the caller adds it.
// Thread-safe: pure functions.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct JsonRules {
  size_t bytes = size_t{16} << 20;  // the text's; a value in memory takes up to twenty times its text
  int depth = 64;                   // of arrays and objects in each other
  bool comments = false;            // // and /* */ are passed over
  bool unique_keys = false;         // a key twice in one object is an error
};

// InvalidArgument with what was found and, where it is no JSON, the line.
Status CheckJson(std::string_view text, const JsonRules& rules = {});

// Json is nlohmann::json, or nlohmann::ordered_json, whose objects of n keys take n² time: bound their text.
template <typename Json = nlohmann::json>
StatusOr<Json> ParseJson(std::string_view text, const JsonRules& rules = {}) {
  SY_RETURN_IF_ERROR(CheckJson(text, rules));
  return Json::parse(text, nullptr, /*allow_exceptions=*/false, rules.comments);
}

// The value as a message may show it.
template <typename Json>
std::string Excerpt(const Json& value) {
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The value as a T: bool, a number that T can hold, text, or a list of texts. False, and *result as it was, where it is
// something else.
template <typename Json, typename T>
bool FromJson(const Json& value, T* result) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return false;
    *result = value.template get<bool>();
  } else if constexpr (std::integral<T>) {
    if (!value.is_number_integer()) return false;
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.template get<uint64_t>())
                                                 : std::in_range<T>(value.template get<int64_t>());
    if (!fits) return false;
    *result = value.template get<T>();
  } else if constexpr (std::floating_point<T>) {
    if (!value.is_number()) return false;
    *result = static_cast<T>(value.template get<double>());
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) return false;
    *result = value.template get<std::string>();
  } else {
    static_assert(std::is_same_v<T, std::vector<std::string>>, "no way to read this type");
    if (!value.is_array()) return false;
    T texts(value.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!FromJson(value[i], &texts[i])) return false;
    }
    *result = std::move(texts);
  }
  return true;
}

// The member `key` of an object into *result, which stays as it was where there is none.
template <typename Json, typename T>
Status ReadField(const Json& object, const char* key, T* result) {
  if (!object.is_object()) return InvalidArgument("expected a JSON object, found {}", object.type_name());
  const auto found = object.find(key);
  if (found == object.end() || FromJson(*found, result)) return OkStatus();
  const char* expected = std::is_same_v<T, bool>          ? "true or false"
                         : std::is_integral_v<T>          ? "a whole number in range"
                         : std::is_floating_point_v<T>    ? "a number"
                         : std::is_same_v<T, std::string> ? "text"
                                                          : "a list of texts";
  return InvalidArgument("{}: expected {}, found {}", key, expected, Excerpt(*found));
}

}  // namespace switchyard

// Compiled once, in json.cc, instead of in each source that reads or writes JSON.
namespace nlohmann {
extern template class basic_json<>;
extern template class basic_json<ordered_map>;
}  // namespace nlohmann
