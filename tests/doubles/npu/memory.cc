// Device memory: an allocation is an address range that nothing is mapped at, and the bytes elsewhere.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "tests/doubles/npu/simulator.h"

namespace simulator {
namespace {

constexpr size_t kPoisoned = 64 << 20;  // of a larger allocation no more: touching gigabytes takes seconds

struct Block {
  size_t bytes, mapped;
  char* storage;
  int device;
};

std::mutex mutex;
std::map<char*, Block> blocks;       // by device address; guarded by mutex
std::array<size_t, 8> used_bytes{};  // guarded by mutex

size_t TotalBytes() {
  return static_cast<size_t>(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_MEMORY", int64_t{2} << 30));
}

char* Map(size_t bytes, int protection) {
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<char*>(address);
}

aclError NoContext() { return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first"); }

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t) == 0; }

// Both sides of a copy as host pointers.
Outcome Move(void* destination, const void* source, size_t count, aclrtMemcpyKind kind) {
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  char* to = to_device ? Translate(destination, count) : static_cast<char*>(destination);
  const char* from = from_device ? Translate(source, count) : static_cast<const char*>(source);
  if (to == nullptr || from == nullptr)
    return {ACL_ERROR_RT_PARAM_INVALID, "a copy touches memory that is not allocated"};
  if (count == sizeof(uint64_t) && IsAligned(to) && IsAligned(from)) {
    // In one piece, as a value that streams write and wait for meanwhile.
    __atomic_store_n(reinterpret_cast<uint64_t*>(to),
                     __atomic_load_n(reinterpret_cast<const uint64_t*>(from), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
  } else {
    std::memmove(to, from, count);
  }
  return {};
}

Outcome Set(void* address, int32_t value, size_t count) {
  char* to = Translate(address, count);
  if (to == nullptr) return {ACL_ERROR_RT_PARAM_INVALID, "a fill touches memory that is not allocated"};
  std::memset(to, value, count);
  return {};
}

aclError Told(const Outcome& outcome) {
  return outcome.code == ACL_SUCCESS ? ACL_SUCCESS : Fail(outcome.code, outcome.text);
}

}  // namespace

char* Translate(const void* device_address, size_t bytes) {
  auto* address = const_cast<char*>(static_cast<const char*>(device_address));
  const std::lock_guard lock(mutex);
  auto next = blocks.upper_bound(address);
  if (next == blocks.begin()) return nullptr;
  const auto& [begin, block] = *--next;
  const auto offset = static_cast<size_t>(address - begin);
  return offset <= block.bytes && bytes <= block.bytes - offset ? block.storage + offset : nullptr;
}

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclError aclrtMalloc(void** address, size_t size, aclrtMemMallocPolicy) {
  const int device = CurrentDevice();
  if (device < 0) return NoContext();
  if (size == 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMalloc of 0 bytes");
  const std::lock_guard lock(mutex);
  size_t& used = used_bytes[static_cast<size_t>(device)];
  if (size > TotalBytes() - used)
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                std::to_string(size) + " bytes asked for, " + std::to_string(TotalBytes() - used) + " are free");
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (size + page - 1) / page * page;
  char *reserved = Map(mapped, PROT_NONE), *storage = Map(mapped, PROT_READ | PROT_WRITE);
  if (reserved == nullptr || storage == nullptr) {
    if (reserved != nullptr) munmap(reserved, mapped);
    if (storage != nullptr) munmap(storage, mapped);
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the simulator's host is out of memory");
  }
  std::memset(storage, 0xFF, std::min(size, kPoisoned));  // NaN as any float, -1 as any integer
  blocks.emplace(reserved, Block{size, mapped, storage, device});
  used += size;
  *address = reserved;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtFree(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(static_cast<char*>(address));
  if (found == blocks.end()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFree of an address that is not allocated");
  const Block& block = found->second;
  used_bytes[static_cast<size_t>(block.device)] -= block.bytes;
  munmap(found->first, block.mapped);
  munmap(block.storage, block.mapped);
  blocks.erase(found);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  const int device = CurrentDevice();
  if (device < 0) return NoContext();
  const std::lock_guard lock(mutex);
  *total = TotalBytes();
  *free = *total - used_bytes[static_cast<size_t>(device)];
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtMallocHost(void** address, size_t size) {
  if (CurrentDevice() < 0) return NoContext();
  *address = std::malloc(size);
  return *address == nullptr ? Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host is out of memory") : ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtFreeHost(void* address) {
  std::free(address);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtMemcpy(void* destination, size_t room, const void* source, size_t count,
                                aclrtMemcpyKind kind) {
  if (CurrentDevice() < 0) return NoContext();
  if (count > room) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a copy is larger than its destination");
  return Told(Move(destination, source, count, kind));
}

NPU_EXPORT aclError aclrtMemcpyAsync(void* destination, size_t room, const void* source, size_t count,
                                     aclrtMemcpyKind kind, aclrtStream stream) {
  if (count > room) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a copy is larger than its destination");
  if (kind == ACL_MEMCPY_HOST_TO_HOST) return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no copies from host to host");
  return Enqueue(stream, [=] { return Move(destination, source, count, kind); });
}

NPU_EXPORT aclError aclrtMemset(void* address, size_t room, int32_t value, size_t count) {
  if (CurrentDevice() < 0) return NoContext();
  if (count > room) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a fill is larger than its destination");
  return Told(Set(address, value, count));
}

NPU_EXPORT aclError aclrtMemsetAsync(void* address, size_t room, int32_t value, size_t count, aclrtStream stream) {
  if (count > room) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a fill is larger than its destination");
  return Enqueue(stream, [=] { return Set(address, value, count); });
}

NPU_EXPORT aclError aclrtValueWait(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  if (!IsAligned(address)) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a value is 8 bytes at a multiple of 8");
  if (flag != ACL_STREAM_WAIT_VALUE_GEQ)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "the simulator waits for a value that is large enough");
  return Enqueue(stream, [=]() -> Outcome {
    for (;;) {
      const auto* at = reinterpret_cast<const uint64_t*>(Translate(address, sizeof value));
      if (at == nullptr) return {ACL_ERROR_RT_PARAM_INVALID, "a stream waits for a value that is not allocated"};
      if (static_cast<int64_t>(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) >= 0) return {};
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}
