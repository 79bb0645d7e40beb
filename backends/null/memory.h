// Device memory that the host cannot reach. A buffer handle is a number disguised as a pointer to nowhere (no address
// of x86-64 or arm64 looks like it), so that dereferencing it crashes, and no function tells where the bytes really
// are; only commands that run on a stream resolve it. The first 64 MiB of new memory are 0xFF: NaN as any
// float, -1 as any integer.
//
// Memory that peer/1 exports is SharedMemory (core/abi/host_device.h). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/abi/base.h"
#include "core/abi/host_device.h"

namespace switchyard {

class DeviceMemory {
 public:
  static constexpr uint64_t kAlignment = 256;
  // `used` counts the bytes in use of the physical device and outlives this object.
  DeviceMemory(uint64_t capacity, std::atomic<uint64_t>& used) : capacity_(capacity), used_(used) {}
  ~DeviceMemory();

  sy_status Allocate(uint64_t bytes, bool exportable, sy_buffer** buffer, sy_error* error);
  sy_status Export(sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes, sy_error* error);
  sy_status Import(const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error);
  void Free(sy_buffer* buffer);
  // The address of `bytes` at a place, in device or host memory; nullptr and a message where the buffer is gone, was
  // never of this device or is too small.
  char* Resolve(const sy_place& place, uint64_t bytes, sy_error* error) { return Find(place, bytes, true, error); }
  // The same for kernels, which do not reach imported memory.
  char* ResolveForKernel(const sy_place& place, uint64_t bytes, sy_error* error) {
    return Find(place, bytes, false, error);
  }

 private:
  struct Block {
    std::shared_ptr<char> address;  // its deleter gives the memory back
    uint64_t bytes;
    bool imported;
    std::shared_ptr<const SharedMemory> exported;  // in which it lies; null unless it is exportable
  };
  char* Find(const sy_place& place, uint64_t bytes, bool imported_too, sy_error* error);
  sy_buffer* Add(Block block);

  const uint64_t capacity_;
  std::atomic<uint64_t>& used_;
  std::mutex mutex_;
  std::unordered_map<sy_buffer*, Block> blocks_;
};

}  // namespace switchyard
