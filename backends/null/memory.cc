#include "backends/null/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/abi/boundary.h"
#include "core/abi/device.h"

namespace switchyard {
namespace {

constexpr uint64_t kNowhere = 0x00F0'0000'0000'0000;
constexpr uint64_t kPoisoned = 64 << 20;  // of a larger allocation no more: touching gigabytes takes seconds
std::atomic<uint64_t> next_handle{kNowhere};

std::shared_ptr<char> Reserve(uint64_t bytes) {
  constexpr uint64_t kUnit = DeviceMemory::kAlignment;
  return {static_cast<char*>(std::aligned_alloc(kUnit, (bytes + kUnit - 1) / kUnit * kUnit)), std::free};
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (const auto& [handle, block] : blocks_)
    if (!block.imported) used_.fetch_sub(block.bytes);
}

sy_buffer* DeviceMemory::Add(Block block) {
  auto* handle = reinterpret_cast<sy_buffer*>(next_handle.fetch_add(1));
  const std::lock_guard lock(mutex_);
  blocks_.emplace(handle, std::move(block));
  return handle;
}

sy_status DeviceMemory::Allocate(uint64_t bytes, bool exportable, sy_buffer** buffer, sy_error* error) {
  if (bytes == 0) return Refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  const uint64_t before = used_.fetch_add(bytes);
  Block block{nullptr, bytes, false, nullptr};
  if (before <= capacity_ && bytes <= capacity_ - before) {
    if (exportable) block.exported = SharedMemory::Make(bytes);
    if (!exportable) block.address = Reserve(bytes);
    if (block.exported) block.address = {block.exported, block.exported->address()};
  }
  if (block.address == nullptr) {
    used_.fetch_sub(bytes);
    return Refuse(error, SY_OUT_OF_MEMORY,
                  Text("alloc of ", bytes, " bytes: ", before, " of ", capacity_, " are in use"));
  }
  std::memset(block.address.get(), 0xFF, std::min(bytes, kPoisoned));
  *buffer = Add(std::move(block));
  return SY_OK;
}

sy_status DeviceMemory::Export(sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes,
                               sy_error* error) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(buffer);
  if (found == blocks_.end() || found->second.exported == nullptr) {
    return Refuse(error, SY_INVALID,
                  "export_memory: expected a buffer of this device that was allocated as exportable");
  }
  return found->second.exported->Describe("null", description, capacity, bytes, error);
}

sy_status DeviceMemory::Import(const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error) {
  std::shared_ptr<const SharedMemory> memory;
  if (const sy_status status = SharedMemory::Open("null", description, bytes, &memory, error); status != SY_OK)
    return status;
  *buffer = Add({{memory, memory->address()}, memory->bytes(), true, nullptr});
  return SY_OK;
}

void DeviceMemory::Free(sy_buffer* buffer) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(buffer);
  if (found == blocks_.end()) return;
  if (!found->second.imported) used_.fetch_sub(found->second.bytes);
  blocks_.erase(found);
}

char* DeviceMemory::Find(const sy_place& place, uint64_t bytes, bool imported_too, sy_error* error) {
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
  if (found->second.imported && !imported_too) {
    Refuse(error, SY_INVALID, "imported memory is for copies and fills, not for kernels");
    return nullptr;
  }
  return found->second.address.get() + place.offset;
}

}  // namespace switchyard
