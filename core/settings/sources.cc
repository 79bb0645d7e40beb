#include "core/settings/sources.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "fmt/format.h"

extern char** environ;

namespace switchyard {
namespace {

constexpr size_t kLargestConfig = size_t{1} << 20;

std::string Capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// What a key of a file means: the setting of that name, or in a file of before the one that had it, which shows where
// another has it now and takes no such value. Null: none.
const Setting* RowFor(const SettingTable& table, const std::string& key, const nlohmann::json& value) {
  const Setting* const row = table.Find(key);
  const Setting* const renamed = table.FindRenamed(key);
  return renamed == nullptr || (row != nullptr && ValueFromJson(*row, value, /*exact=*/false).ok()) ? row : renamed;
}

// Whether a text, or one of a list, has a path: of a library, or of what an interposer writes.
bool HasPath(const nlohmann::json& value) {
  if (value.is_array()) return std::any_of(value.begin(), value.end(), HasPath);
  return value.is_string() && value.get<std::string>().find('/') != std::string::npos;
}

// The acts with which a run began: text alone, and yes or no.
StatusOr<SettingValues> ReadStartedFrom(const nlohmann::json& acts, const std::string& source,
                                        const SettingTable& table) {
  SettingValues values;
  if (!acts.is_object())
    return InvalidArgument("{}: {}: expected an object of settings, found {}", source, kStartedFrom, Excerpt(acts));
  for (const auto& [name, value] : acts.items()) {
    const Setting* const row = table.Find(name);
    if (row == nullptr || row->kind != SettingKind::kAct) {
      return InvalidArgument("{}: {}: expected what a run does once at its start, as pretrained, found {}", source,
                             kStartedFrom, Printable(name));
    }
    SY_ASSIGN_OR_RETURN(values[name], ValueFromJson(*row, value, /*exact=*/true));
  }
  return values;
}

// The settings that an object of a config file gives; `taken`: what the file has given before.
Status TakeKeys(const nlohmann::json& object, const std::string& source, Settings& settings, nlohmann::json& taken) {
  for (const auto& [key, value] : object.items()) {
    if (const Shorthand* const shorthand = settings.table().FindShorthand(key)) {
      if (value.is_object()) {
        SY_RETURN_IF_ERROR(TakeKeys(value, source + ": " + key, settings, taken));
      } else if (value.is_string()) {
        SY_RETURN_IF_ERROR(settings.GiveShorthand(*shorthand, value.get<std::string>(), Origin::kConfigFile,
                                                  fmt::format("{}: {}", source, key)));
      } else {
        return InvalidArgument("{}: {}: expected a text such as \"{}2\" or an object of settings, found {}", source,
                               key, shorthand->parts[0].setting, Excerpt(value));
      }
      continue;
    }
    if (taken.contains(key) && taken[key] != value)
      return InvalidArgument("{}: {} is given twice, as {} and {}; give it once", source, key, Excerpt(taken[key]),
                             Excerpt(value));
    taken[key] = value;
    const Setting* const row = RowFor(settings.table(), key, value);
    const Alias* const alias = row == nullptr ? settings.table().FindAlias(key) : nullptr;
    if (row == nullptr && alias == nullptr) {
      return InvalidArgument("{}: unknown setting {}{}", source, Printable(key),
                             DidYouMean(Printable(key), settings.table().Names()));
    }
    if (value.is_object()) return InvalidArgument("{}: {} is no value for the setting {}", source, Excerpt(value), key);
    const std::string text = ValueText(value);  // of null nothing, which takes back what farther sources say
    if (alias != nullptr) {
      SY_RETURN_IF_ERROR(
          settings.GiveAlias(*alias, text, Origin::kConfigFile, fmt::format("{}: {}={}", source, key, text)));
      continue;
    }
    // Text, and what a word of another program may stand for.
    if (value.is_null() || value.is_string() ||
        (!value.is_array() && settings.table().WordsFor(row->name) != nullptr)) {
      SY_RETURN_IF_ERROR(settings.GiveText(row->name, text, Origin::kConfigFile, source));
      continue;
    }
    auto stored = ValueFromJson(*row, value, /*exact=*/false);
    if (!stored.ok()) return Annotate(stored.status(), source);
    SY_RETURN_IF_ERROR(settings.Give(row->name, std::move(*stored), Origin::kConfigFile, source));
  }
  return OkStatus();
}

}  // namespace

std::string VariableOf(const std::string& setting) { return Capitals("SWITCHYARD_" + setting); }

Status TakeEnvironment(Settings& settings) {
  for (const Setting& row : settings.table().rows()) {
    if (!row.environment) continue;
    const std::string variable = VariableOf(row.name);
    if (const auto text = Environment(variable))
      SY_RETURN_IF_ERROR(settings.GiveText(row.name, *text, Origin::kEnvironment, variable));
  }
  for (const Alias& alias : settings.table().aliases()) {
    if (alias.name == alias.setting) continue;  // words for its values, which its row has read
    const std::string variable = VariableOf(alias);
    if (const auto text = Environment(variable))
      SY_RETURN_IF_ERROR(settings.GiveAlias(alias, *text, Origin::kEnvironment, variable + "=" + *text));
  }
  for (const Shorthand& shorthand : settings.table().shorthands()) {
    const std::string variable = VariableOf(shorthand.name);
    if (const auto text = Environment(variable))
      SY_RETURN_IF_ERROR(settings.GiveShorthand(shorthand, *text, Origin::kEnvironment, variable + "=" + *text));
  }
  return OkStatus();
}

std::vector<std::string> MistypedVariables(const SettingTable& table) {
  std::vector<std::string> known, found;
  for (const Setting& row : table.rows()) {
    if (row.environment) known.push_back(VariableOf(row.name));
  }
  for (const Alias& alias : table.aliases()) known.push_back(VariableOf(alias));
  for (const Shorthand& shorthand : table.shorthands()) known.push_back(VariableOf(shorthand.name));
  // What names of variables begin with, up to the first _: SWITCHYARD_, AIAK_.
  std::set<std::string> prefixes;
  for (const std::string& name : known) prefixes.insert(name.substr(0, name.find('_') + 1));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    const std::string prefix = name.substr(0, name.find('_') + 1);
    if (prefixes.count(prefix) == 0 || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string capitals = Capitals(name), nearest = Nearest(capitals, known);
    if (const size_t typed = name.size() - prefix.size();
        !nearest.empty() && EditDistance(capitals, nearest) <= std::max<size_t>(1, typed / 4))
      found.push_back(fmt::format("{} is no setting and changes nothing (did you mean {}?)", Printable(name), nearest));
  }
  return found;
}

Status TakeConfigFile(const std::string& path, Settings& settings) {
  const std::string source = "--config=" + path;
  const auto text = ReadWholeFile(path, kLargestConfig);
  if (!text.ok()) {
    return NotFound(
        "{}: cannot read this file; it should hold a JSON object of settings, as a run's config.json does ({})", source,
        Message(text.status()));
  }
  JsonRules rules;
  rules.comments = rules.unique_keys = true;
  const auto json = ParseJson(*text, rules);
  if (!json.ok()) return Annotate(json.status(), source);
  if (!json->is_object())
    return InvalidArgument("{}: expected a JSON object of settings, found {}", source, json->type_name());
  nlohmann::json given = *json, taken;
  if (const auto acts = given.find(kStartedFrom); acts != given.end()) {
    SY_ASSIGN_OR_RETURN(SettingValues values, ReadStartedFrom(*acts, source, settings.table()));
    settings.SetStartedFrom(std::move(values));
    given.erase(acts);
  }
  SY_RETURN_IF_ERROR(TakeKeys(given, source, settings, taken));
  for (const Setting& row : settings.table().rows()) {
    if (row.names_code && settings.OriginOf(row.name) == Origin::kConfigFile && HasPath(settings.Value(row.name)))
      return InvalidArgument(
          "{}: {} is {}, with a path: what library is loaded, or what an interposer writes, is not for a file that may "
          "come from anybody; give it by --{} or {}",
          source, row.name, Excerpt(settings.Value(row.name)), row.name, VariableOf(row.name));
  }
  return OkStatus();
}

Status TakeSaved(const nlohmann::json& json, const std::string& source, Settings& settings) {
  if (!json.is_object()) return InvalidArgument("expected a JSON object of settings, found {}", json.type_name());
  for (const auto& [key, value] : json.items()) {
    const Setting* const row = RowFor(settings.table(), key, value);
    if (row != nullptr && row->kind != SettingKind::kProperty) continue;
    nlohmann::json stored;
    if (row != nullptr) {
      SY_ASSIGN_OR_RETURN(stored, ValueFromJson(*row, value, /*exact=*/true));
    }
    SY_RETURN_IF_ERROR(settings.Give(row != nullptr ? row->name : key, std::move(stored), Origin::kCheckpoint, source));
  }
  return OkStatus();
}

}  // namespace switchyard
