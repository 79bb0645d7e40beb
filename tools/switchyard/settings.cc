#include "tools/switchyard/settings.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/names.h"
#include "tools/switchyard/flags.h"

#define SY_FIELD(field, kind, help) \
  ABSL_FLAG(decltype(switchyard::TrainConfig::field), field, switchyard::TrainConfig().field, help);
SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD

namespace switchyard {
namespace {

std::set<std::string>& Given() {
  static std::set<std::string> given;
  return given;
}

std::set<std::string>& InConfigFile() {  // of those given
  static std::set<std::string> names;
  return names;
}

std::vector<std::string> SettingNames() {
  std::vector<std::string> names;
#define SY_FIELD(field, kind, help) names.push_back(#field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return names;
}

std::vector<std::string> NamesOf(const AcceptedFlags& accepted) {
  std::vector<std::string> names = accepted.own;
  if (accepted.settings) {
    names.push_back("config");
    for (const std::string& name : SettingNames()) names.push_back(name);
  }
  return names;
}

absl::CommandLineFlag* FindIn(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) == names.end() ? nullptr : absl::FindCommandLineFlag(name);
}

Status UnknownFlag(const std::string& name, const std::vector<std::string>& known) {
  std::vector<std::string> spelled;
  for (const std::string& one : known) spelled.push_back("--" + one);
  return InvalidArgument("unknown flag --{}{}; `switchyard <command> --help` lists what a command takes", name,
                         DidYouMean("--" + name, spelled));
}

std::string Text(absl::string_view view) { return std::string(view.data(), view.size()); }

Status Set(absl::CommandLineFlag& flag, const std::string& value, const std::string& source) {
  std::string error;
  const bool automatic = Text(flag.Name()) == "batch_size" && value == "auto";
  if (flag.ParseFrom(automatic ? std::to_string(TrainConfig::kAutoBatch) : value, &error)) {
    Given().insert(Text(flag.Name()));
    return OkStatus();
  }
  return InvalidArgument("{}: \"{}\" is not a value for --{} ({}); its default is \"{}\"", source, Printable(value),
                         Text(flag.Name()), Text(flag.Help()), flag.DefaultValue());
}

std::string JsonText(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& item : value) text += (text.empty() ? "" : ",") + JsonText(item);
  return text;
}

constexpr size_t kLargestConfig = size_t{1} << 20;

Status ReadConfigFile(const std::string& path, const std::vector<std::string>& names) {
  const std::string source = "--config=" + path;
  const auto text = ReadWholeFile(path, kLargestConfig);
  if (!text.ok()) {
    return NotFound(
        "{}: cannot read this file; it should hold a JSON object of settings, as a run's config.json does ({})", source,
        Message(text.status()));
  }
  JsonRules rules;
  rules.comments = true;
  const auto parsed = ParseJson(*text, rules);
  if (!parsed.ok()) return InvalidArgument("{}: {}", source, Message(parsed.status()));
  const nlohmann::json& json = *parsed;
  if (!json.is_object())
    return InvalidArgument("{}: expected a JSON object of settings, found {}", source, json.type_name());
  const std::set<std::string> given = Given();
  for (const auto& [key, value] : json.items()) {
    absl::CommandLineFlag* flag = FindIn(names, key);
    if (flag == nullptr)
      return InvalidArgument("{}: unknown setting {}{}", source, Printable(key),
                             DidYouMean(Printable(key), SettingNames()));
    if (value.is_object() || value.is_null())
      return InvalidArgument("{}: {} is no value for the setting {}", source, Excerpt(value), key);
    // Either batch size decides the other: one that was given outranks both of the file.
    const bool batch = key == "batch_size" || key == "global_batch_size";
    if (given.contains(key) || (batch && (given.contains("batch_size") || given.contains("global_batch_size"))))
      continue;
    SY_RETURN_IF_ERROR(Set(*flag, JsonText(value), source));
    InConfigFile().insert(key);
  }
  return OkStatus();
}

// The headings of SettingsHelp, each before the setting that it names.
constexpr std::pair<const char*, const char*> kHeadings[] = {
    {"model", "What to train"}, {"epochs", "How long, in which batches"}, {"optimizer", "Optimizer and schedule"},
    {"workers", "Data"},        {"device", "Devices and processes"},      {"bucket_mb", "Communication"},
    {"compile", "The plan"},    {"output", "Watching and keeping"},
};

std::string HelpLine(const std::string& name, const std::string& help, const std::string& standard) {
  return fmt::format("  --{:<23} {}{}\n", name, help, standard.empty() ? "" : " [" + standard + "]");
}

}  // namespace

bool WasGiven(const std::string& flag) { return Given().contains(flag); }
bool WasTyped(const std::string& flag) { return WasGiven(flag) && !InConfigFile().contains(flag); }

StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments, const AcceptedFlags& accepted) {
  const std::vector<std::string> names = NamesOf(accepted);
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
    absl::CommandLineFlag* flag = FindIn(names, name);
    absl::CommandLineFlag* const denied =
        name.starts_with("no") && !has_value ? FindIn(names, name.substr(2)) : nullptr;
    if (flag == nullptr && denied != nullptr && denied->IsOfType<bool>()) {
      flag = denied;
      value = "false";
    } else if (flag == nullptr) {
      return UnknownFlag(name, names);
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
  for (const std::string& name : names) {
    if (WasGiven(name) || name == "data")
      continue;  // SWITCHYARD_DATA is the folder of all datasets (core/data/location.h)
    std::string variable = "SWITCHYARD_" + name;
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (const auto value = Environment(variable)) SY_RETURN_IF_ERROR(Set(*FindIn(names, name), *value, variable));
  }
  if (const std::string path = absl::GetFlag(FLAGS_config); !path.empty())
    SY_RETURN_IF_ERROR(ReadConfigFile(path, names));
  return line;
}

TrainConfig ResolvedSettings() {
  TrainConfig config;
#define SY_FIELD(field, kind, help) config.field = absl::GetFlag(FLAGS_##field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return config;
}

TrainConfig ResolvedSettings(const TrainConfig& base) {
  TrainConfig config = base;
#define SY_FIELD(field, kind, help) \
  if (WasGiven(#field)) config.field = absl::GetFlag(FLAGS_##field);
  SWITCHYARD_TRAIN_FIELDS(SY_FIELD)
#undef SY_FIELD
  return config;
}

std::string FlagsHelp(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    text += HelpLine(name, Text(flag->Help()), flag->DefaultValue());
  }
  return text;
}

std::string SettingsHelp() {
  std::string text;
  const nlohmann::ordered_json defaults =
      ToJson(TrainConfig(), {SettingKind::kProperty, SettingKind::kPlace, SettingKind::kAct});
  for (const std::string& name : SettingNames()) {
    for (const auto& [first, heading] : kHeadings) {
      if (name == first) text += fmt::format("\n{}\n", heading);
    }
    text += HelpLine(name, Text(absl::FindCommandLineFlag(name)->Help()), JsonText(defaults[name]));
  }
  return text;
}

}  // namespace switchyard
