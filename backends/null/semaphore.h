// A count that the host and streams raise and wait for. What a stream raises after its first error carries that error
// to whoever waits, as an event does, so that nobody waits for work that was skipped. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>

#include "backends/null/stream.h"
#include "core/abi/host_device.h"

namespace switchyard {

class Semaphore {
 public:
  // `before`: the outcome of the work so far. It comes back, or SY_INVALID where the count is `value` or more already.
  Outcome Raise(uint64_t value, const Outcome& before);
  Outcome Query(uint64_t* value) const;
  Outcome Wait(uint64_t value);
  Outcome Wait(uint64_t value, uint64_t timeout_ms);  // SY_TIMEOUT

 private:
  Outcome FirstError() const;

  mutable std::mutex mutex_;
  Outcome first_error_;
  HostCount count_;
};

}  // namespace switchyard
