// Runs grids of CUDA thread blocks on the host: blocks one after another, the threads of a block as fibers that switch
// at barriers only. A warp runs as far ahead of the others as barriers allow, the first one in even blocks, the last
// one in odd blocks, so that a missing barrier shows as a wrong result; or, with a seed, blocks run in an order of
// chance, and so do the warps and the lanes between two barriers. A barrier that can never complete, a warp
// operation that names lanes which have exited, and a write beyond the dynamic shared memory (which starts poisoned
// with NaN) end the process with a message: a kernel that does so is wrong on a GPU too. Thread-safe: every host thread
// has its own fibers, stacks and shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace switchyard::emulation {

struct Coordinates {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};

// Of the CUDA thread that runs now; const, because to its code they never change.
[[gnu::const]] const Coordinates& Here();
[[gnu::const]] int Lane();
[[gnu::const]] char* DynamicShared();

void SyncThreads();            // threads that have exited do not count
void SyncWarp(unsigned mask);  // every lane of `mask` must come

// What follows waits for the lanes as SyncWarp does, but is no order of memory.
constexpr size_t kMostShared = 48;
struct Shown {
  const char* of_first;
  size_t distance;
  const char* operator[](int lane) const { return of_first + static_cast<size_t>(lane) * distance; }
};
// Shows `bytes` (at most kMostShared) to the whole warp, of 32 lanes, and returns what each lane shows, until the lane
// shows or exchanges again.
Shown Show(const void* value, size_t bytes);
uint64_t Exchange(unsigned mask, uint64_t value, int from_lane);  // the value that lane `from_lane` passed

// Copies that the running thread has asked for are made when it waits for them, no sooner: who reads before finds what
// was there. From null: zeros.
void CopyLater(void* to, const void* from, size_t bytes);
void CommitCopies();
void WaitForCopies(size_t groups_left);

// The order of blocks and threads in grids that start from now on, of the whole process: 0 as above, else drawn from
// this seed. CUDA_EMULATION_SEED in the environment is where it starts.
extern "C" __attribute__((visibility("default"))) void cudaEmulationShuffle(uint64_t seed);

// Is told what the threads of a grid are allowed to see of each other; belongs to the host thread that runs the grid.
// races.cc has one; where nobody sets a way to make them, nothing is watched.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void GridStarts() = 0;
  virtual void GridEnds() = 0;
  // `own`: memory of the emulation itself, which kernels only read.
  virtual void BlockStarts(size_t threads, size_t shared_bytes, const void* own, size_t own_bytes) = 0;
  virtual void BlockBarrier() = 0;            // every thread of the block has met
  virtual void WarpBarrier(size_t warp) = 0;  // every lane of the warp that is left has met
  // From now on instructions are those of this thread, whose stack is there; or (Pauses) of no thread.
  virtual void Runs(size_t thread, const char* stack, size_t stack_bytes) = 0;
  virtual void Pauses() = 0;
  // The thread that runs has asked for a copy, by the instruction `code`; it has waited for it, and it is made.
  virtual void CopyStarts(void* to, const void* from, size_t bytes, const void* code) = 0;
  virtual void CopyEnds(void* to, size_t bytes, const void* code) = 0;
};
void SetObserver(Observer* (*of_this_thread)());

// Runs `thread` for every thread of the grid, now.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

// The same in order on a stream of the runtime's double; under a capture it becomes a node of the graph.
// cudaErrorInvalidConfiguration for sizes that a GPU refuses.
cudaError_t Enqueue(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                    std::function<void()> thread);

}  // namespace switchyard::emulation
