// Lines for people, on standard error. Each carries the rank once SetLogRank was called with a world above one.
// What a terminal would take as a command is escaped (text.h), a message of several lines has all but the first
// indented, so that none of them passes for a message of its own, and it ends after 16 KiB. Thread-safe: a message is
// written by one write(2).
#pragma once

#include <string>
#include <utility>

#include "fmt/format.h"

namespace switchyard {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void SetLogRank(int rank, int world);
// Lines below it are dropped; kInfo, or as SWITCHYARD_LOG=debug|info|warning|error says. Only plugins
// log at kDebug.
void SetLogLevel(LogLevel level);
void LogLine(LogLevel level, const std::string& line);

template <typename... Args>
void LogInfo(fmt::format_string<Args...> f, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> f, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> f, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace switchyard
