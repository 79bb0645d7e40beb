#include "core/base/logging.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "core/base/log_rank.h"
#include "core/base/text.h"

namespace switchyard {
namespace {

LogLevel LevelFromEnvironment() {
  const char* text = std::getenv("SWITCHYARD_LOG");
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

std::atomic<LogLevel> least_level{LevelFromEnvironment()};
std::atomic<int> log_rank{-1};
thread_local int thread_rank = -1;  // wins

constexpr size_t kMostOfALine = 16 << 10;  // bytes; what a file or a plugin says may be longer

constexpr const char* kPrefix[] = {"debug: ", "", "warning: ", "error: "};

}  // namespace

void SetLogRank(int rank, int world) { log_rank = world > 1 ? rank : -1; }
void SetLogRankOfThread(int rank, int world) { thread_rank = world > 1 ? rank : -1; }
void SetLogLevel(LogLevel level) { least_level = level; }

void LogLine(LogLevel level, const std::string& line) {
  if (level < least_level.load()) return;
  const int rank = thread_rank >= 0 ? thread_rank : log_rank.load();
  std::string text = rank >= 0 ? fmt::format("[rank {}] ", rank) : std::string();
  text += kPrefix[static_cast<int>(level)];
  text += PrintableLines(line, kMostOfALine);
  text += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace switchyard
