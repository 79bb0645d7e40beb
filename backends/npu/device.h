// The NPU as device/2 and memory_ext/2: opaque memory, asynchronous streams, events. AscendCL keeps a current context
// per thread; every entry makes the device's own context current first, so that callers need not know. Thread-safe as
// device/2 demands.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/npu/failure.h"
#include "backends/npu/runtime.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

namespace switchyard {
class Signals;   // timeline.h: what streams are to do with semaphores
class Borrowed;  // peer.h: memory of another device or process
}  // namespace switchyard

struct sy_device {
  sy_device();
  ~sy_device();

  const switchyard::Runtime* acl = nullptr;
  int32_t index = 0;
  aclrtContext context = nullptr;
  bool deterministic = false;

  // Small read-only operands (numbers, index vectors), uploaded once and kept until close, by contents.
  std::mutex mutex;
  std::map<std::string, void*> constants;  // guarded by mutex
  // Guarded by mutex. Whoever waits for all of them keeps them meanwhile.
  std::vector<std::shared_ptr<sy_stream>> streams;
  std::unique_ptr<switchyard::Signals> signals;  // never replaced

  // Makes this device's context the calling thread's.
  sy_status Enter(sy_error* error) const;
  // The device address of a copy of `bytes`, aligned to 64.
  sy_status Constant(const std::string& bytes, void** address, sy_error* error);
};

struct sy_buffer {
  char* address;  // a device address: the host must not follow it
  uint64_t bytes;
  enum Origin { kOwn, kExportable, kForeign /* by import_memory: somebody else frees it */ } origin;
  // Of peer/1. Only queued copies inside the device reach it (peer.cc does the rest by way of memory of its own).
  std::shared_ptr<const switchyard::Borrowed> borrowed = nullptr;
};

struct sy_stream {
  explicit sy_stream(const sy_device& of) : device(of) {}
  sy_stream(const sy_stream&) = delete;
  ~sy_stream();  // waits for what is queued
  const sy_device& device;
  aclrtStream stream = nullptr;
  void* bounce =
      nullptr;  // device memory for copies of borrowed memory, in the order of the stream; made when first used
  const std::shared_ptr<switchyard::StreamFailure> failure = std::make_shared<switchyard::StreamFailure>();
};

struct sy_event {
  // Where in which stream it was recorded last.
  struct Record {
    std::shared_ptr<switchyard::StreamFailure> stream;
    uint64_t place;
  };
  aclrtEvent event = nullptr;
  std::atomic<std::shared_ptr<const Record>> record;  // none: never recorded, and so complete
};

namespace switchyard {

extern const sy_device_v2 kNpuDevice;
extern const sy_memory_ext_v2 kNpuMemory;
extern const sy_kernel_v2 kNpuKernels;
extern const sy_region_v2 kNpuRegions;
extern const sy_semaphore_v1 kNpuSemaphores;
extern const sy_peer_v1 kNpuPeers;

inline constexpr uint32_t kAlignment = 64;  // of aclrtMalloc, documented
inline constexpr char kMemoryKind[] = "npu";

// memory.cc
sy_status Allocate(sy_device*, uint64_t bytes, const sy_alloc_options*, sy_buffer**, sy_error*);
void Free(sy_device*, sy_buffer*);
sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes, const sy_copy_options*,
               sy_error*);
sy_status Fill(sy_device*, sy_stream*, sy_place destination, uint8_t value, uint64_t bytes, const sy_fill_options*,
               sy_error*);
// The device address of a place with room for `bytes`; nullptr and a message otherwise.
char* Resolve(const sy_place& place, uint64_t bytes, sy_error* error);

// stream.cc
sy_status CreateStream(sy_device*, const sy_stream_options*, sy_stream**, sy_error*);
void DestroyStream(sy_device*, sy_stream*);
sy_status Synchronize(sy_device*, sy_stream*, const sy_synchronize_options*, sy_error*);
sy_status CreateEvent(sy_device*, const sy_event_options*, sy_event**, sy_error*);
void DestroyEvent(sy_device*, sy_event*);
sy_status RecordEvent(sy_device*, sy_event*, sy_stream*, sy_error*);
sy_status QueryEvent(sy_device*, sy_event*, sy_error*);
sy_status SynchronizeEvent(sy_device*, sy_event*, sy_error*);
sy_status WaitForEvent(sy_device*, sy_stream*, sy_event*, sy_error*);

}  // namespace switchyard
