// Settings as a person reads them, from the same table: the help, and what is in force with where it came from.
// Thread-safe: pure functions.
#pragma once

#include <string>

#include "core/settings/settings.h"

namespace switchyard {

// "  --name                    help [default]"; for what is filled, by whom: [the recipe's].
std::string HelpLine(const std::string& name, const std::string& help, const std::string& standard);
// A line for each row, under the headings of their groups.
std::string SettingsHelp(const SettingTable& table);

// A line for each row under the same headings: name, value ("-": absent) and unit, origin.
std::string SettingsListing(const Settings& settings);

}  // namespace switchyard
