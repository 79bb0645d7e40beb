// @NAME@: a device backend of eight functions. The device here is a piece of host memory; put your driver's calls where
// its are. It offers no kernels, so the engine runs every op on the reference plugin, through copies from and to this
// device: correct, slow, and a place to start. Exceptions must not leave a function of the interface: what may throw
// (the standard library's allocations) runs in Guarded.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/abi/boundary.h"  // SY_FAIL, Guarded, FillStruct, KnowsExtensions, AnswerCreate
#include "core/abi/device.h"
#include "core/abi/plugin.h"

struct sy_device {
  int32_t index;
};

struct sy_buffer {
  struct Freed {
    void operator()(char* address) const { std::free(address); }
  };
  std::unique_ptr<char, Freed> address;
  uint64_t bytes = 0;
};

namespace {

using switchyard::FillStruct;
using switchyard::Guarded;
using switchyard::KnowsExtensions;

constexpr int32_t kDevices = 1;
constexpr uint64_t kAlignment = 256, kMemory = uint64_t{1} << 32;  // bytes of each device
std::atomic<uint64_t> in_use[kDevices];                            // Alloc and Free may be called from any thread

sy_status Count(sy_instance*, int32_t* count, sy_error*) {
  *count = kDevices;  // where the driver or the hardware is missing: SY_FAIL(error, SY_UNSUPPORTED, the reason)
  return SY_OK;
}

sy_status Query(sy_instance*, int32_t index, sy_device_info* info, sy_error* error) {
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;  // as for every struct that the caller hands in
  if (index < 0 || index >= kDevices) return SY_FAIL(error, SY_INVALID, "no device %d: there are %d", index, kDevices);
  sy_device_info filled{};
  std::snprintf(filled.name, sizeof filled.name, "@NAME@ device %d", index);
  constexpr char kName[] = "@NAME@";
  std::memcpy(filled.uuid, kName, std::min<size_t>(sizeof kName, 12));
  std::memcpy(filled.uuid + 12, &index, sizeof index);  // the same for the same device in every process
  filled.memory_bytes = kMemory;
  filled.free_bytes = kMemory - in_use[index];
  filled.alignment = kAlignment;
  filled.address_kind = SY_ADDRESS_OPAQUE;  // the engine never touches our memory itself
  filled.flags = SY_DEVICE_SHAREABLE;       // several processes may drive it at once
  filled.dtypes = 0;                        // those that it has kernels for; copies know only bytes
  FillStruct(info, filled);                 // the caller's struct may be smaller or larger than ours
  return SY_OK;
}

sy_status Open(sy_instance*, int32_t index, const sy_open_options* options, sy_device** device, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (index < 0 || index >= kDevices) return SY_FAIL(error, SY_INVALID, "no device %d: there are %d", index, kDevices);
  return Guarded(error, [&] {
    *device = new sy_device{index};
    return SY_OK;
  });
}

void Close(sy_device* device) { delete device; }

sy_status Alloc(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return SY_FAIL(error, SY_INVALID, "alloc: expected at least 1 byte");
  return Guarded(error, [&]() -> sy_status {
    auto made = std::make_unique<sy_buffer>();
    const uint64_t before = in_use[device->index].fetch_add(bytes);
    if (before <= kMemory && bytes <= kMemory - before) {
      const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      made->address.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
    }
    if (made->address == nullptr) {  // the device goes on working after it
      in_use[device->index] -= bytes;
      return SY_FAIL(error, SY_OUT_OF_MEMORY, "alloc of %llu bytes: %llu of %llu are in use",
                     static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(before),
                     static_cast<unsigned long long>(kMemory));
    }
    made->bytes = bytes;
    *buffer = made.release();
    return SY_OK;
  });
}

void Free(sy_device* device, sy_buffer* buffer) {
  if (buffer != nullptr) in_use[device->index] -= buffer->bytes;
  delete buffer;
}

// The address of `bytes` at a place, in host or device memory, or NULL.
char* Resolve(const sy_place& place, uint64_t bytes) {
  if (place.buffer == nullptr) return static_cast<char*>(place.host);
  const bool inside = place.offset <= place.buffer->bytes && bytes <= place.buffer->bytes - place.offset;
  return inside ? place.buffer->address.get() + place.offset : nullptr;
}

// `stream` is always NULL: we have no streams, so each call has finished when it returns.
sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer && !source.buffer) return SY_FAIL(error, SY_INVALID, "copy: one side must be device memory");
  if (bytes == 0) return SY_OK;
  char* const to = Resolve(destination, bytes);
  const char* const from = Resolve(source, bytes);
  if (to == nullptr || from == nullptr) {
    return SY_FAIL(error, SY_INVALID, "copy: %llu bytes do not lie inside the %s",
                   static_cast<unsigned long long>(bytes), to == nullptr ? "destination" : "source");
  }
  std::memmove(to, from, bytes);
  return SY_OK;
}

sy_status Synchronize(sy_device*, sy_stream*, const sy_synchronize_options* options, sy_error* error) {
  return KnowsExtensions(options, error) ? SY_OK : SY_UNSUPPORTED;
}

const sy_device_v2 kDevice = {.header = SY_HEADER(sy_device_v2),
                              .count = Count,
                              .open = Open,
                              .close = Close,
                              .query = Query,
                              .alloc = Alloc,
                              .free = Free,
                              .copy = Copy,
                              .synchronize = Synchronize};

const void* GetInterface(sy_instance*, const char* name) {
  if (std::strcmp(name, "device/2") == 0) return &kDevice;
  return nullptr;  // "kernel/2" comes next
}

}  // namespace

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  // The instance is what comes first in Count, Open and Query: derive from sy_instance what yours has to keep.
  return switchyard::AnswerCreate(host, plugin, error, {"@NAME@", "0.1.0", "you"}, GetInterface);
}
