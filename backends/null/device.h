// The null device: opaque, asynchronous, delayed and slow on purpose; several of them, so that code which assumes host
// pointers, copies that finish at once or a single device fails in the ordinary tests. Settings, each of the instance
// that opened the device: NULL_DEVICES (2), NULL_MEMORY (bytes per device, 2 GiB), NULL_DELAY_US (before every command,
// 20), NULL_COPY_MB_S (of copies from device memory to device memory; 0: no limit), NULL_FAIL_AT (n: the
// n-th launch of an opened device fails; never), NULL_LINE_BYTES (copy_granularity, 1), NULL_GRAPH_LAST (1: of what
// edges leave open, a replay does last what stood on the stream of `begin`; else first). The instances drive the same
// devices: what one allocates another lacks. Thread-safe as device/2 demands.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/null/host_call.h"
#include "backends/null/memory.h"
#include "backends/null/profiler.h"
#include "backends/null/stream.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

struct sy_stream {
  std::shared_ptr<switchyard::Stream> stream;
};

struct sy_event {
  std::shared_ptr<switchyard::Event> event = std::make_shared<switchyard::Event>();
};

struct sy_device {
  sy_device(const sy_instance& instance, int32_t index);
  const int32_t index;
  const std::chrono::microseconds delay;
  const int64_t copy_mb_s;  // 0: no limit
  const int64_t fail_at;
  const uint64_t line_bytes;
  const bool last_branch_first;  // in replays
  std::atomic<int64_t> launches{0};
  switchyard::DeviceMemory memory;
  switchyard::Profiler profiler;
  std::mutex mutex;
  std::vector<std::weak_ptr<switchyard::Stream>> streams;  // guarded by mutex
  sy_stream own;  // for callers that pass no stream; last: its worker uses the rest
};

namespace switchyard {

extern const sy_device_v2 kNullDevice;
extern const sy_kernel_v2 kNullKernels;
extern const sy_capture_v2 kNullCapture;
extern const sy_profiler_v2 kNullProfiler;
extern const sy_semaphore_v1 kNullSemaphores;
extern const sy_peer_v1 kNullPeer;
extern const sy_null_host_call_v1 kNullHostCall;

// Queues on `stream`; without one, queues on the device's own stream and waits.
sy_status Submit(sy_device* device, sy_stream* stream, Command command, sy_error* error);

}  // namespace switchyard
