// The thread on which the steps of a plan run that stand on the host: kernels of the host's backend, beside a device.
// They run in the order in which they are started, each when what it waits for on the device has ended; streams of the
// device wait for them by a semaphore, so that the thread that submits a run waits for nothing. On a device without
// semaphores it waits where a stream needs what a call computes. Where somebody does not answer for whom the device's
// streams wait (Device::keeps_memory), calls end with Unavailable. One thread starts and waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/runtime/collectives/progress_thread.h"
#include "core/runtime/device/device.h"

namespace switchyard {

class HostThread {
 public:
  // Made once, started again and again; must stay where it is until it has been finished.
  struct Call {
    std::function<Status()> body;
    std::vector<Event*> after;  // each has been recorded when the call is started
    uint64_t ticket = 0;
    ProgressThread::Task task;
  };

  static StatusOr<std::unique_ptr<HostThread>> Make(Device& device);

  // The call of the run before must have been finished, before anything in `after` is recorded again.
  void Start(Call& call);
  // Later work of `stream` begins behind the call, also where that fails: only Finish tells.
  Status Before(Call& call, const Stream& stream);
  // Waits for the call and says how it ended; OK at once where it was not started since.
  Status Finish(Call& call) { return thread_.Wait(call.task); }
  // Waits as Finish does, in any thread, and leaves the answer to Finish.
  Status Await(const Call& call) { return thread_.Await(call.task); }

 private:
  explicit HostThread(Device& device) : device_(device) {}
  Status Await(Event& event) const;
  Device& device_;
  Semaphore done_;  // the ticket of the last call that has ended; none: the device has no semaphores
  uint64_t started_ = 0;
  ProgressThread thread_;
};

}  // namespace switchyard
