// Waiting on a word in shared memory: a short spin while every rank has a core of its own, then the kernel's futex,
// which costs nothing while asleep and wakes at once. Every sleep is bounded, so that callers can look for aborts. The
// words are shared between processes; any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace shm {

struct Bell {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

// Changes the value and wakes whoever sleeps on it.
void Notify(Bell& bell, uint32_t value);
// Adds one to it and wakes.
void Notify(Bell& bell);
// Until the value is no longer `seen`: spins that many times, then sleeps up to a millisecond. True if it changed.
bool WaitForChange(Bell& bell, uint32_t seen, int spins);

}  // namespace shm
