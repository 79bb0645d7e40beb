#include "core/plan/host_thread.h"

namespace switchyard {

StatusOr<std::unique_ptr<HostThread>> HostThread::Make(Device& device) {
  std::unique_ptr<HostThread> made(new HostThread);
  auto done = device.NewSemaphore();
  if (done.ok()) {
    made->done_ = std::move(*done);
  } else if (done.status().code() != absl::StatusCode::kUnimplemented) {
    return done.status();
  }
  return made;
}

void HostThread::Start(Call& call) {
  call.ticket = ++started_;
  if (!call.task.body) {
    call.task.body = [this, &call] {
      Status status;
      for (Event* const event : call.after) status.Update(event->Wait());
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
