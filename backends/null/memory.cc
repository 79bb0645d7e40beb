#include "backends/null/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/abi/boundary.h"
#include "core/abi/device.h"

namespace switchyard {
namespace {

constexpr uint64_t kNowhere = 0x00F0'0000'0000'0000;
constexpr uint64_t kPoisoned = 64 << 20;  // of a larger allocation no more: touching gigabytes takes seconds
std::atomic<uint64_t> next_handle{kNowhere};

// What export_memory writes: where the file is, and which one it must be.
struct Description {
  char magic[8] = {'S', 'Y', 'N', 'U', 'L', 'L', '0', '1'};
  int64_t process = 0, file = 0;
  uint64_t device = 0, inode = 0, bytes = 0;
};
static_assert(sizeof(Description) <= SY_MEMORY_DESCRIPTION_BYTES);

std::shared_ptr<const int> Owned(int file) {
  if (file < 0) return nullptr;
  return {new int(file), [](const int* owned) {
            close(*owned);
            delete owned;
          }};
}

std::shared_ptr<char> Map(int file, uint64_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) return nullptr;
  return {static_cast<char*>(address), [bytes](char* mapped) { munmap(mapped, bytes); }};
}

// A file of `bytes` that can never shrink under those who map it; null where the system gives none.
std::shared_ptr<const int> MakeFile(uint64_t bytes) {
  std::shared_ptr<const int> file = Owned(memfd_create("switchyard_null", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file == nullptr || ftruncate(*file, static_cast<off_t>(bytes)) != 0 ||
      fcntl(*file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  return file;
}

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
    if (exportable) block.file = MakeFile(bytes);
    if (!exportable || block.file) block.address = exportable ? Map(*block.file, bytes) : Reserve(bytes);
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
  if (capacity < sizeof(Description)) {
    return Refuse(error, SY_INVALID,
                  Text("export_memory: ", capacity, " bytes of room, expected ", sizeof(Description)));
  }
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(buffer);
  if (found == blocks_.end() || found->second.file == nullptr)
    return Refuse(error, SY_INVALID,
                  "export_memory: expected a buffer of this device that was allocated as exportable");
  struct stat status;
  if (fstat(*found->second.file, &status) != 0) return Refuse(error, SY_INTERNAL, std::strerror(errno));
  Description own;
  own.process = getpid();
  own.file = *found->second.file;
  own.device = status.st_dev;
  own.inode = status.st_ino;
  own.bytes = found->second.bytes;
  std::memcpy(description, &own, sizeof own);
  *bytes = sizeof own;
  return SY_OK;
}

sy_status DeviceMemory::Import(const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error) {
  Description given;
  if (bytes != sizeof given || std::memcmp(description, given.magic, sizeof given.magic) != 0)
    return Refuse(error, SY_INVALID, "import_memory: this is not what export_memory wrote");
  std::memcpy(&given, description, sizeof given);
  const std::string path = Text("/proc/", given.process, "/fd/", given.file);
  const std::shared_ptr<const int> file = Owned(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status;
  if (file == nullptr || fstat(*file, &status) != 0 || status.st_dev != given.device || status.st_ino != given.inode ||
      static_cast<uint64_t>(status.st_size) != given.bytes) {
    return Refuse(
        error, SY_UNSUPPORTED,
        Text("import_memory: ", path, " is not, or no longer, the memory of a process of this host and user"));
  }
  std::shared_ptr<char> address = Map(*file, given.bytes);
  if (address == nullptr) return Refuse(error, SY_OUT_OF_MEMORY, std::strerror(errno));
  *buffer = Add({std::move(address), given.bytes, true, nullptr});
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
