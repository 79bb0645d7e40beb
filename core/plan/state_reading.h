// Somebody who reads the state arena while steps run, as a checkpoint does on a device whose copies take the thread
// that asks for them: from the first byte to the last. A step that writes bytes there waits until they are read; steps
// that write none of the state, all of forward and backward but running statistics, go on. Begin from the thread that
// runs the steps, between two of them; Reach and End from one other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

namespace switchyard {

class StateReading {
 public:
  void Begin() { reached_ = 0; }
  // All bytes before `end` are read.
  void Reach(uint64_t end) {
    {
      const std::lock_guard lock(mutex_);
      reached_ = end;
    }
    moved_.notify_all();
  }
  void End() { Reach(kEverything); }

  bool reads() const { return reached_ != kEverything; }
  // Sleeps until all bytes before `end` are read; at once where nobody reads.
  void Await(uint64_t end) {
    if (reached_ >= end) return;
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return reached_ >= end; });
  }

 private:
  static constexpr uint64_t kEverything = std::numeric_limits<uint64_t>::max();
  std::atomic<uint64_t> reached_{kEverything};
  std::mutex mutex_;
  std::condition_variable moved_;
};

}  // namespace switchyard
