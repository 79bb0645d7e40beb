#include "tools/switchyard/settings.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "core/base/environment.h"
#include "core/base/names.h"
#include "tools/switchyard/flags.h"

#define SY_FIELD(field, help) ABSL_FLAG(decltype(switchyard::TrainConfig::field), field, switchyard::TrainConfig().field, help);
SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD

namespace switchyard {
namespace {

std::set<std::string>& Given() {
  static std::set<std::string> given;
  return given;
}

// Flags of ours, not those that Abseil itself defines.
std::vector<std::string> KnownFlags() {
  std::vector<std::string> names;
#define SY_FIELD(field, help) names.push_back(#field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  for (const char* name : kCommandFlags) names.push_back(name);
  return names;
}

absl::CommandLineFlag* FindFlag(const std::string& name) {
  const auto known = KnownFlags();
  return std::find(known.begin(), known.end(), name) == known.end() ? nullptr : absl::FindCommandLineFlag(name);
}

Status Set(absl::CommandLineFlag& flag, const std::string& value, const std::string& source) {
  std::string error;
  if (flag.ParseFrom(value, &error)) {
    Given().insert(std::string(flag.Name().data(), flag.Name().size()));
    return OkStatus();
  }
  return InvalidArgument("{}: \"{}\" is not a value for --{}{}", source, value, std::string(flag.Name().data(), flag.Name().size()), error.empty() ? "" : ": " + error);
}

std::string JsonText(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& item : value) text += (text.empty() ? "" : ",") + JsonText(item);
  return text;
}

Status ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("--config={}: cannot read this file; it should hold a JSON object of settings, as in a run's config.json", path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return InvalidArgument("--config={}: not a JSON object of settings", path);
  for (const auto& [key, value] : json.items()) {
    absl::CommandLineFlag* flag = FindFlag(key);
    if (flag == nullptr) return InvalidArgument("--config={}: unknown setting {}{}", path, key, DidYouMean(key, KnownFlags()));
    if (!WasGiven(key)) SY_RETURN_IF_ERROR(Set(*flag, JsonText(value), "--config=" + path));
  }
  return OkStatus();
}

}  // namespace

bool WasGiven(const std::string& flag) { return Given().contains(flag); }

StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      line.positional.insert(line.positional.end(), arguments.begin() + static_cast<long>(i) + 1, arguments.end());
      break;
    }
    if (argument == "-h" || argument == "--help") {
      line.help = true;
      continue;
    }
    if (!argument.starts_with("-") || argument == "-") {
      line.positional.push_back(argument);
      continue;
    }
    std::string name = argument.substr(argument.starts_with("--") ? 2 : 1), value;
    const size_t equals = name.find('=');
    const bool has_value = equals != std::string::npos;
    if (has_value) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    std::replace(name.begin(), name.end(), '-', '_');
    absl::CommandLineFlag* flag = FindFlag(name);
    if (flag == nullptr && !has_value && name.starts_with("no") && FindFlag(name.substr(2)) != nullptr && FindFlag(name.substr(2))->IsOfType<bool>()) {
      flag = FindFlag(name.substr(2));
      value = "false";
    } else if (flag == nullptr) {
      return InvalidArgument("unknown flag --{}{}; `switchyard <command> --help` lists them", name, DidYouMean(name, KnownFlags()));
    } else if (!has_value) {
      if (flag->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < arguments.size()) {
        value = arguments[++i];
      } else {
        return InvalidArgument("--{} needs a value", name);
      }
    }
    SY_RETURN_IF_ERROR(Set(*flag, value, argument));
  }
  for (const std::string& name : KnownFlags()) {
    if (WasGiven(name) || name == "data") continue;  // SWITCHYARD_DATA is the folder of all datasets (core/data/location.h)
    std::string variable = "SWITCHYARD_" + name;
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (const auto value = Environment(variable)) SY_RETURN_IF_ERROR(Set(*FindFlag(name), *value, variable));
  }
  if (const std::string path = absl::GetFlag(FLAGS_config); !path.empty()) SY_RETURN_IF_ERROR(ReadConfigFile(path));
  return line;
}

TrainConfig ResolvedSettings() {
  TrainConfig config;
#define SY_FIELD(field, help) config.field = absl::GetFlag(FLAGS_##field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return config;
}

StatusOr<TrainConfig> ResolvedSettings(const TrainConfig& base) {
  TrainConfig config = base;
#define SY_FIELD(field, help) \
  if (WasGiven(#field)) config.field = absl::GetFlag(FLAGS_##field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return config;
}

std::string SettingsHelp() {
  std::string text;
  const nlohmann::ordered_json defaults = ToJson(TrainConfig());
#define SY_FIELD(field, help) text += fmt::format("  --{:<24} {} [{}]\n", #field, help, JsonText(defaults[#field]));
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return text;
}

}  // namespace switchyard
