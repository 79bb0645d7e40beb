// Streams, events and captured graphs of the null device. A stream is a queue of commands and one worker thread that
// runs them in order, each after a delay, so that whoever forgets to wait reads stale bytes. Host memory of a copy is
// touched only when the copy runs. The first error of a stream stays: later commands are skipped, and events recorded
// after it fail with it. Thread-safe, except that one stream's commands are queued by one thread at a time (device/2).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/abi/base.h"

namespace switchyard {

class Bound;      // kernel.h
class Recording;  // recording.h
class Semaphore;  // semaphore.h
struct NullKernel;

// A status with its message.
struct Outcome {
  sy_status status = SY_OK;
  sy_error error{SY_HEADER(sy_error)};
  // Copies the message of an error to the caller and returns the status.
  sy_status Tell(sy_error* to) const;
};

// A place in what is being captured.
struct RecordedPlace {
  std::weak_ptr<Recording> recording;
  size_t command = 0;
};

// One record of an event: a point in the stream that was given at the time.
class Point {
 public:
  void Complete(const Outcome& outcome);  // worker side: the stream has come here, with its first error
  Outcome Wait() const;
  Outcome Query() const;  // SY_IN_PROGRESS before it was completed

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable completed_;
  Outcome outcome_{SY_IN_PROGRESS};
};

// A point in a stream, recorded any number of times, in any streams. Waiting is for the latest record at the time of
// asking, whatever is recorded later.
class Event {
 public:
  std::shared_ptr<Point> Record();        // host side: what will complete
  void RecordIn(RecordedPlace place);     // host side: in a capture, where nothing runs
  RecordedPlace recorded_in() const;      // of the last record; nowhere if that runs
  std::shared_ptr<Point> latest() const;  // null: never recorded
  Outcome Wait() const;                   // for the latest record
  Outcome Query() const;                  // of the latest record

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Point> latest_;
  RecordedPlace place_;
};

struct Graph;

// null.host_call/1.
struct HostCall {
  HostCall(sy_status (*given)(void*, sy_error*), void* with) : function(given), context(with) {}
  HostCall(const HostCall&) = delete;
  ~HostCall() {
    if (release != nullptr) release(context);
  }
  sy_status (*const function)(void*, sy_error*);
  void* const context;
  void (*release)(void*) = nullptr;
};

struct Command {
  enum class Kind { kLaunch, kCopy, kFill, kConstants, kRecord, kWait, kSignal, kAwait, kReplay, kCall };
  Kind kind;
  std::shared_ptr<Bound> bound;              // kLaunch
  std::shared_ptr<const NullKernel> kernel;  // kConstants
  sy_place destination{}, source{};          // kCopy; kFill, kConstants: destination
  uint64_t bytes = 0;
  uint8_t value = 0;
  std::shared_ptr<Event> event;  // kRecord, kWait
  std::shared_ptr<Point> point;  // kRecord, kWait; null: an event that was never recorded
  std::shared_ptr<Semaphore> semaphore;  // kSignal, kAwait
  uint64_t count = 0;
  std::shared_ptr<const Graph> graph;    // kReplay
  std::vector<std::shared_ptr<Point>> points;  // kReplay: those of the records in the graph
  std::shared_ptr<const HostCall> call;  // kCall
};

// Launches, copies and fills of device memory, calls, and records of events, replayed in order.
struct Graph {
  std::vector<Command> commands;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // `handle` names it in the profiler's spans.
  Stream(sy_device* device, const sy_stream* handle);
  ~Stream();  // runs what is queued first

  // Runs the command later, or keeps it while the stream is being captured. A wait for an event of a capture joins
  // that.
  sy_status Enqueue(Command command, sy_error* error);
  // Waits for everything queued so far; the first error ever.
  sy_status Drain(sy_error* error);
  // The same for device/2, where it is refused while the stream is being captured.
  sy_status Synchronize(sy_error* error);
  sy_status BeginCapture(sy_error* error);
  sy_status EndCapture(std::shared_ptr<const Graph>* graph, sy_error* error);

 private:
  sy_status SpoilCapture(const char* what, sy_error* error);
  sy_status Record(Command command, sy_error* error);
  void LeaveCapture();
  void Work();
  Outcome Finish(const Command& command, Outcome before);
  sy_status Execute(const Command& command, sy_error* error);

  sy_device* const device_;
  const sy_stream* const handle_;

  std::mutex mutex_;
  std::shared_ptr<Recording> capture_;  // of which the stream is a branch, or null
  size_t branch_ = 0;
  std::condition_variable queued_, executed_;
  std::vector<Command> queue_;
  uint64_t queued_count_ = 0, executed_count_ = 0;
  bool closing_ = false;
  Outcome first_error_;
  std::thread worker_;  // last: starts when all else is there
};

}  // namespace switchyard
