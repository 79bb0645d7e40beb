// What somebody who does not answer may still use is never given back. Thread-safe.
#pragma once

#include <mutex>
#include <vector>

namespace switchyard {

// Whoever looks for leaks finds it here.
inline void KeepForever(const void* memory) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::vector<const void*>;
  const std::lock_guard lock(mutex);
  kept.push_back(memory);
}

}  // namespace switchyard
