// Where settings are written down: environment variables, config files, and the record of a run in its checkpoints.
// Not thread-safe: they fill a Settings.
#pragma once

#include <string>
#include <vector>

#include "core/settings/settings.h"

namespace switchyard {

// SWITCHYARD_LR, …; then the variables of aliases.
std::string VariableOf(const std::string& setting);
Status TakeEnvironment(Settings& settings);

// Of the environment's SWITCHYARD_… variables those that look like a mistyped setting, each as a sentence that names
// the likely one. Plugins read variables of their own, so that an unknown one is no error.
std::vector<std::string> MistypedVariables(const SettingTable& table);

// Under this key a run's config.json has the acts with which it began.
inline constexpr char kStartedFrom[] = "started_from";

// A JSON object of settings, by their names or aliases, with comments, such as a run's config.json. Errors begin with
// --config=<path>.
Status TakeConfigFile(const std::string& path, Settings& settings);

// The properties of a run as its checkpoints keep them; places and acts that `json` may hold are passed over, since a
// checkpoint may come from anybody. An unknown setting or a value of another type is an error that names it.
Status TakeSaved(const nlohmann::json& json, const std::string& source, Settings& settings);

}  // namespace switchyard
