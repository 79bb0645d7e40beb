// The watch for races (tests/doubles/cuda_emulation/races.cc) on kernels with a planted fault of each kind, each beside
// the kernel that lacks it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using switchyard::emulation::cudaEmulationShuffle;
using switchyard::emulation::RunGrid;

constexpr unsigned kThreads = 70;
constexpr size_t kShared = 4 * kThreads * sizeof(int);

// Runs `thread` for every thread of a few blocks and says so, then ends the process.
template <typename F>
void RunAlone(unsigned blocks, F thread) {
  RunGrid(dim3(blocks), dim3(kThreads), kShared, thread);
  std::fprintf(stderr, "no race");
  std::_Exit(0);
}
template <typename F>
void ExpectRace(F thread, const char* why, unsigned blocks = 2) {
  EXPECT_DEATH(RunAlone(blocks, thread), why);
  EXPECT_DEATH((cudaEmulationShuffle(7), RunAlone(blocks, thread)), why);
}
template <typename F>
void ExpectNoRace(F thread, unsigned blocks = 2) {
  EXPECT_EXIT(RunAlone(blocks, thread), testing::ExitedWithCode(0), "no race");
  EXPECT_EXIT((cudaEmulationShuffle(7), RunAlone(blocks, thread)), testing::ExitedWithCode(0), "no race");
}

constexpr char kNoBarrier[] = "a race: no barrier between them", kNoOrder[] = "a race: blocks have no order";
constexpr char kCopy[] = "a race: a copy that was not waited for";

int out[3 * kThreads];  // of the grids, global memory

int Next() { return static_cast<int>((threadIdx.x + 1) % kThreads); }
void Keep(int value) { out[blockIdx.x * kThreads + threadIdx.x] = value; }

TEST(CudaRaces, AWriteAndAReadOfAnotherNeedABarrier) {
  const auto pass = [](bool barrier) {
    return [barrier] {
      SWITCHYARD_DYNAMIC_SHARED(int, numbers);
      numbers[threadIdx.x] = 1;
      if (barrier) __syncthreads();
      Keep(numbers[Next()]);
    };
  };
  ExpectNoRace(pass(true));
  ExpectRace(pass(false), kNoBarrier);
}

TEST(CudaRaces, AReadAndAWriteOfAnotherNeedABarrier) {
  const auto reuse = [](bool barrier) {
    return [barrier] {
      SWITCHYARD_DYNAMIC_SHARED(int, numbers);
      numbers[threadIdx.x] = 1;
      __syncthreads();
      Keep(numbers[Next()]);
      if (barrier) __syncthreads();
      numbers[threadIdx.x] = 2;
    };
  };
  ExpectNoRace(reuse(true));
  ExpectRace(reuse(false), kNoBarrier);
}

TEST(CudaRaces, TwoWritesNeedABarrier) {
  const auto write = [](int other) {
    return [other] {
      __shared__ int numbers[kThreads + 1];  // not dynamic
      numbers[threadIdx.x] = 1;
      if (threadIdx.x == 0) numbers[other] = 2;
      __syncthreads();
      Keep(numbers[threadIdx.x]);
    };
  };
  ExpectNoRace(write(0));
  ExpectNoRace(write(kThreads));
  ExpectRace(write(69), kNoBarrier);
}

TEST(CudaRaces, NeighboursInAWordAreNoRace) {
  ExpectNoRace([] {
    SWITCHYARD_DYNAMIC_SHARED(char, bytes);
    bytes[threadIdx.x] = 1;
    reinterpret_cast<uint16_t*>(bytes + 128)[threadIdx.x] = 2;
    __syncthreads();
    if (threadIdx.x == 3) *reinterpret_cast<int*>(bytes + 4) = 3;
  });
  ExpectRace(
      [] {
        SWITCHYARD_DYNAMIC_SHARED(char, bytes);
        bytes[threadIdx.x] = 1;
        if (threadIdx.x == 3) *reinterpret_cast<int*>(bytes) = 3;
      },
      kNoBarrier);
}

