// A setting as its table knows it: what may stand in it, what it is for, whether it stays with a run, and who fills it
// when the user does not. Rows are made from typed fields (`Describe<int>("depth", ...)`), so that type, default and
// storage cannot differ. Values travel as JSON values of the row's type; a value that is not there is null, never a
// number or a text that stands for it. Plain data; thread-safe.
#pragma once

#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace switchyard {

// Where a value came from, the nearest to the user last: of two that say something, the nearer wins.
enum class Origin { kDefault, kDataset, kModel, kRecipe, kCheckpoint, kConfigFile, kEnvironment, kFlag };
std::string OriginName(Origin origin);  // "default", "config file", …
inline bool IsOfUser(Origin origin) { return origin >= Origin::kConfigFile; }

// Whether a setting stays with the run.
enum class SettingKind {
  kProperty,  // of the run: kept in its checkpoints, in force again where the run goes on or is evaluated
  kPlace,  // where and by which code it runs, where it reads and writes: the user's choice at each start. Never taken
           // from a checkpoint, which may come from anybody: some of these name libraries to load
  kAct,    // done once, at a start: loading weights, going on. Kept nowhere, so that nothing does it again
};

enum class ValueType { kSwitch, kWhole, kNumber, kText, kTexts };

struct Range {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool below_high = false;  // high itself is outside
};
constexpr Range AtLeast(double low) { return {.low = low}; }
constexpr Range Within(double low, double high) { return {.low = low, .high = high}; }
constexpr Range WithinBelow(double low, double high) { return {.low = low, .high = high, .below_high = true}; }

// What people write about a setting.
struct SettingTraits {
  std::string help;                                      // one line, without unit, choices and default
  std::string unit;                                      // "pixels", "ms", …
  std::vector<std::string> choices;                      // of a text, or of each item of a list; empty: any
  Status (*grammar)(const std::string& text) = nullptr;  // of a text that has one: InvalidArgument, what was expected
  Range range;                                           // of a number
  Origin by = Origin::kDefault;  // who fills it when the user does not: default, dataset, model or recipe
  SettingKind kind = SettingKind::kProperty;
  std::string formerly;       // the name that it had, under which files of before have it
  std::string yields_to;      // another setting that decides the same: this one is dropped where that comes from nearer
  std::string word;           // may stand in place of a number, or of a choice: "auto"
  std::string bare;           // of a flag typed without a value; the next argument is one only if it can be
  bool environment = true;    // read from SWITCHYARD_<NAME>
  bool architecture = false;  // of a model: weights fit only where it is equal
  bool names_code = false;    // a path in it is a library to load, or what one writes: no config file decides that
};

struct Setting : SettingTraits {
  std::string name;
  std::string group;  // heading of the help
  ValueType type = ValueType::kText;
  nlohmann::json standard;  // the default; null: absent
};

using SettingValues = std::map<std::string, nlohmann::json>;  // by name; what is absent is not there

inline constexpr char kPythonsNone[] = "None";  // what programs in Python print for a parameter that is not given

// As the user types it: "0.9", "1000,2000", "true"; "" for null.
std::string ValueText(const nlohmann::json& value);

// Null where the text is empty, or Python's None but for a text that is always there, as a folder's name.
// InvalidArgument says what was expected.
StatusOr<nlohmann::json> ValueFromText(const Setting& setting, const std::string& text);
// The same for a JSON value. exact: of the row's own JSON type, as the program writes it; else also a text that
// ValueFromText would take, and a text with commas for a list.
StatusOr<nlohmann::json> ValueFromJson(const Setting& setting, const nlohmann::json& value, bool exact);

// Choices, grammar and range; null is always fine. The message begins "--name: expected ..., found ...".
Status CheckValue(const Setting& setting, const nlohmann::json& value);

// ---- typed fields ----

// The double with the fewest digits that is this float: 0.9, not 0.8999999761581421.
double Plain(float value);

template <typename T>
struct StoredAs {  // std::optional<T> may be absent, T not
  using Type = T;
};
template <typename T>
struct StoredAs<std::optional<T>> {
  using Type = T;
};

template <typename T>
nlohmann::json JsonOf(const T& value) {
  return value;
}
inline nlohmann::json JsonOf(float value) { return Plain(value); }
template <typename T>
nlohmann::json JsonOf(const std::optional<T>& value) {
  return value ? JsonOf(*value) : nlohmann::json();
}

// False where T cannot hold the value. Null empties an optional, and leaves anything else as it is.
template <typename T>
bool ReadInto(const nlohmann::json& value, T* field) {
  return value.is_null() || FromJson(value, field);
}
template <typename T>
bool ReadInto(const nlohmann::json& value, std::optional<T>* field) {
  if (value.is_null()) {
    field->reset();
    return true;
  }
  T stored{};
  if (!FromJson(value, &stored)) return false;
  *field = std::move(stored);
  return true;
}

// The row of a field of type T (which may be an optional), whose default is `standard`.
template <typename T>
Setting Describe(const std::string& name, const std::string& group, SettingTraits traits, const T& standard) {
  using Stored = typename StoredAs<T>::Type;
  if constexpr (std::integral<Stored> && !std::is_same_v<Stored, bool>) {
    using Limits = std::numeric_limits<Stored>;
    traits.range.low = std::max(traits.range.low, static_cast<double>(Limits::min()));
    traits.range.high = std::min(traits.range.high, static_cast<double>(Limits::max()));
  } else if constexpr (std::is_same_v<Stored, float>) {
    if (traits.range.high > std::numeric_limits<float>::max() && traits.range.low >= 0)
      traits.range.high = std::numeric_limits<float>::max();
  }
  constexpr ValueType type = std::is_same_v<Stored, bool>          ? ValueType::kSwitch
                             : std::integral<Stored>               ? ValueType::kWhole
                             : std::floating_point<Stored>         ? ValueType::kNumber
                             : std::is_same_v<Stored, std::string> ? ValueType::kText
                                                                   : ValueType::kTexts;
  Setting setting;
  static_cast<SettingTraits&>(setting) = std::move(traits);
  setting.name = name;
  setting.group = group;
  setting.type = type;
  setting.standard = JsonOf(standard);
  return setting;
}

}  // namespace switchyard
