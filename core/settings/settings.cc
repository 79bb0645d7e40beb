#include "core/settings/settings.h"

#include <algorithm>

#include "core/base/names.h"
#include "core/base/text.h"

namespace switchyard {
namespace {

const nlohmann::json kAbsent;
const std::string kNoSource;

Status UnknownSetting(const std::string& name, const SettingTable& table) {
  return InvalidArgument("unknown setting {}{}", Printable(name), DidYouMean(Printable(name), table.Names()));
}

// Of all texts that a setting has, a path is the longest: PATH_MAX.
constexpr size_t kLongestValue = 4096;

Status CheckLength(const std::string& name, size_t bytes, const std::string& source) {
  if (bytes <= kLongestValue) return OkStatus();
  return InvalidArgument("--{}: expected a value of at most {} bytes, found one of {} (given by {})", name,
                         kLongestValue, bytes, Printable(source));
}

size_t TextBytes(const nlohmann::json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  size_t bytes = 0;
  if (value.is_array()) {
    for (const nlohmann::json& item : value) bytes += TextBytes(item) + 1;
  }
  return bytes;
}

// What says nothing against another value of the same source: an alias that takes back or says no, and a bare flag that
// leaves the choice open, as --amp does beside --opt_level=O2.
bool GivesWay(const Setting& row, const Alias* by, const nlohmann::json& value) {
  if (by != nullptr && (value.is_null() || (!by->off.empty() && ValueText(value) == by->off))) return true;
  return !row.bare.empty() && row.bare == row.word && value == row.word;
}

// Where a value was said, with its key where that is a config file.
std::string Said(const std::string& source, Origin origin, const std::string& name, const nlohmann::json& value) {
  if (origin != Origin::kConfigFile || source.find(": ") != std::string::npos) return source;
  return fmt::format("{}: {}={}", source, name, ValueText(value));
}

}  // namespace

SettingTable::SettingTable(std::vector<Setting> rows, std::vector<Alias> aliases, std::vector<Shorthand> shorthands)
    : rows_(std::move(rows)), aliases_(std::move(aliases)), shorthands_(std::move(shorthands)) {
  for (size_t i = 0; i < rows_.size(); ++i) by_name_[rows_[i].name] = i;
  for (size_t i = 0; i < aliases_.size(); ++i) alias_by_key_[AliasKey(aliases_[i].name)] = i;
}

const Setting* SettingTable::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &rows_[found->second];
}

const Setting* SettingTable::FindRenamed(const std::string& name) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Setting& row) { return row.formerly == name; });
  return found == rows_.end() || name.empty() ? nullptr : &*found;
}

const Alias* SettingTable::FindAlias(const std::string& name) const {
  const auto found = alias_by_key_.find(AliasKey(name));
  return found == alias_by_key_.end() ? nullptr : &aliases_[found->second];
}

const Alias* SettingTable::WordsFor(const std::string& setting) const {
  const Alias* const alias = FindAlias(setting);
  return alias != nullptr && alias->setting == setting ? alias : nullptr;
}

const Shorthand* SettingTable::FindShorthand(const std::string& name) const {
  const auto found = std::find_if(shorthands_.begin(), shorthands_.end(),
                                  [&](const Shorthand& shorthand) { return shorthand.name == name; });
  return found == shorthands_.end() ? nullptr : &*found;
}

std::vector<std::string> SettingTable::Names() const {
  std::vector<std::string> names;
  for (const Setting& row : rows_) names.push_back(row.name);
  return names;
}

Status Settings::GiveText(const std::string& name, const std::string& text, Origin origin, const std::string& source) {
  const Setting* row = table_->Find(name);
  if (row == nullptr) return UnknownSetting(name, *table_);
  SY_RETURN_IF_ERROR(CheckLength(name, text.size(), source));
  // A word of another program for one of our values.
  if (const Alias* const words = table_->WordsFor(name)) {
    const auto ours = Translate(*words, text);
    if (ours.ok() && *ours != text)
      return GiveAlias(*words, text, origin, source.find('=') == std::string::npos ? source + "=" + text : source);
  }
  auto value = ValueFromText(*row, text);
  if (!value.ok()) return Annotate(value.status(), source);
  return Give(name, std::move(*value), origin, source);
}

Status Settings::Give(const std::string& name, nlohmann::json value, Origin origin, const std::string& source) {
  const Setting* row = table_->Find(name);
  if (row == nullptr) return UnknownSetting(name, *table_);
  SY_RETURN_IF_ERROR(CheckLength(name, TextBytes(value), source));
  if (const Status status = CheckValue(*row, value); !status.ok())
    return InvalidArgument("{} (given by {})", Message(status), source);
  const Entry* there = Find(name);
  if (there != nullptr && there->origin == origin && there->alias != nullptr && there->value != value) {
    if (GivesWay(*row, nullptr, value)) return OkStatus();
    if (!GivesWay(*row, there->alias, there->value))
      return InvalidArgument("{} and {} both set --{}; give one of them", there->source,
                             Said(source, origin, name, value), name);
  }
  if (there == nullptr || there->origin <= origin) entries_[name] = {std::move(value), origin, source};
  return OkStatus();
}

