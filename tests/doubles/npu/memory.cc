// Device memory: an allocation is an address range that nothing is mapped at, and the bytes elsewhere.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tests/doubles/npu/simulator.h"

namespace simulator {
namespace {

constexpr size_t kPoisoned = 64 << 20;  // of a larger allocation no more: touching gigabytes takes seconds

struct Block {
  size_t bytes, mapped;
  char* storage;
  int device;
  // Shared with other processes: the key, and whether it is another's memory. Of the owner: the file of the bytes.
  std::string key = "";
  bool imported = false, joined = false;  // joined: the devices of both were, by the import
  int file = -1;
};

// What aclrtMallocHost gives lies so far behind a line of 64 bytes, for the runtime promises no alignment.
constexpr size_t kBehindLine = 16, kLine = 64;

std::mutex mutex;
std::map<char*, Block> blocks;       // by device address; guarded by mutex
std::array<size_t, 8> used_bytes{};  // guarded by mutex
std::map<char*, size_t> pinned;      // what aclrtMallocHost gave, and its bytes; guarded by mutex
std::atomic<int64_t> allocations{0};

bool IsPinned(const void* host, size_t bytes) {
  auto* address = const_cast<char*>(static_cast<const char*>(host));
  const std::lock_guard lock(mutex);
  auto next = pinned.upper_bound(address);
  if (next == pinned.begin()) return false;
  const auto& [begin, length] = *--next;
  const auto offset = static_cast<size_t>(address - begin);
  return offset <= length && bytes <= length - offset;
}

size_t TotalBytes() {
  return static_cast<size_t>(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_MEMORY", int64_t{2} << 30));
}

char* Map(size_t bytes, int protection) {
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<char*>(address);
}

aclError NoContext() { return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first"); }

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t) == 0; }

// The allocation that holds `bytes` at a device address, by the mutex's holder; nullptr where there is none.
std::map<char*, Block>::value_type* Holder(const void* device_address, size_t bytes) {
  auto* address = const_cast<char*>(static_cast<const char*>(device_address));
  auto next = blocks.upper_bound(address);
  if (next == blocks.begin()) return nullptr;
  auto& found = *--next;
  const auto offset = static_cast<size_t>(address - found.first);
  return offset <= found.second.bytes && bytes <= found.second.bytes - offset ? &found : nullptr;
}

// Where a copy by `device` finds its bytes. What is not its own, or another process's, it reaches where devices were
// joined, by queued copies inside devices alone: of no other does the documentation speak.
char* Reach(const void* device_address, size_t bytes, int device, bool queued_inside, std::string* problem) {
  const std::lock_guard lock(mutex);
  const auto* holder = Holder(device_address, bytes);
  if (holder == nullptr) {
    *problem = "a copy touches memory that is not allocated";
    return nullptr;
  }
  const auto& [begin, block] = *holder;
  const bool own = block.device == device && !block.imported;
  if (!own && !queued_inside)
    *problem = "memory of another device or process takes queued copies inside devices only";
  else if (!own && block.device != device && !block.joined && !MayReach(device, block.device))
    *problem = "device " + std::to_string(device) + " was not allowed to reach device " + std::to_string(block.device);
  return problem->empty() ? block.storage + (static_cast<const char*>(device_address) - begin) : nullptr;
}

Outcome Move(void* destination, const void* source, size_t count, aclrtMemcpyKind kind, int device, bool queued) {
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool queued_inside = queued && kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  std::string problem;
  char* to = to_device ? Reach(destination, count, device, queued_inside, &problem) : static_cast<char*>(destination);
  const char* from =
      from_device ? Reach(source, count, device, queued_inside, &problem) : static_cast<const char*>(source);
  if (!problem.empty()) return {ACL_ERROR_RT_PARAM_INVALID, problem};
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

}  // namespace

char* Translate(const void* device_address, size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto* holder = Holder(device_address, bytes);
  if (holder == nullptr || holder->second.imported) return nullptr;
  return holder->second.storage + (static_cast<const char*>(device_address) - holder->first);
}

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclError aclrtMalloc(void** address, size_t size, aclrtMemMallocPolicy) {
  const int device = CurrentDevice();
  if (device < 0) return NoContext();
  if (IsLost(device)) return kLost;
  if (size == 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMalloc of 0 bytes");
  const int64_t fails = NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_OUT_OF_MEMORY_AT", 0);
  if (fails > 0 && ++allocations == fails)
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the device is out of memory, as it was told to be");
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
  blocks.emplace(reserved, Block{.bytes = size, .mapped = mapped, .storage = storage, .device = device});
  used += size;
  *address = reserved;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtFree(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(static_cast<char*>(address));
  if (found == blocks.end()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFree of an address that is not allocated");
  const Block& block = found->second;
  if (!block.key.empty()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFree of shared memory: aclrtIpcMemClose first");
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
  auto* const line = static_cast<char*>(std::aligned_alloc(kLine, (size + kBehindLine + kLine - 1) / kLine * kLine));
  if (line == nullptr) return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host is out of memory");
  *address = line + kBehindLine;
  const std::lock_guard lock(mutex);
  pinned[static_cast<char*>(*address)] = size;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtFreeHost(void* address) {
  {
    const std::lock_guard lock(mutex);
    if (pinned.erase(static_cast<char*>(address)) == 0)
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFreeHost of memory that aclrtMallocHost did not give");
  }
  std::free(static_cast<char*>(address) - kBehindLine);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtMemcpy(void* destination, size_t room, const void* source, size_t count,
                                aclrtMemcpyKind kind) {
  if (CurrentDevice() < 0) return NoContext();
  if (IsLost(CurrentDevice())) return kLost;
  if (count > room) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a copy is larger than its destination");
  return Told(Move(destination, source, count, kind, CurrentDevice(), /*queued=*/false));
}

NPU_EXPORT aclError aclrtMemcpyAsync(void* destination, size_t room, const void* source, size_t count,
                                     aclrtMemcpyKind kind, aclrtStream stream) {
  if (count > room) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a copy is larger than its destination");
  if (kind == ACL_MEMCPY_HOST_TO_HOST) return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no copies from host to host");
  const int device = CurrentDevice();  // the stream's, or Enqueue refuses
  const aclError code =
      Enqueue(stream, [=] { return Move(destination, source, count, kind, device, /*queued=*/true); });
  const void* host = kind == ACL_MEMCPY_HOST_TO_DEVICE   ? source
                     : kind == ACL_MEMCPY_DEVICE_TO_HOST ? destination
                                                         : nullptr;
  if (code == ACL_SUCCESS && host != nullptr && !IsPinned(host, count)) WaitFor(stream);
  return code;
}

NPU_EXPORT aclError aclrtMemset(void* address, size_t room, int32_t value, size_t count) {
  if (CurrentDevice() < 0) return NoContext();
  if (IsLost(CurrentDevice())) return kLost;
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

// A key names the file of the bytes: process, descriptor, inode; then the bytes, the device, and whether any process
// may import it.
NPU_EXPORT aclError aclrtIpcMemGetExportKey(void* address, size_t size, char* key, size_t length, uint64_t flags) {
  if (CurrentDevice() < 0) return NoContext();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(static_cast<char*>(address));
  if (found == blocks.end() || found->second.imported || size > found->second.bytes || size % page != 0 ||
      length != ACL_IPC_MEM_KEY_BYTES)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "a key is 65 bytes for whole pages of an allocation of this process");
  Block& block = found->second;
  if (!block.key.empty()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "this memory has a key");
  const int file = memfd_create("npu", MFD_CLOEXEC);
  struct stat info {};
  if (file < 0 || ftruncate(file, static_cast<off_t>(block.mapped)) != 0 || fstat(file, &info) != 0 ||
      pwrite(file, block.storage, block.mapped, 0) != static_cast<ssize_t>(block.mapped) ||
      mmap(block.storage, block.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    if (file >= 0) close(file);
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the simulator's host is out of memory");
  }
  std::snprintf(key, length, "%d:%d:%llu:%zu:%d:%d", getpid(), file, static_cast<unsigned long long>(info.st_ino), size,
                block.device, (flags & ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION) != 0 ? 1 : 0);
  block.key = key;
  block.file = file;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtIpcMemImportByKey(void** address, const char* key, uint64_t flags) {
  const int device = CurrentDevice();
  if (device < 0) return NoContext();
  int process = 0, file = 0, owner = 0, anybody = 0;
  unsigned long long inode = 0;
  size_t bytes = 0;
  if (std::sscanf(key, "%d:%d:%llu:%zu:%d:%d", &process, &file, &inode, &bytes, &owner, &anybody) != 6)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "that is no key");
  if (process == getpid()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "a key is for other processes");
  if (anybody == 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "this process is not on the key's list");
  const std::lock_guard lock(mutex);
  for (const auto& [begin, block] : blocks) {
    if (block.imported && block.key == key) return Fail(ACL_ERROR_RT_PARAM_INVALID, "this process has the key open");
  }
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  void* storage = MAP_FAILED;
  if (opened >= 0 && fstat(opened, &info) == 0 && info.st_ino == inode && static_cast<size_t>(info.st_size) >= bytes)
    storage = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  if (opened >= 0) close(opened);
  if (storage == MAP_FAILED) return Fail(ACL_ERROR_RT_PARAM_INVALID, "the memory of the key is not there any more");
  char* reserved = Map(bytes, PROT_NONE);
  if (reserved == nullptr) {
    munmap(storage, bytes);
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the simulator's host is out of memory");
  }
  blocks.emplace(reserved, Block{.bytes = bytes,
                                 .mapped = bytes,
                                 .storage = static_cast<char*>(storage),
                                 .device = owner,
                                 .key = key,
                                 .imported = true,
                                 .joined = (flags & ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS) != 0});
  *address = reserved;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtIpcMemClose(const char* key) {
  if (CurrentDevice() < 0) return NoContext();
  const std::lock_guard lock(mutex);
  const auto found =
      std::find_if(blocks.begin(), blocks.end(), [&](const auto& each) { return each.second.key == key; });
  if (*key == '\0' || found == blocks.end()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "no such key is open here");
  Block& block = found->second;
  if (block.imported) {
    munmap(found->first, block.mapped);
    munmap(block.storage, block.mapped);
    blocks.erase(found);
  } else {
    close(block.file);
    block.key.clear();
    block.file = -1;
  }
  return ACL_SUCCESS;
}
