// What a library must leave as it found it when it is loaded: a plugin that changes the working directory, the locale,
// signal handlers or the rounding of numbers would change the program around it. The probe compares before and after.
// Not thread-safe: it asks the process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <string>
#include <utility>

namespace switchyard {

class ProcessState {
 public:
  static ProcessState Now();
  // The first difference, in words: "changed the working directory from / to /tmp"; "" where there is none.
  std::string ChangesSince(const ProcessState& before) const;

 private:
  static constexpr int kSignals = 32,
                       kDescriptors = 4;  // the standard signals; stdin, stdout, stderr and the probe's report
  std::string folder_, locale_;
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
