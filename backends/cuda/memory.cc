#include "backends/cuda/memory.h"

#include <cstring>
#include <memory>
#include <new>

#include "backends/cuda/stream.h"

namespace switchyard {
namespace {

constexpr uint64_t kAlignment = 256;  // what cudaMalloc guarantees, and device query promises
// What is shared with other processes comes in multiples of this: the handle of a smaller allocation opens the whole
// block in which cudaMalloc placed it, others' memory included (CUDA programming guide, "Interprocess Communication").
constexpr uint64_t kSharedBlock = uint64_t{2} << 20;

sy_status CheckInside(const sy_place& place, uint64_t bytes, const char* what, sy_error* error) {
  if (place.buffer == nullptr) {
    if (place.host == nullptr)
      return SY_FAIL(error, SY_INVALID, "%s: a place names neither a buffer nor a host address", what);
    return SY_OK;
  }
  if (place.offset <= place.buffer->bytes && bytes <= place.buffer->bytes - place.offset) return SY_OK;
  return SY_FAIL(error, SY_INVALID, "%s: %llu bytes at offset %llu do not lie inside a buffer of %llu", what,
                 static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(place.offset),
                 static_cast<unsigned long long>(place.buffer->bytes));
}

sy_status NativeAddress(sy_device*, sy_buffer* buffer, void** address, sy_error*) {
  *address = buffer->address;
  return SY_OK;
}

sy_status ImportMemory(sy_device* device, void* address, const char* kind, uint64_t bytes, sy_buffer** buffer,
                       sy_error* error) {
  *buffer = nullptr;
  if (kind == nullptr || std::strcmp(kind, kMemoryKind) != 0)
    return SY_FAIL(error, SY_UNSUPPORTED, "cuda: memory of kind \"%s\" can be imported, found \"%.100s\"", kMemoryKind,
                   kind != nullptr ? kind : "");
  if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0)
    return SY_FAIL(error, SY_INVALID, "cuda: imported memory must be aligned to %llu bytes",
                   static_cast<unsigned long long>(kAlignment));
  SY_TRY(Enter(device->index, error));
  cudaPointerAttributes attributes{};
  SY_CUDA(error, cudaPointerGetAttributes(&attributes, address));
  if (attributes.type != cudaMemoryTypeDevice || attributes.device != device->index)
    return SY_FAIL(error, SY_INVALID, "cuda: imported memory is of type %d on device %d, expected memory of device %d",
                   static_cast<int>(attributes.type), attributes.device, device->index);
  *buffer = new (std::nothrow) sy_buffer{static_cast<char*>(address), bytes, sy_buffer::kForeign};
  return *buffer ? SY_OK : SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a buffer");
}

sy_status NativeStream(sy_device* device, sy_stream* stream, void** handle, sy_error*) {
  *handle = stream ? stream->stream : device->own.stream;
  return SY_OK;
}

sy_status HostAlloc(sy_device* device, uint64_t bytes, void** address, sy_error* error) {
  *address = nullptr;
  SY_TRY(Enter(device->index, error));
  SY_CUDA(error, cudaHostAlloc(address, bytes > 0 ? bytes : 1, cudaHostAllocPortable));
  return SY_OK;
}

void HostFree(sy_device* device, void* address) {
  if (address == nullptr || Enter(device->index, nullptr) != SY_OK) return;
  LogFailure(*device, cudaFreeHost(address), "cudaFreeHost");
}

}  // namespace

sy_status Allocate(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                   sy_error* error) {
  *buffer = nullptr;
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return SY_FAIL(error, SY_INVALID, "cuda: an allocation of 0 bytes, expected at least 1");
  SY_TRY(Enter(device->index, error));
  std::unique_ptr<sy_buffer> made(new (std::nothrow) sy_buffer);
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a buffer");
  const bool exportable = options != nullptr && ReadStruct(options).exportable;
  if (exportable && bytes > UINT64_MAX - kSharedBlock)
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: %llu bytes asked for", static_cast<unsigned long long>(bytes));
  void* address = nullptr;
  const cudaError_t code =
      cudaMalloc(&address, exportable ? (bytes + kSharedBlock - 1) / kSharedBlock * kSharedBlock : bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t available = 0, total = 0;
    SY_CUDA(error, cudaMemGetInfo(&available, &total));
    SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: %llu bytes asked for on device %d, %zu of %zu are free",
            static_cast<unsigned long long>(bytes), device->index, available, total);
    if (error && SY_HAS(sy_error, error, native_code)) error->native_code = code;
    return SY_OUT_OF_MEMORY;
  }
  SY_CUDA(error, code);
  *made = {static_cast<char*>(address), bytes, exportable ? sy_buffer::kExportable : sy_buffer::kAllocated};
  *buffer = made.release();
  return SY_OK;
}

