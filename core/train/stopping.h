// Ending a run early: SIGTERM and SIGUSR1 (what schedulers send before they take a machine away) end it after an update
// on which all ranks agree. Agreeing makes the ranks wait for each other, so they do it about twice a second, not after
// every update. One object at a time; the handlers of before come back with its end.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>

#include "core/runtime/communicator.h"

namespace switchyard {

class Stopping {
 public:
  explicit Stopping(Communicator* communicator);  // null with one rank
  ~Stopping();
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  // Is the run to end here? The same answer on all ranks; called by all after each update, with equal `step`.
  StatusOr<bool> After(int64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  Communicator* communicator_;
  int64_t agreed_at_ = 0, next_ = 0;  // steps
  Clock::time_point agreed_;
  struct sigaction old_term_ {
  }, old_user_{};
};

}  // namespace switchyard
