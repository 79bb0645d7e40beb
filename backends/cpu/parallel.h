// Work split over the threads of the device. The split depends on the sizes and the thread count alone, so that
// results repeat.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backends/cpu/openmp.h"

namespace switchyard {

// body(begin, end, thread) over [0, n) in one contiguous part per thread, boundaries at multiples of `grain`. Runs
// inline where there is only one grain.
template <typename Body>
void ParallelRanges(int threads, int64_t n, int64_t grain, const Body& body) {
  const int64_t grains = (n + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(threads, grains));
  if (team <= 1) {
    if (n > 0) body(int64_t{0}, n, 0);
    return;
  }
  ParallelRegion(team, [&] {
    const int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t begin = grains * thread / count * grain, end = std::min(n, grains * (thread + 1) / count * grain);
    if (begin < end) body(begin, end, static_cast<int>(thread));
  });
}

// body(i, thread) for each i in [0, n), whoever is free taking the next: for pieces whose results do not meet.
template <typename Body>
void ParallelPieces(int threads, int64_t n, const Body& body) {
  const int team = static_cast<int>(std::min<int64_t>(threads, n));
  if (team <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  ParallelRegion(team, [&] {
    for (int64_t i = next++; i < n; i = next++) body(i, omp_get_thread_num());
  });
}

// Elements below which a parallel region costs more than it saves.
constexpr int64_t kParallelElements = 16384;
// Rows of `columns` elements that make one grain.
inline int64_t RowGrain(int64_t columns) {
  return std::max<int64_t>(1, kParallelElements / std::max<int64_t>(1, columns));
}

}  // namespace switchyard
