#include "backends/reference/device.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "core/abi/boundary.h"

namespace switchyard {

namespace {

constexpr uint32_t kAlignment = 64;
constexpr int32_t kMostDevices = 1024;
constexpr char kHostMemory[] = "host";  // its memory kind

std::array<std::atomic<uint64_t>, kMostDevices> allocated;  // bytes, per device: the instances share its memory

int32_t DeviceCount(const sy_instance& instance) {
  return static_cast<int32_t>(std::min<int64_t>(instance.NumberSetting("CPU_DEVICES", 1), kMostDevices));
}

uint64_t MemoryBytes(const sy_instance& instance) {
  static const auto installed = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return static_cast<uint64_t>(instance.NumberSetting("REFERENCE_MEMORY", installed));
}

bool Exists(const sy_instance& instance, int32_t index, sy_error* error) {
  const int32_t count = DeviceCount(instance);
  if (index >= 0 && index < count) return true;
  Refuse(error, SY_INVALID, Text("no device ", index, ": there are ", count));
  return false;
}

sy_status CountDevices(sy_instance* instance, int32_t* count, sy_error*) {
  *count = DeviceCount(*instance);
  return SY_OK;
}

sy_status OpenDevice(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
                     sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!Exists(*instance, index, error)) return SY_INVALID;
  *device = new (std::nothrow) sy_device{index, MemoryBytes(*instance)};
  return *device ? SY_OK : Refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
}

void CloseDevice(sy_device* device) { delete device; }

sy_status QueryDevice(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  if (!Exists(*instance, index, error)) return SY_INVALID;
  sy_device_info filled{};
  std::snprintf(filled.name, sizeof filled.name, "host cores (reference)");
  gethostname(reinterpret_cast<char*>(filled.uuid), 12);  // one host, one set of cores
  std::memcpy(filled.uuid + 12, &index, sizeof index);
  filled.memory_bytes = MemoryBytes(*instance);
  filled.free_bytes = filled.memory_bytes - std::min(filled.memory_bytes, allocated[static_cast<size_t>(index)].load());
  filled.alignment = kAlignment;
  filled.address_kind = SY_ADDRESS_HOST;
  filled.flags = SY_DEVICE_SHAREABLE | SY_DEVICE_CPU_CORES;
  filled.dtypes = (1u << SY_DTYPE_COUNT) - 1;
  std::snprintf(filled.memory_kind, sizeof filled.memory_kind, "%s", kHostMemory);
  FillStruct(info, filled);
  return SY_OK;
}

sy_status Allocate(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                   sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return Refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  std::atomic<uint64_t>& used = allocated[static_cast<size_t>(device->index)];
  const uint64_t before = used.fetch_add(bytes), limit = device->memory_limit;
  void* memory = nullptr;
  const bool fits = before <= limit && bytes <= limit - before && posix_memalign(&memory, kAlignment, bytes) == 0;
  auto* made = fits ? new (std::nothrow) sy_buffer{static_cast<char*>(memory), bytes, true, device->index} : nullptr;
  if (made == nullptr) {
    used.fetch_sub(bytes);
    std::free(memory);
    return Refuse(error, SY_OUT_OF_MEMORY, Text("alloc of ", bytes, " bytes: ", before, " of ", limit, " are in use"));
  }
  *buffer = made;
  return SY_OK;
}

void Free(sy_device*, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  if (buffer->owned) {
    allocated[static_cast<size_t>(buffer->device)].fetch_sub(buffer->bytes);
    std::free(buffer->address);
  }
  delete buffer;
}

sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer && !source.buffer) return Refuse(error, SY_INVALID, "copy: one side must be device memory");
  if (bytes == 0) return SY_OK;
  char* to = Resolve(destination, bytes, error);
  const char* from = to ? Resolve(source, bytes, error) : nullptr;
  if (from == nullptr) return SY_INVALID;
  std::memmove(to, from, bytes);
  return SY_OK;
}

sy_status Synchronize(sy_device*, sy_stream*, const sy_synchronize_options* options, sy_error* error) {
  return KnowsExtensions(options, error) ? SY_OK : SY_UNSUPPORTED;
}

sy_status Fill(sy_device*, sy_stream*, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer) return Refuse(error, SY_INVALID, "fill: expected device memory");
  char* to = Resolve(destination, bytes, error);
  if (to == nullptr) return SY_INVALID;
  std::memset(to, value, bytes);
  return SY_OK;
}

sy_status NativeAddress(sy_device*, sy_buffer* buffer, void** address, sy_error*) {
  *address = buffer->address;
  return SY_OK;
}

sy_status Import(sy_device* device, void* address, const char* memory_kind, uint64_t bytes, sy_buffer** buffer,
                 sy_error* error) {
  if (memory_kind == nullptr || std::strcmp(memory_kind, kHostMemory) != 0) {
    return Refuse(error, SY_UNSUPPORTED,
                  Text("import_memory: only ", kHostMemory, " memory, found ", memory_kind ? memory_kind : "no kind"));
  }
  if (address == nullptr || bytes == 0)
    return Refuse(error, SY_INVALID, "import_memory: expected an address and at least 1 byte");
  *buffer = new (std::nothrow) sy_buffer{static_cast<char*>(address), bytes, false, device->index};
  return *buffer ? SY_OK : Refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
}

}  // namespace

char* Resolve(const sy_place& place, uint64_t bytes, sy_error* error) {
  if (place.buffer == nullptr) {
    if (place.host == nullptr) Refuse(error, SY_INVALID, "a place names neither a buffer nor a host address");
    return static_cast<char*>(place.host);
  }
  if (place.offset > place.buffer->bytes || bytes > place.buffer->bytes - place.offset) {
    Refuse(error, SY_INVALID,
           Text(bytes, " bytes at offset ", place.offset, " do not lie inside a buffer of ", place.buffer->bytes));
    return nullptr;
  }
  return place.buffer->address + place.offset;
}

const sy_device_v2 kReferenceDevice = {.header = SY_HEADER(sy_device_v2),
                                       .count = CountDevices,
                                       .open = OpenDevice,
                                       .close = CloseDevice,
                                       .query = QueryDevice,
                                       .alloc = Allocate,
                                       .free = Free,
                                       .copy = Copy,
                                       .synchronize = Synchronize,
                                       .fill = Fill};

const sy_memory_ext_v2 kReferenceMemory = {
    .header = SY_HEADER(sy_memory_ext_v2), .native_address = NativeAddress, .import_memory = Import};

}  // namespace switchyard
