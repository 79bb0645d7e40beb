// Runs grids of CUDA thread blocks on the host: blocks one after another, the threads of a block as fibers that switch
// at barriers only. A warp runs as far ahead of the others as barriers allow, the first one in even blocks, the last
// one in odd blocks, so that a missing barrier shows as a wrong result. A barrier that can never complete, a warp
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

// Of the CUDA thread that runs now.
const Coordinates& Here();
int Lane();
char* DynamicShared();

void SyncThreads();            // threads that have exited do not count
void SyncWarp(unsigned mask);  // every lane of `mask` must come
constexpr size_t kMostShared = 32;
// Shows `bytes` (at most kMostShared) to the whole warp; `lanes[l]` is what lane l shows, until the next SyncWarp.
void Show(const void* value, size_t bytes, const char* (&lanes)[32]);
uint64_t Exchange(unsigned mask, uint64_t value, int from_lane);  // the value that lane `from_lane` passed

// Copies that the running thread has asked for are made when it waits for them, no sooner: who reads before finds what
// was there. From null: zeros.
void CopyLater(void* to, const void* from, size_t bytes);
void CommitCopies();
void WaitForCopies(size_t groups_left);

// Runs `thread` for every thread of the grid, now.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

// The same in order on a stream of the runtime's double; under a capture it becomes a node of the graph.
// cudaErrorInvalidConfiguration for sizes that a GPU refuses.
cudaError_t Enqueue(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                    std::function<void()> thread);

}  // namespace switchyard::emulation