Status Settings::GiveAlias(const Alias& alias, const std::string& text, Origin origin, const std::string& source) {
  SY_RETURN_IF_ERROR(CheckLength(alias.name, text.size(), source));
  auto ours = Translate(alias, text);
  if (!ours.ok()) return Annotate(ours.status(), source);
  if (alias.setting.empty()) {
    if (!text.empty()) always_so_[fmt::format("{} ({})", source, alias.of)] = alias.always;
    return OkStatus();
  }
  const Setting* row = table_->Find(alias.setting);
  if (row == nullptr) return UnknownSetting(alias.setting, *table_);
  // In its words a value may be another program's: --opt=hybrid_adam.
  if (const Alias* const words = table_->WordsFor(alias.setting); words != nullptr && words != &alias) {
    if (auto translated = Translate(*words, *ours); translated.ok()) ours = std::move(translated);
  }
  auto value = ValueFromText(*row, *ours);
  if (!value.ok()) return Annotate(value.status(), source);
  const Entry* there = Find(alias.setting);
  const bool same = there != nullptr && there->origin == origin && there->value == *value;
  if (!same && there != nullptr && there->origin == origin) {
    if (GivesWay(*row, &alias, *value)) return OkStatus();
    if (!GivesWay(*row, there->alias, there->value))
      return InvalidArgument("{} and {} both set --{}; give one of them",
                             Said(there->source, origin, alias.setting, there->value), source, alias.setting);
    entries_.erase(alias.setting);
  }
  if (const auto said = alias.beside.find(text); said != alias.beside.end()) {
    for (const auto& [name, word] : said->second) {
      SY_ASSIGN_OR_RETURN(nlohmann::json other, ValueFromText(*table_->Find(name), word));
      for (const Beside& earlier : beside_) {
        if (earlier.name == name && earlier.of == alias.setting && earlier.value == *value &&
            earlier.entry.origin == origin && earlier.entry.value != other)
          return InvalidArgument("{} and {} both set --{}; give one of them", earlier.entry.source, source, name);
      }
      beside_.push_back({name, {std::move(other), origin, source, &alias}, alias.setting, *value});
    }
  }
  if (same) return OkStatus();
  SY_RETURN_IF_ERROR(Give(alias.setting, std::move(*value), origin, source));
  Entry& entry = entries_[alias.setting];
  if (entry.origin == origin) entry.alias = &alias;
  return OkStatus();
}

Status Settings::GiveShorthand(const Shorthand& shorthand, const std::string& text, Origin origin,
                               const std::string& source) {
  SY_RETURN_IF_ERROR(CheckLength(shorthand.name, text.size(), source));
  auto parts = PartsOf(shorthand, text);
  if (!parts.ok()) return Annotate(parts.status(), source);
  for (const auto& [part, value] : *parts) SY_RETURN_IF_ERROR(GiveAlias(*part, value, origin, source));
  return OkStatus();
}

std::map<std::string, std::string> Settings::Translated() const {
  std::map<std::string, std::string> translated;
  for (const auto& [name, entry] : entries_) {
    if (entry.alias != nullptr) translated[name] = fmt::format("{} ({})", entry.source, entry.alias->of);
  }
  return translated;
}

void Settings::Fill(const std::string& name, nlohmann::json value, Origin origin, const std::string& source) {
  if (!Has(name)) Replace(name, std::move(value), origin, source);
}

void Settings::Fill(const SettingValues& values, Origin origin, const std::string& source) {
  for (const auto& [name, value] : values) Fill(name, value, origin, source);
}

void Settings::Replace(const std::string& name, nlohmann::json value, Origin origin, const std::string& source) {
  entries_[name] = {std::move(value), origin, source};
}

void Settings::Forget(const std::string& name) { entries_.erase(name); }

void Settings::ResolveYields() {
  std::vector<std::string> dropped;
  for (const Setting& row : table_->rows()) {
    if (!row.yields_to.empty() && Has(row.name) && Has(row.yields_to) && OriginOf(row.name) < OriginOf(row.yields_to))
      dropped.push_back(row.name);
  }
  for (const std::string& name : dropped) Forget(name);
  for (const Beside& said : beside_) {
    const Entry* const there = Find(said.name);
    const bool holds = Value(said.of) == said.value && OriginOf(said.of) == said.entry.origin;
    if (holds && (there == nullptr || there->origin < said.entry.origin)) entries_[said.name] = said.entry;
  }
}

const Settings::Entry* Settings::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

const nlohmann::json& Settings::Value(const std::string& name) const {
  const Entry* entry = Find(name);
  return entry == nullptr ? kAbsent : entry->value;
}

Origin Settings::OriginOf(const std::string& name) const {
  const Entry* entry = Find(name);
  return entry == nullptr ? Origin::kDefault : entry->origin;
}

const std::string& Settings::SourceOf(const std::string& name) const {
  const Entry* entry = Find(name);
  return entry == nullptr ? kNoSource : entry->source;
}

}  // namespace switchyard
