// memory_ext/2: host memory from which the driver copies without staging (CL_MEM_ALLOC_HOST_PTR, mapped for its whole
// life). Buffers have no address that anyone else could use.
#include "backends/opencl/device.h"

namespace switchyard {
namespace {

sy_status AllocateHost(sy_device* device, uint64_t bytes, void** address, sy_error* error) {
  if (bytes == 0) return Refuse(error, SY_INVALID, "host_alloc: expected at least 1 byte");
  return Guarded(error, [&]() -> sy_status {
    cl_int code;
    MemoryHandle memory(
        clCreateBuffer(device->context.get(), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, nullptr, &code));
    if (code != CL_SUCCESS) return Failed(error, code, "clCreateBuffer");
    const std::lock_guard own_lock(device->own_mutex);
    void* mapped = clEnqueueMapBuffer(device->own->queue(), memory.get(), CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes,
                                      0, nullptr, nullptr, &code);
    if (code != CL_SUCCESS) return Failed(error, code, "clEnqueueMapBuffer");
    const std::lock_guard lock(device->mutex);
    device->host_memory[mapped] = std::move(memory);
    *address = mapped;
    return SY_OK;
  });
}

void FreeHost(sy_device* device, void* address) {
  MemoryHandle memory;
  {
    const std::lock_guard lock(device->mutex);
    const auto found = device->host_memory.find(address);
    if (found == device->host_memory.end()) return;
    memory = std::move(found->second);
    device->host_memory.erase(found);
  }
  const std::lock_guard lock(device->own_mutex);
  cl_int code = clEnqueueUnmapMemObject(device->own->queue(), memory.get(), address, 0, nullptr, nullptr);
  if (code == CL_SUCCESS) code = clFinish(device->own->queue());
  if (code != CL_SUCCESS) device->instance->Log(2, "host_free: the memory cannot be unmapped, " + CodeName(code));
}

}  // namespace

const sy_memory_ext_v2 kOpenClMemory = {
    .header = SY_HEADER(sy_memory_ext_v2), .host_alloc = AllocateHost, .host_free = FreeHost};

}  // namespace switchyard
