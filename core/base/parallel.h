// Work of the host split over threads that live for one call: for what is done once, such as preparing a run. Work that
// is done in every step belongs to a device.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace switchyard {

// body(i) for each i in [0, count) on up to `threads` threads, the calling one among them, whoever is free taking the
// next. body must not throw. Fewer threads where the system gives no more.
template <typename Body>
void ParallelFor(int threads, int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> others;
  try {
    for (int64_t t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(work);
  } catch (const std::system_error&) {
    // Those that there are do it all.
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace switchyard
