// The state of a run (parameters, moments, counters), copied off the device while the run goes on. On an asynchronous
// device the bytes go to a second place on the device, which takes no time to speak of, and from there to the host
// beside the steps that follow; that place is taken with the first copy and kept. Where the device has no memory left
// for it, the bytes go to the host at once, as what lies in host memory does. There the copy takes as much again, so
// that it is to be reserved before a run counts on it. A synchronous device copies in the thread
// that asks: that is whoever waits for the copy, beside the steps, of which those that write the state wait for it
// (StateReading). Begin from the thread that runs the steps; Wait and At from one other.
#pragma once

#include "core/train/engine.h"

namespace switchyard {

class StateCopy {
 public:
  explicit StateCopy(Engine& engine) : engine_(engine) {}
  ~StateCopy();
  StateCopy(const StateCopy&) = delete;
  StateCopy& operator=(const StateCopy&) = delete;

  // Takes the host memory of all copies now, where state lies there, so that no later Begin is refused it. Once.
  // FailedPrecondition where there is too little (Memory::AllocateForCopy).
  Status Reserve();
  // Of the state as the steps begun so far leave it; they must have ended (Engine::Synchronize). Steps may begin when
  // it returns. The last copy must have been waited for, and this one must be: until then no step ends that writes the
  // state.
  Status Begin();
  Status Wait();
  // The bytes of an entry of the state, after Wait, to read and to change; they stand until the next Begin.
  std::byte* At(const Layout::Entry& entry) {
    const HostMemory& copied = entry.arena == kHostStateArena ? of_host_ : host_;
    return reinterpret_cast<std::byte*>(copied.data()) + entry.offset;
  }

 private:
  Status Allocate();
  Status CopyBesideSteps();

  Engine& engine_;
  bool allocated_ = false;
  HostMemory host_, of_host_;  // of_host_: of the state that lies in host memory
  Buffer beside_;              // on the device; empty: there was no memory left, or the device is synchronous
  Stream copies_;
  Event begun_, done_;  // beside_ holds the state; host_ does
};

}  // namespace switchyard
