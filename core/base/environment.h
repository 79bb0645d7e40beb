// Environment variables and the folders that belong to the user and to the program.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace switchyard {

std::optional<std::string> Environment(const std::string& name);  // unset and empty are both nullopt
std::optional<int> EnvironmentInt(const std::string& name);       // nullopt also where it is not a whole number
// $XDG_CACHE_HOME/switchyard or ~/.cache/switchyard; where HOME is unset, the home that the system's list of users has.
// "" where there is none of these: then nothing is cached, since whoever shares the machine could be there before us
// under any name that can be guessed.
std::string UserCacheFolder();
std::string ProgramFolder();  // the folder of the running executable
std::string HostName();
std::vector<int> AllowedCores();  // ids of the cores that this process may run on, ascending

}  // namespace switchyard
