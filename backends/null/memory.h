// Device memory that the host cannot reach. A buffer handle is a number disguised as a pointer to nowhere (no address
// of x86-64 or arm64 looks like it), so that dereferencing it crashes, and no function tells where the bytes really
// are; only commands that run on a stream resolve it. The first 64 MiB of new memory are 0xFF: NaN as any
// float, -1 as any integer. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/abi/base.h"

namespace switchyard {

class DeviceMemory {
 public:
  // `used` counts the bytes in use of the physical device and outlives this object.
  DeviceMemory(uint64_t capacity, std::atomic<uint64_t>& used) : capacity_(capacity), used_(used) {}
  ~DeviceMemory();

  sy_status Allocate(uint64_t bytes, sy_buffer** buffer, sy_error* error);
  void Free(sy_buffer* buffer);
  // The address of `bytes` at a place, in device or host memory; nullptr and a message where the buffer is gone, was
  // never of this device or is too small.
  char* Resolve(const sy_place& place, uint64_t bytes, sy_error* error);

 private:
  struct Block {
    std::unique_ptr<char[]> address;
    uint64_t bytes;
  };
  const uint64_t capacity_;
  std::atomic<uint64_t>& used_;
  std::mutex mutex_;
  std::unordered_map<sy_buffer*, Block> blocks_;
};

}  // namespace switchyard
