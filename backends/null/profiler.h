// Spans of launches, for profiler/2. The device clock is the host's steady clock. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/abi/device.h"

namespace switchyard {

uint64_t DeviceClock();  // ns

class Profiler {
 public:
  // A copy of `tag` that lives as long as the device; "" for NULL.
  const char* Keep(const char* tag);
  void Start();
  void Stop();
  void Add(const sy_span& span);  // ignored while stopped
  uint32_t Drain(sy_span* spans, uint32_t capacity);

 private:
  std::mutex mutex_;
  std::set<std::string> tags_;
  std::vector<sy_span> spans_;
  bool running_ = false;
};

}  // namespace switchyard
