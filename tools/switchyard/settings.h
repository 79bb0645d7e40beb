// Settings of a command line: each field of TrainConfig is a flag, an environment variable SWITCHYARD_<FLAG> and a key of the --config file, in
// this order of precedence, then the default. Abseil holds, parses and prints the values; this page resolves where they come from.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/train/config.h"

namespace switchyard {

struct CommandLine {
  std::vector<std::string> positional;
  bool help = false;
};

// Takes "--name=value", "--name value", "--flag" and "--noflag"; "--" ends the flags. An unknown flag is an error with a suggestion. Then the
// environment and the --config file fill in what the command line left open.
StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

// The settings as resolved. `base`: defaults other than the built-in ones (a checkpoint's settings), overridden by whatever was given.
TrainConfig ResolvedSettings();
StatusOr<TrainConfig> ResolvedSettings(const TrainConfig& base);
bool WasGiven(const std::string& flag);

// "  --name (default; help)" for each training setting.
std::string SettingsHelp();

}  // namespace switchyard
