#include "core/settings/settings.h"

#include "core/base/names.h"
#include "core/base/text.h"

namespace switchyard {
namespace {

const nlohmann::json kAbsent;
const std::string kNoSource;

Status UnknownSetting(const std::string& name, const SettingTable& table) {
  return InvalidArgument("unknown setting {}{}", Printable(name), DidYouMean(Printable(name), table.Names()));
}

}  // namespace

SettingTable::SettingTable(std::vector<Setting> rows) : rows_(std::move(rows)) {
  for (size_t i = 0; i < rows_.size(); ++i) by_name_[rows_[i].name] = i;
}

const Setting* SettingTable::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &rows_[found->second];
}

std::vector<std::string> SettingTable::Names() const {
  std::vector<std::string> names;
  for (const Setting& row : rows_) names.push_back(row.name);
  return names;
}

Status Settings::GiveText(const std::string& name, const std::string& text, Origin origin, const std::string& source) {
  const Setting* row = table_->Find(name);
  if (row == nullptr) return UnknownSetting(name, *table_);
  auto value = ValueFromText(*row, text);
  if (!value.ok()) return Annotate(value.status(), source);
  return Give(name, std::move(*value), origin, source);
}

Status Settings::Give(const std::string& name, nlohmann::json value, Origin origin, const std::string& source) {
  const Setting* row = table_->Find(name);
  if (row == nullptr) return UnknownSetting(name, *table_);
  if (const Status status = CheckValue(*row, value); !status.ok())
    return InvalidArgument("{} (given by {})", Message(status), source);
  const Entry* there = Find(name);
  if (there == nullptr || there->origin <= origin) entries_[name] = {std::move(value), origin, source};
  return OkStatus();
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
