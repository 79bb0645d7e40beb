// The cpu plugin's own OpenMP entry points (linked into this program in place of libgomp's) and how its teams wait.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <numeric>
#include <thread>
#include <vector>

#include "backends/cpu/openmp.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

TEST(Team, RunsEveryThreadOnceInEveryRegion) {
  std::vector<int> runs(4, 0);
  for (int region = 0; region < 2000; ++region) {
    const int size = 1 + region % 4;
    ParallelRegion(size, [&] {
      EXPECT_EQ(omp_get_num_threads(), size);
      ++runs[omp_get_thread_num()];
    });
  }
  EXPECT_EQ(runs, (std::vector<int>{2000, 1500, 1000, 500}));
  EXPECT_EQ(omp_get_thread_num(), 0);
  EXPECT_FALSE(omp_in_parallel());
}

TEST(Team, ARegionInsideARegionRunsOnItsOwnThread) {
  std::atomic<int> inner{0};
  ParallelRegion(3, [&] {
    const int outer = omp_get_thread_num();
    ParallelRegion(3, [&] {
      EXPECT_EQ(omp_get_num_threads(), 1);
      EXPECT_TRUE(omp_in_parallel());
      ++inner;
    });
    EXPECT_EQ(omp_get_thread_num(), outer);
    EXPECT_EQ(omp_get_num_threads(), 3);
  });
  EXPECT_EQ(inner, 3);
}

TEST(Team, BarriersHoldEverybody) {
  std::vector<int> values(4, 0);
  ParallelRegion(4, [&] {
    const int self = omp_get_thread_num();
    for (int round = 1; round <= 500; ++round) {
      values[self] = round;
      GOMP_barrier();
      EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), 4 * round);
      GOMP_barrier();
    }
  });
}

// As OpenMP says: without a chunk one part a thread, the first ones an iteration longer; with a chunk in turn.
TEST(Team, StaticLoopsAreSplitAsOpenMpSays) {
  for (const auto& [begin, end, step, chunk] :
       {std::array<long, 4>{0, 10, 1, 0}, {0, 10, 1, 3}, {5, 6, 1, 0}, {7, 7, 1, 0}, {10, 0, -3, 0}, {1, 20, 4, 2}}) {
    std::vector<int> owner(64, -1);
    ParallelRegion(4, [&] {
      long first = 0, last = 0;
      for (bool more = GOMP_loop_static_start(begin, end, step, chunk, &first, &last); more;
           more = GOMP_loop_static_next(&first, &last)) {
        for (long i = first; step > 0 ? i < last : i > last; i += step) owner[i] = omp_get_thread_num();
      }
    });
    const long count = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
    for (long n = 0; n < count; ++n) {
      const long wide = count / 4 + 1, wides = count % 4;
      const long expected = chunk > 0          ? n / chunk % 4
                            : n < wides * wide ? n / wide
                                               : wides + (n - wides * wide) / (wide - 1);
      EXPECT_EQ(owner[begin + n * step], expected) << begin << " to " << end << " by " << step << ": iteration " << n;
    }
    EXPECT_EQ(std::count_if(owner.begin(), owner.end(), [](int o) { return o >= 0; }), count);
  }
}

TEST(Team, EachHostThreadHasATeamOfItsOwn) {
  std::atomic<int> sum{0};
  std::vector<std::thread> hosts;
  for (int host = 0; host < 3; ++host) {
    hosts.emplace_back([&] {
      omp_set_num_threads(2);
      for (int region = 0; region < 200; ++region) {
        ParallelRegion(0, [&] { sum += omp_get_num_threads(); });
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(sum, 3 * 200 * 2 * 2);
}

TEST(Team, AForkedChildStartsAgain) {
  std::atomic<int> sum{0};
  ParallelRegion(2, [&] { sum += 1; });
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::atomic<int> inside{0};
    ParallelRegion(2, [&] { inside += 1; });
    _exit(inside == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(sum, 2);
}

// Two threads on one core, which the worker gets only while the host thread does not want it.
TEST(Team, TheHostThreadDoesWhatAnotherHasNotBegun) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0 && core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  constexpr int kRegions = 300;
  int taken_over = 0;
  std::vector<int> parts(2, 0);
  std::thread([&] {
    sched_setaffinity(0, sizeof one, &one);  // the team inherits it
    const std::thread::id host = std::this_thread::get_id();
    ParallelRegion(2, [&] {
      const sched_param none = {};
      if (omp_get_thread_num() == 1) sched_setscheduler(0, SCHED_IDLE, &none);
      GOMP_barrier();
    });
    for (int region = 0; region < kRegions; ++region) {
      ParallelRegion(2, [&] {
        const int number = omp_get_thread_num();
        EXPECT_EQ(omp_get_num_threads(), 2);
        EXPECT_TRUE(omp_in_parallel());
        ++parts[number];
        if (number == 1 && std::this_thread::get_id() == host) ++taken_over;
      });
      EXPECT_EQ(omp_get_thread_num(), 0);
      EXPECT_FALSE(omp_in_parallel());
    }
  }).join();
  EXPECT_EQ(parts, (std::vector<int>{kRegions, kRegions}));
  EXPECT_GT(taken_over, kRegions / 2);
}

// Two threads on one core: whoever spins keeps the core from the one that it waits for, and burns its time.
TEST(Team, SleepsWhereTheCoresAreCrowded) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0 && core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  double ms = 0;
  std::thread([&] {
    sched_setaffinity(0, sizeof one, &one);  // the team inherits it
    const auto region = [] {
      std::atomic<int> work{0};
      ParallelRegion(2, [&] {
        for (int i = 0; i < 200; ++i) work.fetch_add(1, std::memory_order_relaxed);
      });
    };
    for (const auto start = Clock::now(); Milliseconds(start) < 100;) region();  // finds out
    const std::clock_t start = std::clock();  // of the process: neighbours on that core do not count
    for (int i = 0; i < 500; ++i) region();
    ms = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }).join();
  // A spinning thread is stopped at the end of its time slice, of more than a millisecond.
  EXPECT_LT(ms, 250) << "500 regions";
}

}  // namespace
}  // namespace switchyard
