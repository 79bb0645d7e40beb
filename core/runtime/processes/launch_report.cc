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
constexpr size_t kMostOfARecord = PIPE_BUF - 32;          // of its text: a record is written whole or not at all
// Kinds of records: "pid kind text", a line each.
constexpr char kFailure = 'f', kError = 'e', kMeeting = 'm', kMet = 'a', kRun = 'r';
constexpr char kLineBreak = '\x1e';                       // within a text

struct Listener {
  int descriptor = -1;  // none listens
  pid_t launcher = -1;
};

Listener FindListener() {
  const auto place = Environment(kVariable);
  Listener found;
  unsigned long long inode = 0;
  struct stat info {};
  // The inode tells whether the descriptor is still what it was when the launcher named it.
  const bool listens = place &&
                       std::sscanf(place->c_str(), "%d:%llu:%d", &found.descriptor, &inode, &found.launcher) == 3 &&
                       fstat(found.descriptor, &info) == 0 && S_ISFIFO(info.st_mode) && info.st_ino == inode;
  return listens ? found : Listener();
}

bool Send(const Listener& to, char kind, std::string text) {
  std::replace(text.begin(), text.end(), '\n', kLineBreak);
  const std::string record = fmt::format("{} {}{}\n", getpid(), kind, text);
  return write(to.descriptor, record.data(), record.size()) == static_cast<ssize_t>(record.size());
}

std::string WithLineBreaks(std::string text, char as) {
  std::replace(text.begin(), text.end(), kLineBreak, as);
  return text;
}

// "rank 2: ", "ranks 0, 1 and 3: "
std::string Names(const std::vector<int>& ranks) {
  std::string names;
  for (size_t i = 0; i < ranks.size(); ++i)
    names += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return fmt::format("rank{} {}: ", ranks.size() > 1 ? "s" : "", names);
}

}  // namespace

void TellLauncher(const std::string& failure) {
  static std::atomic<bool> told{false};
  const Listener listener = FindListener();
  if (listener.descriptor < 0 || told.exchange(true)) return;
  Send(listener, kFailure, failure.substr(0, kMostOfARecord));
}

bool LeaveErrorToLauncher(const std::string& error) {
  const Listener listener = FindListener();
  return listener.descriptor >= 0 && listener.launcher == getppid() && error.size() <= kMostOfARecord &&
         Send(listener, kError, error);
}

int ExitStatusOf(const Status& status) {
  if (status.ok()) return 0;
  const bool for_good = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) || absl::IsOutOfRange(status);
  return for_good ? kEndsForGood : 1;
}

void TellLauncherOfMeeting(int rank) {
  const Listener listener = FindListener();
  if (listener.descriptor >= 0) Send(listener, kMeeting, fmt::to_string(rank));
}
void TellLauncherAllMet() {
  const Listener listener = FindListener();
  if (listener.descriptor >= 0) Send(listener, kMet, "");
}

void TellLauncherOfRun(const std::string& run_folder) {
  const Listener listener = FindListener();
  if (listener.descriptor >= 0 && run_folder.size() <= kMostOfARecord) Send(listener, kRun, run_folder);
}

std::string RestartedRun() { return Environment(kRestartedRun).value_or(""); }

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
  return fmt::format("{}={}:{}:{}", kVariable, ends_[1], static_cast<unsigned long long>(info.st_ino), getpid());
}

void LaunchReports::Read() {
  char piece[PIPE_BUF];
  ssize_t got = -1;
  while (ends_[0] >= 0 && unread_.size() < kMostUnread && (got = read(ends_[0], piece, sizeof piece)) > 0)
    unread_.append(piece, static_cast<size_t>(got));
  if (got == 0) close(std::exchange(ends_[0], -1));
  size_t start = 0;
  for (size_t end; (end = unread_.find('\n', start)) != std::string::npos; start = end + 1) {
    const size_t space = unread_.find(' ', start);
    if (space == std::string::npos || space + 1 >= end) continue;
    const pid_t pid = std::atoi(unread_.c_str() + start);
    const std::string text = unread_.substr(space + 2, end - space - 2);
    if (unread_[space + 1] == kFailure) told_.emplace(pid, WithLineBreaks(text, ' '));
    if (unread_[space + 1] == kError) {
      errors_.emplace_back(pid, text);
      left_.emplace(pid, WithLineBreaks(text, ' '));
    }
    if (unread_[space + 1] == kMeeting) waiting_.insert(std::atoi(text.c_str()));
    if (unread_[space + 1] == kMet) all_met_ = true;
    if (unread_[space + 1] == kRun) run_ = WithLineBreaks(text, '\n');
  }
  unread_.erase(0, start);
}

std::string LaunchReports::Of(pid_t pid) {
  Read();
  const auto found = told_.find(pid);
  return found == told_.end() ? "" : found->second;
}

std::string LaunchReports::ErrorOf(pid_t pid) {
  Read();
  const auto found = left_.find(pid);
  return found == left_.end() ? "" : found->second;
}

std::vector<std::string> LaunchReports::TakeErrors(const std::map<pid_t, int>& ranks, const std::string& culprit) {
  Read();
  std::vector<std::string> texts;
  std::map<std::string, std::vector<int>> by_text;
  for (const auto& [pid, text] : std::exchange(errors_, {})) {
    const auto rank = ranks.find(pid);
    if (rank == ranks.end() || taken_.contains(text) || culprit.find(WithLineBreaks(text, ' ')) != std::string::npos)
      continue;
    if (by_text[text].empty()) texts.push_back(text);
    by_text[text].push_back(rank->second);
  }
  std::vector<std::string> errors;
  for (const std::string& text : texts) {
    std::vector<int>& of = by_text[text];
    std::sort(of.begin(), of.end());
    errors.push_back((of.size() == ranks.size() ? "" : Names(of)) + WithLineBreaks(text, '\n'));
    taken_.insert(text);
  }
  return errors;
}

}  // namespace switchyard
