// Work split over the OpenMP threads of the device. The split depends on the sizes and the thread count alone, so that
// results repeat.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

namespace switchyard {

// body(begin, end, part) over [0, n) in one contiguous part per thread, boundaries at multiples of `grain`. Each thread
// takes the part that bears its number, where its caches know the data, and then what is left: where another process
// keeps a thread from its core, its part is not waited for. Runs inline where there is only one grain.
template <typename Body>
void ParallelRanges(int threads, int64_t n, int64_t grain, const Body& body) {
  const int64_t grains = (n + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(threads, grains));
  if (team <= 1) {
    if (n > 0) body(int64_t{0}, n, 0);
    return;
  }
  constexpr int kMostShared = 64;  // parts of larger teams stay with their threads
  std::atomic<uint64_t> taken{0};
#pragma omp parallel num_threads(team)
  {
    const int count = omp_get_num_threads(), self = omp_get_thread_num();
    const auto run = [&](int part) {
      const int64_t begin = grains * part / count * grain, end = std::min(n, grains * (part + 1) / count * grain);
      if (begin < end) body(begin, end, part);
    };
    const auto take = [&](int part) { return (taken.fetch_or(uint64_t{1} << part) >> part & 1) == 0; };
    if (count > kMostShared) {
      run(self);
    } else {
      if (take(self)) run(self);
      const uint64_t all = ~uint64_t{0} >> (kMostShared - count);
      for (uint64_t left = all & ~taken.load(); left != 0; left = all & ~taken.load()) {
        const int part = std::countr_zero(left);
        if (take(part)) run(part);
      }
    }
  }
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
#pragma omp parallel num_threads(team)
  for (int64_t i = next++; i < n; i = next++) body(i, omp_get_thread_num());
}

// Elements below which a parallel region costs more than it saves.
constexpr int64_t kParallelElements = 16384;
// Rows of `columns` elements that make one grain.
inline int64_t RowGrain(int64_t columns) {
  return std::max<int64_t>(1, kParallelElements / std::max<int64_t>(1, columns));
}

}  // namespace switchyard
