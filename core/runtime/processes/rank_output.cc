#include "core/runtime/processes/rank_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace switchyard {
namespace {

constexpr size_t kLongestLine = 64 << 10;  // a longer one is passed on in parts

}  // namespace

bool RankOutput::Pass() {
  char piece[8192];
  const ssize_t got = read(from, piece, sizeof piece);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  const size_t searched = line.size();
  line.append(piece, static_cast<size_t>(got));
  if (got == 0 && (in_line || !line.empty())) line += '\n';
  size_t start = 0;
  for (size_t end; (end = line.find('\n', std::max(start, searched))) != std::string::npos; start = end + 1) {
    Write(start, end + 1 - start);
    in_line = false;
  }
  if (line.size() - start >= kLongestLine) {
    Write(start, line.size() - start);
    in_line = true;
    start = line.size();
  }
  line.erase(0, start);
  return got > 0;
}

void RankOutput::Write(size_t start, size_t size) const {
  // The program's own log lines name the rank already.
  const bool named = in_line || line.compare(start, 6, "[rank ") == 0;
  const std::string text = (named ? "" : prefix) + line.substr(start, size);
  [[maybe_unused]] const ssize_t written = write(to, text.data(), text.size());
}

}  // namespace switchyard
