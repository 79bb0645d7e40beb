#include "core/runtime/processes/launch_report.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/environment.h"

namespace switchyard {
namespace {

constexpr char kVariable[] = "SWITCHYARD_LAUNCH_REPORT";
constexpr size_t kMostUnread = 1 << 20;

}  // namespace

void TellLauncher(const std::string& failure) {
  static std::atomic<bool> told{false};
  const auto place = Environment(kVariable);
  int descriptor = -1;
  unsigned long long inode = 0;
  struct stat info {};
  // The inode tells whether the descriptor is still what it was when the launcher named it.
  if (!place || std::sscanf(place->c_str(), "%d:%llu", &descriptor, &inode) != 2 || fstat(descriptor, &info) != 0 ||
      !S_ISFIFO(info.st_mode) || info.st_ino != inode || told.exchange(true))
    return;
  std::string line = fmt::format("{} {}", getpid(), failure).substr(0, PIPE_BUF - 1);  // whole or not at all
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  [[maybe_unused]] const ssize_t written = write(descriptor, line.data(), line.size());
}

LaunchReports::~LaunchReports() {
  for (const int end : ends_) {
    if (end >= 0) close(end);
  }
}

Status LaunchReports::Open() {
  if (pipe2(ends_, O_CLOEXEC | O_NONBLOCK) == 0) return OkStatus();
  return ResourceExhausted("launch: pipe: {}", std::strerror(errno));
}

void LaunchReports::StopWriting() {
  if (ends_[1] >= 0) close(std::exchange(ends_[1], -1));
}

std::string LaunchReports::Variable() const {
  struct stat info {};
  fstat(ends_[1], &info);
  return fmt::format("{}={}:{}", kVariable, ends_[1], static_cast<unsigned long long>(info.st_ino));
}

std::string LaunchReports::Of(pid_t pid) {
  char piece[PIPE_BUF];
  for (ssize_t got = 0; (got = read(ends_[0], piece, sizeof piece)) > 0 && unread_.size() < kMostUnread;)
    unread_.append(piece, static_cast<size_t>(got));
  size_t start = 0;
  for (size_t end; (end = unread_.find('\n', start)) != std::string::npos; start = end + 1) {
    const size_t space = unread_.find(' ', start);
    if (space < end) told_.emplace(std::atoi(unread_.c_str() + start), unread_.substr(space + 1, end - space - 1));
  }
  unread_.erase(0, start);
  const auto found = told_.find(pid);
  return found == told_.end() ? "" : found->second;
}

}  // namespace switchyard
