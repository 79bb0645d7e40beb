// Settings of a command line: each field of TrainConfig is a flag, an environment variable SWITCHYARD_<FLAG> and a key
// of the --config file, in this order of precedence, then the default. Abseil holds, parses and prints the values; this
// page resolves where they come from.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/train/config.h"

namespace switchyard {

// What a command takes.
struct AcceptedFlags {
  std::vector<std::string> own;
  bool settings = false;  // the training settings and --config too
};

struct CommandLine {
  std::vector<std::string> positional;
  bool help = false;
};

// Takes "--name=value", "--name value", "--flag" and "--noflag"; "--" ends the flags. An unknown flag is an error with
// a suggestion. Then the environment and the --config file fill in what the command line left open.
StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments, const AcceptedFlags& accepted);

// The settings as resolved. `base`: defaults other than the built-in ones (a checkpoint's settings), overridden by
// whatever was given.
TrainConfig ResolvedSettings();
TrainConfig ResolvedSettings(const TrainConfig& base);
bool WasGiven(const std::string& flag);
bool WasTyped(const std::string& flag);  // given, and not by the --config file, which may hold a whole run's settings

// One line "  --name  help [default]" for each, the settings under headings.
std::string FlagsHelp(const std::vector<std::string>& names);
std::string SettingsHelp();

}  // namespace switchyard
