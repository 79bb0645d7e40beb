// Device memory and what joins it to collectives. A buffer handle is a host struct around a device address; sizes are
// checked here, since the runtime checks them late or not at all.
#include <cstring>
#include <new>

#include "backends/npu/device.h"
#include "backends/npu/peer.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

sy_status NativeAddress(sy_device*, sy_buffer* buffer, void** address, sy_error*) {
  *address = buffer->address;
  return SY_OK;
}

sy_status Import(sy_device*, void* address, const char* kind, uint64_t bytes, sy_buffer** buffer, sy_error* error) {
  if (kind == nullptr || std::strcmp(kind, kMemoryKind) != 0)
    return SY_FAIL(error, SY_UNSUPPORTED, "import_memory: expected memory of kind \"%s\", found \"%s\"", kMemoryKind,
                   kind ? kind : "");
  if (address == nullptr || bytes == 0)
    return Refuse(error, SY_INVALID, "import_memory: expected an address and at least 1 byte");
  *buffer = new (std::nothrow) sy_buffer{static_cast<char*>(address), bytes, sy_buffer::kForeign};
  return *buffer != nullptr ? SY_OK : Refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
}

sy_status NativeStream(sy_device*, sy_stream* stream, void** handle, sy_error*) {
  *handle = stream->stream;
  return SY_OK;
}

sy_status HostAllocate(sy_device* device, uint64_t bytes, void** address, sy_error* error) {
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  return CheckAcl(error, device->acl->aclrtMallocHost(address, bytes), "aclrtMallocHost");
}

void HostFree(sy_device* device, void* address) {
  if (device->Enter(nullptr) == SY_OK) device->acl->aclrtFreeHost(address);
}

}  // namespace

char* Resolve(const sy_place& place, uint64_t bytes, sy_error* error) {
  if (place.buffer == nullptr) {
    Refuse(error, SY_INVALID, "expected a place in device memory");
    return nullptr;
  }
  if (place.offset > place.buffer->bytes || bytes > place.buffer->bytes - place.offset) {
    Refuse(error, SY_INVALID,
           Text(bytes, " bytes at offset ", place.offset, " do not lie inside a buffer of ", place.buffer->bytes));
    return nullptr;
  }
  return place.buffer->address + place.offset;
}

sy_status Allocate(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                   sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  const bool exportable = options != nullptr && ReadStruct(options).exportable != 0;
  if (exportable && device->acl->aclrtIpcMemGetExportKey == nullptr)
    return Refuse(error, SY_UNSUPPORTED, "alloc: the NPU runtime has no aclrtIpcMemGetExportKey");
  if (bytes == 0) return Refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  void* address = nullptr;
  const uint64_t taken = exportable ? WholePages(bytes) : bytes;
  const sy_status status =
      CheckAcl(error, device->acl->aclrtMalloc(&address, taken, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
  if (status != SY_OK) return status;
  *buffer = new (std::nothrow)
      sy_buffer{static_cast<char*>(address), bytes, exportable ? sy_buffer::kExportable : sy_buffer::kOwn};
  if (*buffer != nullptr) return SY_OK;
  device->acl->aclrtFree(address);
  return Refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
}

void Free(sy_device* device, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  if (device->Enter(nullptr) == SY_OK) {
    if (buffer->origin == sy_buffer::kExportable) EndExport(*device, *buffer);
    if (buffer->origin != sy_buffer::kForeign) device->acl->aclrtFree(buffer->address);
  }
  delete buffer;
}

sy_status Copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  const bool to_device = destination.buffer != nullptr, from_device = source.buffer != nullptr;
  if (!to_device && !from_device) return Refuse(error, SY_INVALID, "copy: one side must be device memory");
  if (bytes == 0) return SY_OK;
  void* to = to_device ? Resolve(destination, bytes, error) : destination.host;
  const void* from = from_device ? Resolve(source, bytes, error) : source.host;
  if (to == nullptr || from == nullptr) {
    return (to_device && to == nullptr) || (from_device && from == nullptr)
               ? SY_INVALID
               : Refuse(error, SY_INVALID, "copy: a place names neither a buffer nor a host address");
  }
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  if (IsBorrowed(destination) || IsBorrowed(source))
    return Guarded(error, [&] { return CopyBorrowed(*device, stream, destination, source, bytes, error); });
  const aclrtMemcpyKind kind = !to_device     ? ACL_MEMCPY_DEVICE_TO_HOST
                               : !from_device ? ACL_MEMCPY_HOST_TO_DEVICE
                                              : ACL_MEMCPY_DEVICE_TO_DEVICE;
  const Runtime& acl = *device->acl;
  if (stream == nullptr) return CheckAcl(error, acl.aclrtMemcpy(to, bytes, from, bytes, kind), "aclrtMemcpy");
  return CheckAcl(error, acl.aclrtMemcpyAsync(to, bytes, from, bytes, kind, stream->stream), "aclrtMemcpyAsync");
}

sy_status Fill(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return SY_OK;
  void* to = Resolve(destination, bytes, error);
  if (to == nullptr) return SY_INVALID;
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  if (IsBorrowed(destination))
    return Guarded(error, [&] { return FillBorrowed(*device, stream, destination, value, bytes, error); });
  const Runtime& acl = *device->acl;
  if (stream == nullptr) return CheckAcl(error, acl.aclrtMemset(to, bytes, value, bytes), "aclrtMemset");
  return CheckAcl(error, acl.aclrtMemsetAsync(to, bytes, value, bytes, stream->stream), "aclrtMemsetAsync");
}

const sy_memory_ext_v2 kNpuMemory = {.header = SY_HEADER(sy_memory_ext_v2),
                                     .native_address = NativeAddress,
                                     .import_memory = Import,
                                     .host_alloc = HostAllocate,
                                     .host_free = HostFree,
                                     .native_stream = NativeStream};

}  // namespace switchyard
