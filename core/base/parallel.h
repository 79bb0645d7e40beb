// Work of the host split over threads that live for one call: for what is done once, such as preparing a run. Work that
// is done in every step belongs to a device.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace switchyard {

// body(i) for each i in [0, count) on up to `threads` threads, the calling one among them, whoever is free taking the
// next. Fewer threads where the system gives no more. What body throws first ends the work, and is thrown here.
template <typename Body>
void ParallelFor(int threads, int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  std::exception_ptr thrown;
  std::mutex mutex;  // of `thrown`
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!thrown) thrown = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(work);
  } catch (const std::system_error&) {
    // Those that there are do it all.
  }
  work();
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace switchyard
