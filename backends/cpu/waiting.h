// How the threads of a team wait for each other: for as long as is worth it they spin, then they sleep in the kernel. A
// thread that sleeps costs tens of microseconds to wake, more on a virtual machine whose idle cores are given back; one
// that spins while another process needs its core delays what it waits for. So the patience depends on whether the
// cores are crowded, which the kernel knows: every few milliseconds a waiting thread asks how long it had to wait for a
// core. Alone, threads spin through every wait of a step; beside other work they sleep almost at once.
// OMP_WAIT_POLICY=active and passive fix the patience. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace switchyard {

// A counter that threads wait on until it moves.
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  // Moves on and wakes whoever sleeps.
  void Advance();
  // Until the value is no longer `seen`.
  void Wait(uint32_t seen);

 private:
  bool Moved(uint32_t seen) const { return value() != seen; }
  bool Spin(uint32_t seen) const;

  alignas(64) std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace switchyard
