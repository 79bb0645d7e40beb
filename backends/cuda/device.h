// An opened CUDA device: what the kernels ask of it, and the handles behind the ABI's opaque types. Memory is a device
// pointer; a place (buffer, offset) is pointer + offset. The primary context of the device is used, so that libraries
// in the same process share it. Thread-safe as device/2 demands: fields are fixed at open, tables carry their mutex.
// A device is current per thread: Enter (check.h) is the first line of every entry point.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/check.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

namespace switchyard {
class Blas;      // blas.h: cuBLASLt on one device
class Cudnn;     // cudnn.h: cuDNN on one device
class Profiler;  // profiler.h
}  // namespace switchyard

struct sy_buffer {
  enum Origin {   // what free does
    kAllocated,   // cudaFree
    kExportable,  // the same; no other allocation shares what a handle of it opens
    kForeign,     // nothing: somebody else frees it
    kOpened,      // cudaIpcCloseMemHandle
  };
  char* address = nullptr;  // device pointer
  uint64_t bytes = 0;
  Origin origin = kForeign;
};

namespace switchyard {
// What capture/2 records between begin and end. All calls that concern it are of one thread.
struct Recording {
  std::vector<sy_stream*> streams;  // of begin, and those drawn in since; each names this in turn
  bool spoiled = false;             // something was refused
};
}  // namespace switchyard

struct sy_stream {
  cudaStream_t stream = nullptr;
  std::shared_ptr<switchyard::Recording> recording;  // that it takes part in, until end
};

struct sy_event {
  cudaEvent_t event = nullptr;  // what is waited for, asked and synchronised outside of a capture
  // Its place in the capture that recorded it last, for whoever waits there. CUDA knows places in a graph, which other
  // captured streams can wait for, and nodes that record an event at each replay: one event cannot be both.
  std::mutex mutex;  // guards the rest
  cudaEvent_t place = nullptr;
  std::weak_ptr<switchyard::Recording> recording;  // expired: none that goes on
};

struct sy_device {
  sy_device();
  ~sy_device();

  const sy_instance* instance = nullptr;  // that opened it: its log, its settings
  int32_t index = 0;                      // ordinal
  int sm_count = 0;
  bool deterministic = false;             // only kernels whose results are repeatable bit for bit
  // SWITCHYARD_CUDA_TF32=1: f32 products may round their inputs to TF32, 10 bits of mantissa; nobody gets that without
  // asking.
  bool tf32 = false;
  sy_stream own;  // for callers that pass no stream
  // What a wait for the whole device waits for, besides `own`.
  struct {
    std::mutex mutex;
    std::vector<const sy_stream*> open;                // of callers, until stream_destroy
    std::vector<std::shared_ptr<CUevent_st>> endings;  // behind the last work of those that were destroyed with some
  } streams;
  // On which bind records what it launches (kernel.cc), one kernel at a time.
  struct {
    std::mutex mutex;
    cudaStream_t stream = nullptr;
    bool warned = false;  // guarded by mutex
  } loading;

  // Set at open and never replaced; null where the library is missing, and then `missing` says which and why.
  std::unique_ptr<switchyard::Blas> blas;
  std::unique_ptr<switchyard::Cudnn> cudnn;
  std::string missing;
  std::unique_ptr<switchyard::Profiler> profiler;
};

namespace switchyard {

extern const sy_device_v2 kCudaDevice;  // device.cc, whose functions lie in device.cc, memory.cc and stream.cc
extern const sy_memory_ext_v2 kCudaMemory;
extern const sy_semaphore_v1 kCudaSemaphores;
extern const sy_peer_v1 kCudaPeers;
extern const sy_capture_v2 kCudaCapture;
extern const sy_profiler_v2 kCudaProfiler;
extern const sy_kernel_v2 kCudaKernels;

// For functions that cannot fail by their signature (free, destroy): a failure is logged, unless the process is ending.
void LogFailure(const sy_device& device, cudaError_t code, const char* call);

// Where a place is: a device pointer, or the host's.
inline char* Address(const sy_place& place) {
  return place.buffer ? place.buffer->address + place.offset : static_cast<char*>(place.host);
}

// A small table in device memory that belongs to a kernel or a binding (chunks of a multi-tensor launch). Assign copies
// from the host and waits, so it is for prepare and bind, never for a launch. Freed with its owner.
class DeviceTable {
 public:
  DeviceTable() = default;
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;
  ~DeviceTable();

  sy_status Assign(const sy_device* device, const void* host, size_t bytes, sy_error* error);
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(address_);
  }

 private:
  const sy_device* device_ = nullptr;
  char* address_ = nullptr;
};

}  // namespace switchyard