void Free(sy_device* device, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  if (buffer->origin == sy_buffer::kExportable) ForgetExport(*buffer);
  if (buffer->origin != sy_buffer::kForeign && Enter(device->index, nullptr) == SY_OK) {
    if (buffer->origin == sy_buffer::kOpened) {
      LogFailure(*device, cudaIpcCloseMemHandle(buffer->address), "cudaIpcCloseMemHandle");
    } else {
      LogFailure(*device, cudaFree(buffer->address), "cudaFree");
    }
  }
  delete buffer;
}

namespace {

// A copy that is recorded runs again at every replay: CUDA does that from pinned memory only.
sy_status CheckPinned(const sy_place& host, sy_error* error) {
  cudaPointerAttributes attributes{};
  SY_CUDA(error, cudaPointerGetAttributes(&attributes, Address(host)));
  if (attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged) return SY_OK;
  return SY_FAIL(error, SY_UNSUPPORTED, "cuda: a copy with host memory that is not pinned cannot be captured");
}

sy_status CopyOn(sy_device* device, sy_stream* stream, const sy_place& destination, const sy_place& source,
                 uint64_t bytes, sy_error* error) {
  if (destination.buffer == nullptr && source.buffer == nullptr)
    return SY_FAIL(error, SY_INVALID, "cuda: copy from host to host, expected device memory on one side");
  if (bytes == 0) return SY_OK;
  SY_TRY(CheckInside(destination, bytes, "cuda: copy to", error));
  SY_TRY(CheckInside(source, bytes, "cuda: copy from", error));
  SY_TRY(Enter(device->index, error));
  const cudaMemcpyKind kind = destination.buffer == nullptr ? cudaMemcpyDeviceToHost
                              : source.buffer == nullptr    ? cudaMemcpyHostToDevice
                                                            : cudaMemcpyDeviceToDevice;
  if (stream != nullptr && stream->recording != nullptr && kind != cudaMemcpyDeviceToDevice)
    SY_TRY(CheckPinned(destination.buffer == nullptr ? destination : source, error));
  const cudaStream_t target = stream ? stream->stream : device->own.stream;
  SY_CUDA(error, cudaMemcpyAsync(Address(destination), Address(source), bytes, kind, target));
  if (stream == nullptr) SY_CUDA(error, cudaStreamSynchronize(target));
  return SY_OK;
}

sy_status FillOn(sy_device* device, sy_stream* stream, const sy_place& destination, uint8_t value, uint64_t bytes,
                 sy_error* error) {
  if (destination.buffer == nullptr) return SY_FAIL(error, SY_INVALID, "cuda: fill of host memory");
  if (bytes == 0) return SY_OK;
  SY_TRY(CheckInside(destination, bytes, "cuda: fill", error));
  SY_TRY(Enter(device->index, error));
  const cudaStream_t target = stream ? stream->stream : device->own.stream;
  SY_CUDA(error, cudaMemsetAsync(Address(destination), value, bytes, target));
  if (stream == nullptr) SY_CUDA(error, cudaStreamSynchronize(target));
  return SY_OK;
}

}  // namespace

sy_status Copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return OnStream(stream, SY_UNSUPPORTED);
  return OnStream(stream, CopyOn(device, stream, destination, source, bytes, error));
}

sy_status Fill(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return OnStream(stream, SY_UNSUPPORTED);
  return OnStream(stream, FillOn(device, stream, destination, value, bytes, error));
}

DeviceTable::~DeviceTable() {
  if (address_ != nullptr && Enter(device_->index, nullptr) == SY_OK)
    LogFailure(*device_, cudaFree(address_), "cudaFree");
}

sy_status DeviceTable::Assign(const sy_device* device, const void* host, size_t bytes, sy_error* error) {
  SY_TRY(Enter(device->index, error));
  void* address = nullptr;
  SY_CUDA(error, cudaMalloc(&address, bytes > 0 ? bytes : 1));
  if (address_ != nullptr) LogFailure(*device, cudaFree(address_), "cudaFree");
  address_ = static_cast<char*>(address);
  device_ = device;
  SY_CUDA(error, cudaMemcpyAsync(address_, host, bytes, cudaMemcpyHostToDevice, device->own.stream));
  SY_CUDA(error, cudaStreamSynchronize(device->own.stream));
  return SY_OK;
}

const sy_memory_ext_v2 kCudaMemory = {
    .header = SY_HEADER(sy_memory_ext_v2),
    .native_address = NativeAddress,
    .import_memory = ImportMemory,
    .host_alloc = HostAlloc,
    .host_free = HostFree,
    .native_stream = NativeStream,
};

}  // namespace switchyard
