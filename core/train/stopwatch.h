// Seconds since its making, by the steady clock. Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>

namespace switchyard {

class Stopwatch {
 public:
  // Never 0, so that it may be divided by.
  double Seconds() const {
    return std::max(1e-9, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace switchyard
