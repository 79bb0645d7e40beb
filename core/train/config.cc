#include "core/train/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/text.h"
#include "core/base/units.h"
#include "core/parallel/power_sgd.h"
#include "core/train/recipe.h"

namespace switchyard {
namespace {

// A part of the path below --output: "a" or "a/b", which neither leads out of that folder nor writes control characters
// where it is printed.
Status CheckFolderName(const std::string& name) {
  const std::filesystem::path path = name;
  const bool stays =
      path.is_relative() && std::none_of(path.begin(), path.end(), [](const std::filesystem::path& part) {
        return part == "." || part == ".." || part.empty();
      });
  if (stays && Printable(name, name.size()) == name) return OkStatus();
  return InvalidArgument("expected the name of a folder, found \"{}\"", Printable(name));
}

std::vector<Setting> MakeRows() {
  std::vector<Setting> rows;
  const TrainConfig standard;
  std::string group;
#define SY_GROUP(heading) group = heading;
#define SY_SETTING(type, name, value, ...) \
  rows.push_back(Describe<type>(#name, group, SettingTraits{__VA_ARGS__}, standard.name));
#include "core/train/settings_table.inc"
  return rows;
}

// Calls visit(row, field) for each.
template <typename Config, typename Visit>
void ForEachField(Config& config, const Visit& visit) {
  auto row = TrainSettings().begin();
#define SY_GROUP(heading)
#define SY_SETTING(type, name, value, ...) visit(*row++, config.name);
#include "core/train/settings_table.inc"
}

}  // namespace

const std::vector<Setting>& TrainSettings() {
  static const auto& rows = *new std::vector<Setting>(MakeRows());
  return rows;
}

TrainConfig ConfigOf(const Settings& settings) {
  TrainConfig config;
  ForEachField(config, [&](const Setting& row, auto& field) {
    // What a field cannot hold did not pass its row, or is a word that the caller looks at ("auto").
    if (settings.Has(row.name)) (void)ReadInto(settings.Value(row.name), &field);
  });
  return config;
}

nlohmann::ordered_json ToJson(const TrainConfig& config, std::initializer_list<SettingKind> kinds) {
  nlohmann::ordered_json json;
  const auto wanted = [&](SettingKind kind) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); };
  ForEachField(config, [&](const Setting& row, const auto& field) {
    nlohmann::json value = JsonOf(field);
    if (!wanted(row.kind) || value.is_null() || (value.is_array() && value.empty())) return;
    if (value.is_number_float() && std::isinf(value.get<double>())) value = "inf";  // JSON has no such number
    json[row.name] = std::move(value);
  });
  if (wanted(SettingKind::kProperty)) {
    for (const auto& [name, value] : config.own) json[name] = value;
  }
  return json;
}

bool IsRunConfig(const nlohmann::json& json) {
  if (!json.is_object()) return false;
  for (const char* always : {"model", "dataset", "seed", "output"}) {
    if (!json.contains(always)) return false;
  }
  return std::all_of(TrainSettings().begin(), TrainSettings().end(), [&](const Setting& row) {
    const auto found = json.find(row.name);
    return found == json.end() || ValueFromJson(row, *found, /*exact=*/false).ok();
  });
}

Status CheckTrainConfig(const TrainConfig& config) {
  Status status;
  ForEachField(config, [&](const Setting& row, const auto& field) { status.Update(CheckValue(row, JsonOf(field))); });
  SY_RETURN_IF_ERROR(status);
  return CheckRecipe(config);
}

}  // namespace switchyard