// A shuffle keeps the lanes together and orders no memory.
TEST(CudaRaces, AWarpNeedsItsBarrier) {
  const auto pass = [](bool barrier, unsigned distance) {
    return [barrier, distance] {
      SWITCHYARD_DYNAMIC_SHARED(int, numbers);
      if (threadIdx.x >= 64) return;
      numbers[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
      if (barrier) {
        __syncwarp();
      } else {
        __shfl_xor_sync(~0u, 1, 1);
      }
      Keep(numbers[threadIdx.x ^ distance]);
    };
  };
  ExpectNoRace(pass(true, 5));
  ExpectNoRace(pass(false, 0));
  ExpectRace(pass(false, 5), kNoBarrier);
  ExpectRace(pass(true, 32), kNoBarrier);  // another warp's
}

TEST(CudaRaces, BlocksHaveNoOrder) {
  const auto add = [](bool atomic) {
    return [atomic] {
      if (threadIdx.x != 0) return;
      if (atomic) {
        __atomic_fetch_add(out, 1, __ATOMIC_RELAXED);
      } else {
        out[0] += 1;
      }
    };
  };
  ExpectNoRace(add(true));
  ExpectNoRace(add(false), 1);
  ExpectRace(add(false), kNoOrder);
  ExpectRace([] { Keep(out[(blockIdx.x + 1) % 3 * kThreads + threadIdx.x]); }, kNoOrder, 3);
  ExpectRace(
      [] {
        if (threadIdx.x != 0) return;
        if (blockIdx.x == 0) out[0] = 1;
        if (blockIdx.x == 1) __atomic_fetch_add(out, 1, __ATOMIC_RELAXED);
      },
      kNoOrder);
}

TEST(CudaRaces, ABlockNeedsBarriersForGlobalMemoryToo) {
  const auto pass = [](bool barrier) {
    return [barrier] {
      SWITCHYARD_DYNAMIC_SHARED(int, numbers);
      Keep(1);
      if (barrier) __syncthreads();
      numbers[threadIdx.x] = out[blockIdx.x * kThreads + static_cast<unsigned>(Next())];
    };
  };
  ExpectNoRace(pass(true));
  ExpectRace(pass(false), kNoBarrier);
}

enum class Wait { kNever, kLate, kOnTime };
TEST(CudaRaces, ACopyIsWaitedForBeforeItIsRead) {
  alignas(16) static int from[4 * kThreads];
  const auto copy = [](Wait wait, bool barrier, bool own) {
    return [wait, barrier, own] {
      SWITCHYARD_DYNAMIC_SHARED(int, numbers);
      const int at = 4 * static_cast<int>(threadIdx.x);
      switchyard::CopyAsync(numbers + at, from + at, threadIdx.x % 2 == 0);
      switchyard::CommitCopies();
      if (wait == Wait::kOnTime) switchyard::WaitForCopies<0>();
      if (barrier) __syncthreads();
      Keep(numbers[own ? at : 4 * Next()]);
      if (wait == Wait::kLate) switchyard::WaitForCopies<0>();
    };
  };
  ExpectNoRace(copy(Wait::kOnTime, false, true));
  ExpectNoRace(copy(Wait::kOnTime, true, false));
  ExpectRace(copy(Wait::kLate, false, true), kCopy);
  ExpectRace(copy(Wait::kNever, true, false), kCopy);
  ExpectRace(copy(Wait::kLate, true, false), kCopy);
  ExpectRace(copy(Wait::kOnTime, false, false), kNoBarrier);
}

TEST(CudaRaces, ACopyIntoWhatOthersStillReadIsARace) {
  alignas(16) static int from[4 * kThreads];
  const auto copy = [](bool barrier) {
    return [barrier] {
      SWITCHYARD_DYNAMIC_SHARED(int, numbers);
      const int at = 4 * static_cast<int>(threadIdx.x);
      numbers[at] = 1;
      __syncthreads();
      Keep(numbers[4 * Next()]);
      if (barrier) __syncthreads();
      switchyard::CopyAsync(numbers + at, from + at, true);
      switchyard::CommitCopies();
      switchyard::WaitForCopies<0>();
    };
  };
  ExpectNoRace(copy(true));
  ExpectRace(copy(false), kNoBarrier);
}

// Of two accesses, the report names both instructions.
TEST(CudaRaces, AReportNamesBothLines) {
  ExpectRace(
      [] {
        SWITCHYARD_DYNAMIC_SHARED(int, numbers);
        numbers[threadIdx.x] = 1;
        Keep(numbers[Next()]);
      },
      "races_test.cc(.|\n)*races_test.cc");
}

// What depends on the order shows as other bits.
TEST(CudaRaces, OrdersAreShuffledAndEveryThreadRunsOnce) {
  const auto order = [](uint64_t seed) {
    static std::vector<unsigned> ran;
    ran.clear();
    switchyard::emulation::SetObserver(nullptr);  // all of them write into the list
    cudaEmulationShuffle(seed);
    RunGrid(dim3(3, 2, 2), dim3(kThreads), 0, [] {
      const unsigned block = blockIdx.x + 3 * (blockIdx.y + 2 * blockIdx.z);
      ran.push_back(block * kThreads + threadIdx.x);
    });
    cudaEmulationShuffle(0);
    return ran;
  };
  const auto plain = order(0), shuffled = order(1), again = order(1), other = order(2);
  EXPECT_NE(plain, shuffled);
  EXPECT_EQ(shuffled, again);
  EXPECT_NE(shuffled, other);
  std::vector<unsigned> sorted = shuffled;
  std::sort(sorted.begin(), sorted.end());
  ASSERT_EQ(sorted.size(), 12 * kThreads);
  for (unsigned i = 0; i < sorted.size(); ++i) EXPECT_EQ(sorted[i], i);
}

}  // namespace
