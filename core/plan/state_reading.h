// Somebody who reads the state arena while steps run, as a checkpoint does on a device whose copies take the thread
// that asks for them. Before a step writes there, what has not been read is kept elsewhere for the reader, in the
// thread that runs the steps; steps that write none of the state, all of forward and backward but running statistics,
// just go on.
//
// Begin and AboutToWrite from the thread that runs the steps, Begin between two of them; End from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

namespace switchyard {

class StateReading {
 public:
  // keep: puts aside what lies in [begin, end) and has not been read; it must be callable until the next Begin.
  void Begin(std::function<void(uint64_t begin, uint64_t end)> keep) {
    keep_ = std::move(keep);
    reads_ = true;
  }
  void End() { reads_ = false; }

  bool reads() const { return reads_; }
  // Of bytes in [begin, end), which may be none; at once where nobody reads.
  void AboutToWrite(uint64_t begin, uint64_t end) {
    if (reads_ && begin < end) keep_(begin, end);
  }

 private:
  std::atomic<bool> reads_ = false;
  std::function<void(uint64_t, uint64_t)> keep_;
};

}  // namespace switchyard
