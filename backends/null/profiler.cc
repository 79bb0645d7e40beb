#include "backends/null/profiler.h"

#include <algorithm>
#include <chrono>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

namespace switchyard {

uint64_t DeviceClock() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

const char* Profiler::Keep(const char* tag) {
  const std::lock_guard lock(mutex_);
  return tags_.insert(tag ? tag : "").first->c_str();
}

void Profiler::Start() {
  const std::lock_guard lock(mutex_);
  running_ = true;
}

void Profiler::Stop() {
  const std::lock_guard lock(mutex_);
  running_ = false;
}

void Profiler::Add(const sy_span& span) {
  const std::lock_guard lock(mutex_);
  if (running_) spans_.push_back(span);
}

uint32_t Profiler::Drain(sy_span* spans, uint32_t capacity) {
  const std::lock_guard lock(mutex_);
  const size_t count = std::min<size_t>(capacity, spans_.size());
  std::copy_n(spans_.begin(), count, spans);
  spans_.erase(spans_.begin(), spans_.begin() + static_cast<int64_t>(count));
  return static_cast<uint32_t>(count);
}

namespace {

sy_status Start(sy_device* device, sy_error*) {
  device->profiler.Start();
  return SY_OK;
}

sy_status Drain(sy_device* device, sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns,
                sy_error*) {
  *count = device->profiler.Drain(spans, capacity);
  *host_minus_device_ns = 0;
  return SY_OK;
}

sy_status Stop(sy_device* device, sy_error*) {
  device->profiler.Stop();
  return SY_OK;
}

}  // namespace

const sy_profiler_v2 kNullProfiler = {
    .header = SY_HEADER(sy_profiler_v2), .start = Start, .drain = Drain, .stop = Stop};

}  // namespace switchyard
