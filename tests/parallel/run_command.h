// Running a command for a test, with a time limit.
#pragma once

#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "core/base/environment.h"
#include "fmt/format.h"

namespace switchyard {

struct CommandResult {
  int code = -1;       // 124: the limit passed
  std::string output;  // both streams
  double seconds = 0;
};

inline CommandResult RunCommand(const std::string& command, int limit_seconds = 30) {
  CommandResult result;
  const auto start = std::chrono::steady_clock::now();
  FILE* const pipe = popen(fmt::format("timeout -k 1 {} {} 2>&1", limit_seconds, command).c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> piece;
  while (const size_t got = fread(piece.data(), 1, piece.size(), pipe)) result.output.append(piece.data(), got);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

inline bool HasMpirun() { return system("command -v mpirun > /dev/null 2>&1") == 0; }
inline bool HasCollective(const std::string& name) {
  return std::filesystem::exists(ProgramFolder() + "/../lib/switchyard/plugins/switchyard_collective_" + name + ".so");
}

// The command that runs a scenario of rank_program on `ranks` ranks.
inline std::string RankCommand(const std::string& launcher, int ranks, const std::string& scenario,
                               const std::string& collective) {
  const std::string program = ProgramFolder() + "/rank_program";
  if (launcher == "launch") return fmt::format("{} launch {} {} {}", program, ranks, scenario, collective);
  return fmt::format("mpirun --bind-to none --oversubscribe --allow-run-as-root -n {} {} {} {}", ranks, program,
                     scenario, collective);
}

}  // namespace switchyard
