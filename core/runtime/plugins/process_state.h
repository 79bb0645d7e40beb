// What a library must leave as it found it when it is loaded: a plugin that changes the environment, the working
// directory, limits, the cores it may run on, the locale, signal handlers or the rounding of numbers would change the
// program around it, and one that leaves threads or processes behind would share its cores. The probe compares before
// and after. Not thread-safe: it asks the process.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <utility>

namespace switchyard {

class ProcessState {
 public:
  static ProcessState Now();
  // The first difference, in words: "changed the working directory from / to /tmp"; "" where there is none. Threads do
  // not count: a driver that was asked for its devices may have some.
  std::string ChangesSince(const ProcessState& before) const;
  int threads() const { return threads_; }
  bool children() const { return children_; }

 private:
  static constexpr int kSignals = 32,
                       kDescriptors = 4;  // the standard signals; stdin, stdout, stderr and the probe's report
  std::string folder_, locale_;
  std::map<std::string, std::string> environment_;
  std::array<rlimit, RLIMIT_NLIMITS> limits_{};
  cpu_set_t cores_{};
  int priority_ = 0, policy_ = 0;  // of scheduling
  bool timer_ = false;             // one that will send a signal
  pid_t session_ = 0, group_ = 0;
  std::terminate_handler terminate_ = nullptr;
  std::new_handler new_handler_ = nullptr;
  int threads_ = 0;
  mode_t mask_ = 0;
  std::array<struct sigaction, kSignals> actions_{};
  sigset_t blocked_{};
  int rounding_ = 0;
  bool subnormals_ = true;
  std::array<std::pair<dev_t, ino_t>, kDescriptors> files_{};
  off_t printed_ = 0;  // bytes on standard output, where that is a file
  bool children_ = false;
};

}  // namespace switchyard
