#include "backends/null/memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/abi/boundary.h"

namespace switchyard {
namespace {

constexpr uint64_t kAlignment = 256, kNowhere = 0x00F0'0000'0000'0000;
constexpr uint64_t kPoisoned = 64 << 20;  // of a larger allocation no more: touching gigabytes takes seconds
std::atomic<uint64_t> next_handle{kNowhere};

char* Aligned(char* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return address + (kAlignment - value % kAlignment) % kAlignment;
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (const auto& [handle, block] : blocks_) used_.fetch_sub(block.bytes);
}

sy_status DeviceMemory::Allocate(uint64_t bytes, sy_buffer** buffer, sy_error* error) {
  if (bytes == 0) return Refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  const uint64_t before = used_.fetch_add(bytes);
  std::unique_ptr<char[]> address;
  if (before <= capacity_ && bytes <= capacity_ - before) address.reset(new (std::nothrow) char[bytes + kAlignment]);
  if (address == nullptr) {
    used_.fetch_sub(bytes);
    return Refuse(error, SY_OUT_OF_MEMORY,
                  Text("alloc of ", bytes, " bytes: ", before, " of ", capacity_, " are in use"));
  }
  std::memset(address.get(), 0xFF, std::min(bytes, kPoisoned) + kAlignment);
  auto* handle = reinterpret_cast<sy_buffer*>(next_handle.fetch_add(1));
  const std::lock_guard lock(mutex_);
  blocks_.emplace(handle, Block{std::move(address), bytes});
  *buffer = handle;
  return SY_OK;
}

void DeviceMemory::Free(sy_buffer* buffer) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(buffer);
  if (found == blocks_.end()) return;
  used_.fetch_sub(found->second.bytes);
  blocks_.erase(found);
}

char* DeviceMemory::Resolve(const sy_place& place, uint64_t bytes, sy_error* error) {
  if (place.buffer == nullptr) {
    if (place.host == nullptr) Refuse(error, SY_INVALID, "a place names neither a buffer nor a host address");
    return static_cast<char*>(place.host);
  }
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(place.buffer);
  if (found == blocks_.end()) {
    Refuse(error, SY_INVALID, "a buffer was freed before the work that uses it, or belongs to another device");
    return nullptr;
  }
  const uint64_t size = found->second.bytes;
  if (place.offset > size || bytes > size - place.offset) {
    Refuse(error, SY_INVALID, Text(bytes, " bytes at offset ", place.offset, " do not lie inside a buffer of ", size));
    return nullptr;
  }
  return Aligned(found->second.address.get()) + place.offset;
}

}  // namespace switchyard
