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

// Lines behind the first stand two columns in: what a file or a peer puts into a message cannot pass for another one.
std::string WithLinesIndented(const std::string& text) {
  constexpr std::string_view kIndent = "  ";
  std::string indented;
  for (size_t at = 0; at < text.size(); ++at) {
    indented += text[at];
    const std::string_view behind = std::string_view(text).substr(at + 1);
    if (text[at] == '\n' && !behind.empty() && !behind.starts_with(kIndent)) indented += kIndent;
  }
  return indented;
}

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
  text += PrintableLines(WithLinesIndented(line), kMostOfALine);
  text += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace switchyard
