// The faults of semaphore/1.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/conformance/faulty_plugin.h"

namespace {

const sy_semaphore_v1* base_semaphores = nullptr;
std::atomic<uint64_t> last_signal{0};

sy_status CreateSemaphore(sy_device* device, const sy_semaphore_options* options, sy_semaphore** semaphore,
                          sy_error* error) {
  if (Fault("ignores_extensions")) options = nullptr;
  if (Fault("keeps_semaphores")) (void)dup(0);
  last_signal = 0;
  return base_semaphores->create(device, options, semaphore, error);
}

sy_status SignalCount(sy_device* device, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  last_signal = value;
  if (Fault("raises_without_a_lock")) {
    uint64_t count = 0;
    base_semaphores->query(device, semaphore, &count, nullptr);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (count < value) (void)base_semaphores->signal(device, semaphore, value, nullptr);
    return count < value ? SY_OK : SY_INVALID;
  }
  const bool deaf = Fault("raises_twice");
  const sy_status status = base_semaphores->signal(device, semaphore, value, deaf ? nullptr : error);
  return deaf && status == SY_INVALID ? SY_OK : status;
}

sy_status QueryCount(sy_device* device, sy_semaphore* semaphore, uint64_t* value, sy_error* error) {
  const sy_status status = base_semaphores->query(device, semaphore, value, error);
  if (Fault("lets_counts_fall")) *value = last_signal;
  return status;
}

sy_status WaitForCount(sy_device* device, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms,
                       sy_error* error) {
  if (Fault("wakes_everybody")) value = std::min<uint64_t>(value, 1);
  const bool endless = Fault("forgets_time_limits");
  const sy_status status = base_semaphores->wait(device, semaphore, value, timeout_ms, endless ? nullptr : error);
  if (endless && status == SY_TIMEOUT) return SY_OK;
  return Fault("is_deaf_to_failures") && status != SY_OK ? SY_TIMEOUT : status;
}

sy_status StreamSignal(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  last_signal = value;
  return Fault("signals_at_once") ? base_semaphores->signal(device, semaphore, value, error)
                                  : base_semaphores->stream_signal(device, stream, semaphore, value, error);
}

sy_status StreamWaitForCount(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value,
                             sy_error* error) {
  if (Fault("waits_for_no_count")) return SY_OK;
  if (Fault("goes_on_too_soon")) value = std::min<uint64_t>(value, 1);
  return base_semaphores->stream_wait(device, stream, semaphore, value, error);
}

}  // namespace

const sy_semaphore_v1* FaultySemaphores(const sy_semaphore_v1* base) {
  static sy_semaphore_v1 faulty{};
  if (base == nullptr) return nullptr;
  base_semaphores = base;
  faulty = *base;
  faulty.create = CreateSemaphore;
  faulty.signal = SignalCount;
  faulty.query = QueryCount;
  faulty.wait = WaitForCount;
  faulty.stream_signal = StreamSignal;
  faulty.stream_wait = StreamWaitForCount;
  return &faulty;
}
