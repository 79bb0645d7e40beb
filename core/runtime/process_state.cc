#include "core/runtime/process_state.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cfenv>
#include <cfloat>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "fmt/format.h"

namespace switchyard {

ProcessState ProcessState::Now() {
  std::fflush(stdout);
  std::cout.flush();
  ProcessState state;
  std::array<char, 4096> folder{};
  if (getcwd(folder.data(), folder.size()) != nullptr) state.folder_ = folder.data();
  state.locale_ = std::setlocale(LC_ALL, nullptr);
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
  if (locale_ != before.locale_) return fmt::format("changed the locale from {} to {}", before.locale_, locale_);
  if (mask_ != before.mask_)
    return fmt::format("changed the mask of file modes from {:03o} to {:03o}", before.mask_, mask_);
  for (int number = 1; number < kSignals; ++number) {
    const struct sigaction &now = actions_[number], &then = before.actions_[number];
    if (now.sa_handler != then.sa_handler)
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
