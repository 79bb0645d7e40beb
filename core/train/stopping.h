// Ending a run early: SIGTERM and SIGUSR1 (what schedulers send before they take a machine away) end it after a
// micro-step on which all ranks agree. Where that is not the last of its update, the update is taken back, as if it had
// not begun. A second SIGTERM, more than 3
// seconds after the first, ends the process at once, whatever it waits for.
//
// There is no signal handler: it would run on the stack of whichever thread the signal finds, and a kernel may have
// turned its stack pointer to a workspace (oneDNN's matrix products do), whose end the handler's frame would write
// over. The signals are blocked in every thread instead, and one thread, StopSignals', waits for them.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "core/runtime/collectives/communicator.h"

namespace switchyard {

// While one lives, SIGTERM and SIGUSR1 are blocked in the thread that made it and in all that are started from there
// on: make it before any other thread is started, and destroy it where it was made. World::Join makes one; a program
// that starts threads before that makes one first, for a signal to a thread that does not block it means to the program
// what it meant before. A signal that comes while no Stopping lives does what it would have done without us: it ends
// the process, or a handler of the program's own is called, on the thread that waits; only where a run was stopped at
// the wish of another rank, this rank's own copy of that signal is dropped, should it come late. Several may live; they
// share that thread. Thread-safe.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  sigset_t before_;  // the mask of the thread that made it
};

// Is the work to end here? The same answer on all ranks, which all ask.
using StopAsked = std::function<StatusOr<bool>()>;

// Asks whether the run is to end. Agreeing makes the ranks wait for each other, so they do it about twice a second, not
// after every step. While a StopSignals lives. Of one run at a time: several ranks of it may be threads of this
// process, an object each, and a signal to the process asks all of them.
class Stopping {
 public:
  explicit Stopping(Communicator* communicator);  // null with one rank
  ~Stopping();
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  // Is the run to end here? The same answer on all ranks; called by all after each micro-step, or each batch of an
  // evaluation, which has an object of its own, with equal `step`, which grows.
  StatusOr<bool> After(int64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  Communicator* communicator_;
  int64_t agreed_at_ = 0, next_ = 0;  // steps
  Clock::time_point agreed_;
};

}  // namespace switchyard
