// The command line: positional arguments, flags of the command (flags.h, which Abseil holds) and settings, which are
// read from the environment and the --config file too and carry where they came from.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/settings/settings.h"

namespace switchyard {

// What a command takes.
struct AcceptedFlags {
  std::vector<std::string> own;            // flags of flags.h
  bool settings = false;                   // all settings, --config and --show_settings too
  std::vector<std::string> some_settings;  // else these
  bool files = false;                      // arguments that are no flags
};

struct CommandLine {
  std::vector<std::string> positional;
  bool help = false;
  Settings settings;
};

// Takes "--name=value", "--name value", "--flag" (switches, and settings with a bare value) and "--noflag"; "--" ends
// the flags. A switch takes a value behind a space ("--flag True") where nothing but a flag may follow, so not in a
// command that takes files. An unknown flag is an error with a suggestion. Then the environment and the --config file
// say what the command line left open; of two settings that exclude each other the one from nearer stays.
StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments, const AcceptedFlags& accepted);

// One line "  --name  help [default]" for each flag of a command.
std::string FlagsHelp(const std::vector<std::string>& names);

}  // namespace switchyard
