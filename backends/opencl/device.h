// An opened OpenCL device: context, streams, compiled programs, and memory as (cl_mem, byte offset). Kernels take every
// tensor as a buffer and an offset, since sub-buffers are aligned more coarsely than the planner's offsets. On a CPU
// device with a thread count, a sub-device of as many compute units is opened. Thread-safe as device/2 demands.
#pragma once

#include <atomic>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/opencl/catalog.h"
#include "backends/opencl/profiler.h"
#include "backends/opencl/program.h"
#include "backends/opencl/stream.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

struct sy_buffer {
  switchyard::MemoryHandle memory;
  uint64_t bytes;
  std::shared_ptr<const bool> alive = std::make_shared<bool>(true);  // bindings see it expire
};

struct sy_device {
  const sy_instance* instance = nullptr;  // that opened it
  switchyard::DeviceHandle part;          // the sub-device, where there is one
  cl_device_id id = nullptr;
  int32_t index = 0;
  switchyard::Traits traits;
  switchyard::ContextHandle context;
  switchyard::ProgramCache programs;
  switchyard::Profiler profiler;
  std::mutex mutex;
  std::vector<std::weak_ptr<switchyard::Stream>> streams;  // guarded by mutex
  std::map<void*, switchyard::MemoryHandle> host_memory;   // mapped; guarded by mutex
  std::shared_ptr<switchyard::Stream> own;                 // for callers without a stream
  std::mutex own_mutex;
  // How kernels are shaped. On a CPU a work-group is one work-item that runs over vectors; elsewhere it is `lanes`
  // work-items of one element each.
  uint32_t lanes = 1, width = 1;
  bool grouped() const { return lanes > 1; }
};

namespace switchyard {

extern const sy_device_v2 kOpenClDevice;
extern const sy_kernel_v2 kOpenClKernels;
extern const sy_memory_ext_v2 kOpenClMemory;
extern const sy_profiler_v2 kOpenClProfiler;
extern const sy_semaphore_v1 kOpenClSemaphores;

// SY_INVALID, with a message, unless `bytes` at `place` lie inside its device buffer.
sy_status CheckPlace(const sy_place& place, uint64_t bytes, const char* what, sy_error* error);

// Runs submit(stream): on `stream`, or on the device's own and then waits for it.
template <typename Submit>
sy_status OnStream(sy_device* device, sy_stream* stream, sy_error* error, Submit submit) {
  if (stream) {
    if (const sy_status failed = stream->stream->fate()->Known(error); failed != SY_OK) return failed;
    return submit(*stream->stream);
  }
  const std::lock_guard lock(device->own_mutex);
  if (const sy_status status = submit(*device->own); status != SY_OK) return status;
  return device->own->Drain(error);
}

}  // namespace switchyard
