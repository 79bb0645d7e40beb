// device/2's alloc, free, copy and fill on plain cudaMalloc (the core allocates whole arenas before the first step, so
// that a stream-ordered pool would have nothing to do), and memory_ext/2: pinned host memory, device pointers for NCCL,
// buffers over memory that NCCL owns. Copies are enqueued on the caller's stream; without one on the device's own, and
// waited for. Thread-safe.
#pragma once

#include "backends/cuda/device.h"

namespace switchyard {

constexpr char kMemoryKind[] = "cuda";  // as sy_device_info.memory_kind names it

sy_status Allocate(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                   sy_error* error);
void Free(sy_device* device, sy_buffer* buffer);
// peer.cc: memory that was allocated as exportable is freed; a description of it is worth nothing any more.
void ForgetExport(const sy_buffer& buffer);
sy_status Copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error);
sy_status Fill(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error);

}  // namespace switchyard
