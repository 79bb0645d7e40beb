// What a test sets by environment, read once: the machine that the double pretends to be, and the faults that it shows.
//   CUDA_DOUBLE_DEVICES       number of devices, 0 to 64; default 2. Without a device every call answers
//                             cudaErrorNoDevice
//   CUDA_DOUBLE_NO_DRIVER     1: as where no driver is installed (cudaErrorInsufficientDriver)
//   CUDA_DOUBLE_DRIVER_VERSION, CUDA_DOUBLE_RUNTIME_VERSION  what each answers (12080 is 12.8); default: the headers'
//   CUDA_DOUBLE_MEMORY_BYTES  memory of each device, for this process; default 4 GiB
//   CUDA_DOUBLE_DELAY_US      latency before each operation on a stream, µs; default 0
//   CUDA_DOUBLE_GRAPH_ORDER   "last": a replayed graph runs, of the nodes that are ready, the one recorded last; so a
//                             missing edge shows
//   CUDA_DOUBLE_PEERS         0: no device reaches the memory of another
//   CUDA_DOUBLE_PEER_LIMIT    how many peers a device may reach (cudaErrorTooManyPeers); default 8
//   CUDA_DOUBLE_MEMORY_OPS    0: the driver has no 64-bit stream memory operations (driver.cc)
//   CUDA_DOUBLE_GRAPHS_READY  1: a graph is launched only if it was uploaded and keeps the priorities of its nodes
//   CUDA_DOUBLE_LAZY          1: a launch whose kernel is not loaded yet is refused, as where loading it would wait for
//                             a collective that waits for a peer; a graph loads what it names when it is instantiated
//   CUDA_DOUBLE_CONTEXTS      0: cudaSetDevice gives no thread a context: what a program that forgets it would see
//   CUDA_DOUBLE_COUNTS        1: where the process ends it says on stderr "cuda double: G graphs, K kernels, U urgent
//                             nodes", how many graphs were launched, how many kernels (cudaDoubleLaunch) outside of
//                             graphs, and how many nodes of graphs had a higher priority than the launching stream
//   CUDA_DOUBLE_FAULT         "alloc@3,launch@5,copy@2,graph@1,lost@40": which call of its kind fails, counted from 1
//                             in this process. alloc, and graph of a graph that is instantiated:
//                             cudaErrorMemoryAllocation; launch: cudaErrorLaunchOutOfResources; copy:
//                             cudaErrorInvalidValue; lost: the n-th operation that a stream runs fails with
//                             cudaErrorIllegalAddress, which stays
// Thread-safe.
#ifndef SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_SETTINGS_H_
#define SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_SETTINGS_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>

namespace cuda_double {

struct Settings {
  int devices = 2;
  bool driver = true;
  int driver_version = CUDART_VERSION, runtime_version = CUDART_VERSION;
  size_t memory_bytes = size_t{4} << 30;
  int delay_us = 0;
  bool replay_last_first = false;
  bool peers = true;
  int peer_limit = 8;
  bool graphs_ready = false;
  bool lazy = false;
  bool contexts = true;
};

const Settings& GetSettings();

struct Counts {
  std::atomic<long long> graphs{0}, kernels{0}, urgent{0};
};

Counts& GetCounts();

// Counts one more event of this kind: is it the one that fails?
bool Strikes(const char* kind);

}  // namespace cuda_double

#endif  // SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_SETTINGS_H_
