#include "core/plan/host_thread.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace switchyard {

StatusOr<std::unique_ptr<HostThread>> HostThread::Make(Device& device) {
  std::unique_ptr<HostThread> made(new HostThread(device));
  auto done = device.NewSemaphore();
  if (done.ok()) {
    made->done_ = std::move(*done);
  } else if (done.status().code() != absl::StatusCode::kUnimplemented) {
    return done.status();
  }
  return made;
}

// By looking, for nothing ends a wait of the plugin's for a stream that does not go on.
Status HostThread::Await(Event& event) const {
  constexpr std::chrono::microseconds kShortest{10}, kLongest{200};
  for (auto pause = kShortest;; pause = std::min(2 * pause, kLongest)) {
    SY_ASSIGN_OR_RETURN(const bool done, event.Done());
    if (done) return OkStatus();
    if (device_.keeps_memory()) return Unavailable("the device waits for somebody who does not answer");
    std::this_thread::sleep_for(pause);
  }
}

void HostThread::Start(Call& call) {
  call.ticket = ++started_;
  if (!call.task.body) {
    call.task.body = [this, &call] {
      Status status;
      for (Event* const event : call.after) status.Update(Await(*event));
      if (status.ok()) status = call.body();
      // Also after a failure, or the streams that wait would wait for ever.
      const Status signalled = done_ ? done_.Signal(call.ticket) : OkStatus();
      return status.ok() ? signalled : status;
    };
  }
  thread_.Submit(call.task);
}

Status HostThread::Before(Call& call, const Stream& stream) {
  return done_ ? done_.Before(stream, call.ticket) : Finish(call);
}

}  // namespace switchyard
