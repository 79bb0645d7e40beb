// profiler/2: while it runs, every launch keeps the event of its command, whose times the driver knows once it is
// complete. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <set>
#include <string>

#include "backends/opencl/opencl.h"
#include "core/abi/device.h"

namespace switchyard {

class Profiler {
 public:
  // A copy of `tag` that lives as long as the device; "" for NULL.
  const char* Keep(const char* tag);
  void Run(bool running) { running_ = running; }
  bool running() const { return running_; }
  void Add(EventHandle command, const char* tag, const sy_stream* stream);
  // Spans of commands that have completed, oldest first; those that failed have none.
  sy_status Drain(sy_span* spans, uint32_t capacity, uint32_t* count, sy_error* error);

 private:
  struct Launch {
    EventHandle command;
    const char* tag;
    const sy_stream* stream;
  };
  std::atomic<bool> running_{false};
  std::mutex mutex_;
  std::set<std::string> tags_;
  std::deque<Launch> launches_;
};

}  // namespace switchyard
