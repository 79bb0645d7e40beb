// profiler/2: a pair of timed events around every launch while it runs. The device clock counts nanoseconds from
// `start`; CUDA gives differences of events as float milliseconds, so the reference event moves along with the spans to
// keep their resolution (0.5 µs). Launches inside a capture are not timed, the replay of the captured graph is.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backends/cuda/device.h"

namespace switchyard {

class Profiler {
 public:
  explicit Profiler(const sy_device& device) : device_(device) {}
  ~Profiler();

  // A copy of `tag` that lives as long as the device.
  const char* Keep(const char* tag);
  bool running() const { return running_.load(std::memory_order_relaxed); }
  sy_status Start(sy_error* error);
  void Stop() { running_ = false; }
  // Copies up to `capacity` spans whose work has finished; the rest stays.
  sy_status Drain(sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns, sy_error* error);

 private:
  friend class Span;
  struct Pending {
    const char* tag = nullptr;
    const sy_stream* stream = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  // Records an event on `stream`; null where it is being captured or CUDA refuses.
  cudaEvent_t Mark(cudaStream_t stream);
  void Add(const Pending& pending);
  void Recycle(cudaEvent_t event);

  const sy_device& device_;
  std::atomic<bool> running_{false};
  std::mutex mutex_;  // guards what follows
  std::set<std::string> tags_;
  std::vector<Pending> pending_;
  std::vector<cudaEvent_t> idle_;
  cudaEvent_t reference_ = nullptr;
  double reference_ns_ = 0;  // device clock of `reference_`
  uint64_t host_minus_device_ns_ = 0;
};

// Times the work that is enqueued on `target` while it lives, if the profiler runs.
class Span {
 public:
  Span(Profiler& profiler, const char* tag, const sy_stream* stream, cudaStream_t target)
      : profiler_(profiler), target_(target) {
    if (profiler.running()) pending_ = {tag, stream, profiler.Mark(target), nullptr};
  }
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Profiler& profiler_;
  const cudaStream_t target_;
  Profiler::Pending pending_;
};

}  // namespace switchyard
