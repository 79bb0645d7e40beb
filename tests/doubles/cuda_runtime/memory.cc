// Device memory is host memory, each allocation in a mapping of its own: a step behind its end faults, and so does any
// use after it was freed. One that is shared with other processes becomes a file in memory, which they map too. Copies
// are checked against the bounds of the allocations that they touch
// (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>

#include "tests/doubles/cuda_runtime/error.h"
#include "tests/doubles/cuda_runtime/settings.h"
#include "tests/doubles/cuda_runtime/stream.h"

namespace cuda_double {
namespace {

constexpr size_t kAlignment = 256;        // CUDA C++ programming guide, "Device Memory Accesses"
constexpr uint8_t kUninitialised = 0xFF;  // a NaN in every floating-point type
constexpr uint8_t kMargin = 0xA5;         // between an allocation's end and the guard page
constexpr size_t kFreedMappings = 8192;   // that stay reserved, so that a use after free faults

struct Allocation {
  size_t bytes;
  int device;
  bool on_device;  // else pinned host memory
  char* mapping;
  size_t mapped;        // with the guard page
  int file = -1;        // of what other processes may map; -1: they may not
  uint64_t id = 0;      // of what is shared, in the process that allocated it
  int32_t process = 0;  // that allocated it, where it is another one
  int opened = 0;       // how often that was opened here
};

// What stands in a cudaIpcMemHandle_t.
struct Handle {
  uint64_t id;  // of the allocation, in its process
  int32_t process, file;
  uint64_t bytes, body, offset;  // of the allocation; of its mapping without the guard page; where in it it lies
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

struct Memory {  // under Book()
  std::map<char*, Allocation> allocations;
  std::map<int, size_t> used;  // bytes by device
  std::deque<std::pair<char*, size_t>> freed;
};

Memory& TheMemory() {
  static auto& memory = *new Memory;
  return memory;
}

size_t PageBytes() {
  static const size_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The allocation that holds an address, or end().
std::map<char*, Allocation>::iterator Holder(const void* address) {
  auto& allocations = TheMemory().allocations;
  auto next = allocations.upper_bound(const_cast<char*>(static_cast<const char*>(address)));
  if (next == allocations.begin()) return allocations.end();
  --next;
  return static_cast<const char*>(address) < next->first + next->second.bytes ? next : allocations.end();
}

bool IsDevice(const void* address) {
  const auto holder = Holder(address);
  return holder != TheMemory().allocations.end() && holder->second.on_device;
}

// True if the range is host memory, or lies in one allocation.
bool InBounds(const void* address, size_t bytes) {
  const auto holder = Holder(address);
  if (holder == TheMemory().allocations.end()) return address != nullptr;
  return static_cast<const char*>(address) + bytes <= holder->first + holder->second.bytes;
}

cudaError_t Allocate(void** result, size_t bytes, bool on_device) {
  if (result == nullptr) return cudaErrorInvalidValue;
  *result = nullptr;
  std::lock_guard lock(Book());
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  const int device = CurrentDevice();
  size_t& used = TheMemory().used[device];
  if (Strikes("alloc")) return cudaErrorMemoryAllocation;
  const size_t limit = GetSettings().memory_bytes;
  if (on_device && (bytes > limit || used > limit - bytes)) return cudaErrorMemoryAllocation;
  const size_t body = RoundUp(RoundUp(bytes, kAlignment), PageBytes()), mapped = body + PageBytes();
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
  char* const base = static_cast<char*>(mapping);
  if (mprotect(base + body, PageBytes(), PROT_NONE) != 0) {
    munmap(mapping, mapped);
    return cudaErrorMemoryAllocation;
  }
  char* const address = base + body - RoundUp(bytes, kAlignment);
  std::memset(address, kUninitialised, bytes);
  std::memset(address + bytes, kMargin, base + body - address - bytes);
  TheMemory().allocations[address] = {bytes, device, on_device, base, mapped};
  if (on_device) used += bytes;
  *result = address;
  return cudaSuccess;
}

cudaError_t Free(void* address, bool on_device) {
  if (address == nullptr) return cudaSuccess;
  std::lock_guard lock(Book());
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
  Memory& memory = TheMemory();
  const auto found = memory.allocations.find(static_cast<char*>(address));
  if (found == memory.allocations.end() || found->second.on_device != on_device || found->second.opened > 0)
    return cudaErrorInvalidValue;
  const Allocation allocation = found->second;
  memory.allocations.erase(found);
  if (on_device) memory.used[allocation.device] -= allocation.bytes;
  for (const char* margin = static_cast<char*>(address) + allocation.bytes;
       margin < allocation.mapping + allocation.mapped - PageBytes(); ++margin) {
    if (static_cast<uint8_t>(*margin) == kMargin) continue;
    std::fprintf(stderr, "CUDA double: something wrote %zu bytes behind the end of an allocation of %zu bytes\n",
                 static_cast<size_t>(margin - static_cast<char*>(address)) - allocation.bytes, allocation.bytes);
    Lose(cudaErrorIllegalAddress);
    break;
  }
  // The address range stays reserved and unreadable for a long while.
  if (mmap(allocation.mapping, allocation.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED) {
    return cudaErrorInvalidValue;
  }
  if (allocation.file >= 0) close(allocation.file);
  memory.freed.emplace_back(allocation.mapping, allocation.mapped);
  if (memory.freed.size() > kFreedMappings) {
    munmap(memory.freed.front().first, memory.freed.front().second);
    memory.freed.pop_front();
  }
  return Lost();
}

// Under Book(): puts the allocation's bytes into a file that other processes can map. False where the system refuses.
bool Share(Allocation& allocation) {
  if (allocation.file >= 0) return true;
  static uint64_t last_id = 0;
  const size_t body = allocation.mapped - PageBytes();
  const int file = memfd_create("CUDA double", MFD_CLOEXEC);
  if (file < 0) return false;
  if (write(file, allocation.mapping, body) != static_cast<ssize_t>(body) ||
      mmap(allocation.mapping, body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    close(file);
    return false;
  }
  allocation.file = file;
  allocation.id = ++last_id;
  return true;
}

cudaError_t OpenShared(void** result, const Handle& handle) {
  if (handle.process == getpid()) return cudaErrorDeviceUninitialized;
  auto& allocations = TheMemory().allocations;
  for (auto& [address, allocation] : allocations) {
    if (allocation.opened == 0 || allocation.id != handle.id || allocation.process != handle.process) continue;
    ++allocation.opened;
    *result = address;
    return cudaSuccess;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorMapBufferObjectFailed;
  void* const mapping = mmap(nullptr, handle.body, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapping == MAP_FAILED) return cudaErrorMapBufferObjectFailed;
  char* const base = static_cast<char*>(mapping);
  allocations[base + handle.offset] = {handle.bytes, CurrentDevice(), true,           base, handle.body,
                                       -1,           handle.id,       handle.process, 1};
  *result = base + handle.offset;
  return cudaSuccess;
}

// Under Book(): may these bytes be copied so?
cudaError_t CheckCopy(const void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  if (!InBounds(destination, bytes) || !InBounds(source, bytes)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return IsDevice(destination) == to_device && IsDevice(source) == from_device ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return Call([&] { return Allocate(address, bytes, true); });
}

cudaError_t cudaFree(void* address) {
  return Call([&] { return Free(address, true); });
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return Call([&] { return Allocate(address, bytes, false); });
}

cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void* address) {
  return Call([&] { return Free(address, false); });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return Call([&] {
    std::lock_guard lock(Book());
    const auto holder = Holder(host);
    const bool pinned = holder != TheMemory().allocations.end() && !holder->second.on_device;
    if (device == nullptr || flags != 0 || !pinned) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return Call([&] {
    std::lock_guard lock(Book());
    auto& allocations = TheMemory().allocations;
    const auto found = allocations.find(static_cast<char*>(address));  // its base only
    if (handle == nullptr || found == allocations.end() || !found->second.on_device || found->second.opened > 0)
      return cudaErrorInvalidValue;
    Allocation& allocation = found->second;
    if (!Share(allocation)) return cudaErrorMapBufferObjectFailed;
    const Handle made = {allocation.id,
                         getpid(),
                         allocation.file,
                         allocation.bytes,
                         allocation.mapped - PageBytes(),
                         static_cast<uint64_t>(found->first - allocation.mapping)};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &made, sizeof made);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
  return Call([&] {
    if (address == nullptr || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    Handle given;
    std::memcpy(&given, &handle, sizeof given);
    std::lock_guard lock(Book());
    return OpenShared(address, given);
  });
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  return Call([&] {
    std::lock_guard lock(Book());
    auto& allocations = TheMemory().allocations;
    const auto found = allocations.find(static_cast<char*>(address));
    if (found == allocations.end() || found->second.opened == 0) return cudaErrorInvalidValue;
    if (--found->second.opened > 0) return cudaSuccess;
    munmap(found->second.mapping, found->second.mapped);
    allocations.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call([&] {
    if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    *total = GetSettings().memory_bytes;
    *free = *total - TheMemory().used[CurrentDevice()];
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return Call([&] {
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = CheckCopy(destination, source, bytes, kind); error != cudaSuccess) return error;
    if (Strikes("copy")) return cudaErrorInvalidValue;
    return Submit(stream, [=] { std::memmove(destination, source, bytes); });
  });
}

cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(destination, source, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t handle) {
  return Call([&] {
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (bytes != 0 && (Holder(address) == TheMemory().allocations.end() || !InBounds(address, bytes)))
      return cudaErrorInvalidValue;
    return Submit(stream, [=] { std::memset(address, value, bytes); });
  });
}

cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  const cudaError_t error = cudaMemsetAsync(address, value, bytes, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return Call([&] {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    *attributes = cudaPointerAttributes{};
    const auto holder = Holder(address);
    void* const pointer = const_cast<void*>(address);
    if (holder == TheMemory().allocations.end()) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;  // cudaInvalidDeviceId
      attributes->hostPointer = pointer;
      return cudaSuccess;
    }
    attributes->type = holder->second.on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = holder->second.device;
    attributes->devicePointer = pointer;
    attributes->hostPointer = holder->second.on_device ? nullptr : pointer;
    return cudaSuccess;
  });
}

}  // extern "C"
