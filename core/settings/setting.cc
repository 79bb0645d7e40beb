#include "core/settings/setting.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/base/names.h"
#include "core/base/text.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

const char* Words(ValueType type) {
  switch (type) {
    case ValueType::kSwitch:
      return "true or false";
    case ValueType::kWhole:
      return "a whole number";
    case ValueType::kNumber:
      return "a number";
    case ValueType::kText:
      return "a text";
    case ValueType::kTexts:
      return "words separated by commas";
  }
  return "";
}

// "sgd, adam or adamw"
std::string Listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

// Null for an empty text or list.
Json UnlessEmpty(const Json& value) {
  const bool empty =
      (value.is_string() && value.get_ref<const std::string&>().empty()) || (value.is_array() && value.empty());
  return empty ? Json() : value;
}

Json NumberFromText(ValueType type, const std::string& text) {
  if (type == ValueType::kNumber) {
    double number = 0;
    return absl::SimpleAtod(text, &number) ? Json(number) : Json();
  }
  int64_t whole = 0;
  uint64_t large = 0;
  const size_t point = text.find('.');  // 3.0, as other programs write it
  const bool is_whole = point == std::string::npos || text.find_first_not_of('0', point + 1) == std::string::npos;
  const std::string digits = is_whole ? text.substr(0, point) : text;
  if (absl::SimpleAtoi(digits, &whole)) return whole;
  return absl::SimpleAtoi(digits, &large) ? Json(large) : Json();
}

Status CheckChoice(const Setting& setting, const std::string& word) {
  const std::vector<std::string>& choices = setting.choices;
  if (std::find(choices.begin(), choices.end(), word) != choices.end()) return OkStatus();
  std::vector<std::string> shown = choices;
  if (setting.type == ValueType::kTexts && shown.size() == 2) shown = {shown[0], shown[1], "both"};
  return InvalidArgument("--{}: expected {}, found {}{}", setting.name, Listed(shown), Printable(word),
                         DidYouMean(Printable(word), choices));
}

}  // namespace

std::string OriginName(Origin origin) {
  switch (origin) {
    case Origin::kDefault:
      return "default";
    case Origin::kDataset:
      return "dataset";
    case Origin::kModel:
      return "model";
    case Origin::kRecipe:
      return "recipe";
    case Origin::kCheckpoint:
      return "checkpoint";
    case Origin::kConfigFile:
      return "config file";
    case Origin::kEnvironment:
      return "environment";
    case Origin::kFlag:
      return "flag";
  }
  return "";
}

double Plain(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

std::string ValueText(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ",") + ValueText(item);
  return text;
}

StatusOr<Json> ValueFromText(const Setting& setting, const std::string& text) {
  const bool needed_text = setting.type == ValueType::kText && setting.choices.empty() && !setting.standard.is_null();
  if (text.empty() || (text == kPythonsNone && !needed_text)) return Json();
  if (text == setting.word) return Json(text);
  Json value;
  switch (setting.type) {
    case ValueType::kText:
      return Json(text);
    case ValueType::kTexts:
      return Json(std::vector<std::string>(absl::StrSplit(text, ',')));
    case ValueType::kSwitch:
      if (bool on = false; absl::SimpleAtob(text, &on)) value = on;
      break;
    case ValueType::kWhole:
    case ValueType::kNumber:
      value = NumberFromText(setting.type, text);
  }
  if (value.is_null()) {
    return InvalidArgument("\"{}\" is not a value for --{}: expected {}{}", Printable(text), setting.name,
                           Words(setting.type), setting.word.empty() ? "" : " or " + setting.word);
  }
  return value;
}

StatusOr<Json> ValueFromJson(const Setting& setting, const Json& value, bool exact) {
  const bool number = setting.type == ValueType::kWhole ? value.is_number_integer() : value.is_number();
  bool fits = false;
  switch (setting.type) {
    case ValueType::kSwitch:
      fits = value.is_boolean();
      break;
    case ValueType::kWhole:
    case ValueType::kNumber:
      fits = number;
      break;
    case ValueType::kText:
      fits = value.is_string();
      break;
    case ValueType::kTexts:
      fits = value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
  }
  if (fits) return UnlessEmpty(value);
  if (!exact && !value.is_object() && !value.is_null()) return ValueFromText(setting, ValueText(value));
  // What JSON has no number for is written as a text: inf.
  if (value.is_string() && setting.type == ValueType::kNumber && value == "inf") return Json(HUGE_VAL);
  return InvalidArgument("setting {}: {} has the wrong type or is out of range ({})", setting.name, Excerpt(value),
                         value.type_name());
}

Status CheckValue(const Setting& setting, const Json& value) {
  if (value.is_string() && value != setting.word && !setting.choices.empty())
    return CheckChoice(setting, value.get<std::string>());
  if (value.is_string() && setting.grammar != nullptr)
    return Annotate(setting.grammar(value.get<std::string>()), "--" + setting.name);
  if (value.is_array() && !setting.choices.empty()) {
    for (const Json& word : value) SY_RETURN_IF_ERROR(CheckChoice(setting, word.get<std::string>()));
  }
  if (!value.is_number()) return OkStatus();
  const double number = value.get<double>();
  const Range& range = setting.range;
  const bool too_high = range.below_high ? number >= range.high : number > range.high;
  if (number >= range.low && !too_high) return OkStatus();
  const std::string limit = range.below_high ? fmt::format("at least {} and below {}", range.low, range.high)
                            : too_high       ? fmt::format("at most {}", range.high)
                                             : fmt::format("at least {}", range.low);
  return InvalidArgument("--{}: expected {}, found {}", setting.name, limit, ValueText(value));
}

}  // namespace switchyard
