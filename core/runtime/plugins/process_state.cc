#include "core/runtime/plugins/process_state.h"

#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <cfloat>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "core/base/text.h"
#include "fmt/format.h"

extern char** environ;

namespace switchyard {
namespace {

constexpr size_t kLongestVariable = 200;  // bytes of a variable that are shown

constexpr std::pair<int, const char*> kLimits[] = {
    {RLIMIT_AS, "address space"},    {RLIMIT_CORE, "core files"},         {RLIMIT_CPU, "processor time"},
    {RLIMIT_DATA, "data"},           {RLIMIT_FSIZE, "file size"},         {RLIMIT_MEMLOCK, "locked memory"},
    {RLIMIT_NOFILE, "open files"},   {RLIMIT_NPROC, "processes"},         {RLIMIT_STACK, "stack"},
    {RLIMIT_RSS, "resident memory"}, {RLIMIT_NICE, "niceness"},           {RLIMIT_RTPRIO, "real-time priority"},
    {RLIMIT_SIGPENDING, "signals"},  {RLIMIT_MSGQUEUE, "message queues"}, {RLIMIT_LOCKS, "locks"},
    {RLIMIT_RTTIME, "real-time"},
};

std::string EnvironmentChange(const std::map<std::string, std::string>& before,
                              const std::map<std::string, std::string>& now) {
  for (const auto& [name, value] : now) {
    const auto then = before.find(name);
    if (then != before.end() && then->second == value) continue;
    return Printable(
        fmt::format("{} the environment variable {}={}", then == before.end() ? "added" : "changed", name, value),
        kLongestVariable);
  }
  for (const auto& [name, value] : before) {
    if (!now.count(name)) return Printable("removed the environment variable " + name, kLongestVariable);
  }
  return "";
}

}  // namespace

ProcessState ProcessState::Now() {
  std::fflush(stdout);
  std::cout.flush();
  ProcessState state;
  std::array<char, 4096> folder{};
  if (getcwd(folder.data(), folder.size()) != nullptr) state.folder_ = folder.data();
  state.locale_ = std::setlocale(LC_ALL, nullptr);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = std::min(text.find('='), text.size());
    state.environment_[text.substr(0, equals)] = text.substr(std::min(equals + 1, text.size()));
  }
  for (const auto& [resource, name] : kLimits)
    getrlimit(static_cast<__rlimit_resource>(resource), &state.limits_[resource]);
  sched_getaffinity(0, sizeof state.cores_, &state.cores_);
  state.priority_ = getpriority(PRIO_PROCESS, 0);
  state.policy_ = sched_getscheduler(0);
  itimerval timer{};
  for (const auto which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    if (getitimer(which, &timer) == 0 && timerisset(&timer.it_value)) state.timer_ = true;
  }
  state.session_ = getsid(0);
  state.group_ = getpgrp();
  state.terminate_ = std::get_terminate();
  state.new_handler_ = std::get_new_handler();
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    ++state.threads_;
  }
  state.mask_ = umask(0);
  umask(state.mask_);
  for (int number = 1; number < kSignals; ++number) {
    if (sigaction(number, nullptr, &state.actions_[number]) != 0) state.actions_[number] = {};
  }
  sigprocmask(SIG_BLOCK, nullptr, &state.blocked_);
  state.rounding_ = std::fegetround();
  const volatile double smallest = DBL_MIN;  // half of it is a subnormal number
  state.subnormals_ = smallest / 2 > 0;
  for (int descriptor = 0; descriptor < kDescriptors; ++descriptor) {
    struct stat file {};
    if (fstat(descriptor, &file) == 0) state.files_[descriptor] = {file.st_dev, file.st_ino};
    if (descriptor == STDOUT_FILENO && S_ISREG(file.st_mode)) state.printed_ = file.st_size;
  }
  siginfo_t child{};
  state.children_ = waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
  return state;
}

std::string ProcessState::ChangesSince(const ProcessState& before) const {
  for (int descriptor = 0; descriptor < kDescriptors; ++descriptor) {
    if (files_[descriptor] != before.files_[descriptor]) {
      return fmt::format("closed or replaced the file descriptor {}, which is not its own", descriptor);
    }
  }
  if (printed_ != before.printed_) {
    return fmt::format("printed {} bytes to standard output, where results are", printed_ - before.printed_);
  }
  if (children_ && !before.children_) return "started a process";
  if (folder_ != before.folder_) {
    return fmt::format("changed the working directory from {} to {}", before.folder_, folder_);
  }
  if (const std::string change = EnvironmentChange(before.environment_, environment_); !change.empty()) return change;
  for (const auto& [resource, name] : kLimits) {
    const rlimit &now = limits_[resource], &then = before.limits_[resource];
    if (now.rlim_cur != then.rlim_cur || now.rlim_max != then.rlim_max) {
      return fmt::format("changed the limit on {} (ulimit) from {} to {}", name, then.rlim_cur, now.rlim_cur);
    }
  }
  if (!CPU_EQUAL(&cores_, &before.cores_)) {
    return fmt::format("changed the cores that the process may run on, from {} to {} of them",
                       CPU_COUNT(&before.cores_), CPU_COUNT(&cores_));
  }
  if (priority_ != before.priority_ || policy_ != before.policy_) return "changed the priority of the process";
  if (timer_ && !before.timer_) return "started a timer that will send a signal";
  if (session_ != before.session_ || group_ != before.group_) return "changed the session or group of the process";
  if (terminate_ != before.terminate_) return "changed what happens on an uncaught exception";
  if (new_handler_ != before.new_handler_) return "changed what happens when memory is used up";
  if (locale_ != before.locale_) return fmt::format("changed the locale from {} to {}", before.locale_, locale_);
  if (mask_ != before.mask_)
    return fmt::format("changed the mask of file modes from {:03o} to {:03o}", before.mask_, mask_);
  for (int number = 1; number < kSignals; ++number) {
    const struct sigaction &now = actions_[number], &then = before.actions_[number];
    if (now.sa_handler != then.sa_handler || now.sa_flags != then.sa_flags)
      return fmt::format("changed what happens on signal {} ({})", number, strsignal(number));
    if (sigismember(&blocked_, number) != sigismember(&before.blocked_, number)) {
      return fmt::format("changed whether signal {} ({}) is blocked", number, strsignal(number));
    }
  }
  if (rounding_ != before.rounding_ || subnormals_ != before.subnormals_) {
    return "changed the floating-point mode (was it linked with -ffast-math?)";
  }
  return "";
}

}  // namespace switchyard
