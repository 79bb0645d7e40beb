// Streams and events. A stream is an in-order command queue, an event a marker in one. The first failure of a stream
// stays: later calls on it answer with the same message, and so do events recorded on it and streams that wait for
// them, since OpenCL itself reports a failed dependency only as a number. Thread-safe as device/2 demands: one stream
// is used by one caller at a time, events are queried from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backends/opencl/opencl.h"
#include "core/abi/device.h"

namespace switchyard {

// The first failure of a stream. In-order queues go on after a barrier whose event failed, so that these are watched,
// and the streams that were waited for are asked.
class Fate {
 public:
  // Keeps `status` and `error` unless there was a failure before.
  void Fail(sy_status status, const sy_error& error);
  // The failure that is known already; SY_OK if none is. Copies the message to `error`.
  sy_status Known(sy_error* error);
  // Looks for one, too: at what this stream waits for, and at the streams that it waited for.
  sy_status Tell(sy_error* error) { return Tell(error, kDepth); }
  // A command ended with a negative status: keeps what caused it and tells it.
  sy_status Ended(cl_int execution_status, sy_error* error);
  // `barrier` waits for work of `other` (null: of nobody known).
  void Watch(EventHandle barrier, const std::shared_ptr<Fate>& other);
  // Of the streams that it waited for, which may wait for it: when the stream ends.
  void Forget();

 private:
  static constexpr int kDepth = 3;  // streams may wait for each other in a circle
  sy_status Tell(sy_error* error, int depth);
  std::mutex mutex_;
  sy_status status_ = SY_OK;
  sy_error error_{SY_HEADER(sy_error)};
  std::vector<EventHandle> barriers_;  // not seen to be complete yet
  std::vector<std::shared_ptr<Fate>> dependencies_;
};

class Stream {
 public:
  static sy_status Make(cl_context context, cl_device_id device, std::shared_ptr<Stream>* stream, sy_error* error);
  ~Stream() { fate_->Forget(); }
  cl_command_queue queue() const { return queue_.get(); }
  const std::shared_ptr<Fate>& fate() const { return fate_; }
  // Waits for everything queued; the first failure ever.
  sy_status Drain(sy_error* error);
  // Later work waits for `event`, recorded on a stream with `fate` (null: unknown).
  sy_status WaitFor(cl_event event, const std::shared_ptr<Fate>& fate, sy_error* error);
  // The result of a command that was queued: CL_SUCCESS, or the stream fails.
  sy_status Queued(cl_int code, const char* call, sy_error* error,
                   std::source_location where = std::source_location::current());

 private:
  QueueHandle queue_;
  std::shared_ptr<Fate> fate_ = std::make_shared<Fate>();
};

class Event {
 public:
  sy_status Record(Stream& stream, sy_error* error);
  sy_status Query(sy_error* error);  // SY_IN_PROGRESS before the latest record completed
  sy_status Wait(sy_error* error);
  sy_status Before(Stream& stream, sy_error* error);  // later work on `stream` waits

 private:
  // The latest record, retained for the caller; empty before the first.
  std::pair<EventHandle, std::shared_ptr<Fate>> Latest();
  std::mutex mutex_;
  EventHandle marker_;
  std::shared_ptr<Fate> fate_;
};

}  // namespace switchyard

struct sy_stream {
  std::shared_ptr<switchyard::Stream> stream;
};

struct sy_event {
  switchyard::Event event;
};
