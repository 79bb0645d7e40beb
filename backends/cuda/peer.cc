// peer/1. Between processes a description carries CUDA's handle of the whole allocation (an exportable one has its
// memory for itself), and the driver counts how often a process has opened it: the same handle gives the same address
// again, and the last close unmaps it. In the process that exported, where CUDA opens no handle of its own, the
// description's address is the memory itself, if it is one that this process wrote, of memory that is still there;
// devices that can reach each other were joined when they were opened.
// Thread-safe.
// https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html (cudaIpcGetMemHandle)
#include <sys/random.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "backends/cuda/memory.h"

namespace switchyard {
namespace {

using ProcessId = std::array<unsigned char, 16>;

struct Description {
  char kind[16];  // kKind
  ProcessId process;
  cudaUUID_t device;
  char* address;
  uint64_t bytes;
  cudaIpcMemHandle_t handle;
};
static_assert(sizeof(Description) <= SY_MEMORY_DESCRIPTION_BYTES);
constexpr char kKind[16] = "cuda memory 1";

// Random: process numbers repeat between containers. False where the system gives none.
bool ThisProcess(ProcessId* id) {
  static ProcessId own;
  static const bool known = getrandom(own.data(), own.size(), 0) == static_cast<ssize_t>(own.size());
  *id = own;
  return known;
}

// What this process has described, by address, as long as it is allocated.
struct Exports {
  std::mutex mutex;
  std::map<const char*, Description> described;
};
Exports& OwnExports() {
  static auto& exports = *new Exports;
  return exports;
}

// The handle, which the process itself does not use, may be any.
bool IsOwnExport(Description given) {
  Exports& exports = OwnExports();
  const std::lock_guard lock(exports.mutex);
  const auto found = exports.described.find(given.address);
  if (found == exports.described.end()) return false;
  given.handle = found->second.handle;
  return std::memcmp(&found->second, &given, sizeof given) == 0;
}

sy_status Export(sy_device* device, sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes,
                 sy_error* error) {
  *bytes = 0;
  if (buffer->origin != sy_buffer::kExportable)
    return SY_FAIL(error, SY_INVALID, "cuda: the buffer was not allocated as exportable (sy_alloc_options)");
  if (capacity < sizeof(Description))
    return SY_FAIL(error, SY_INVALID, "cuda: room for %u bytes of a description, expected %zu", capacity,
                   sizeof(Description));
  SY_TRY(Enter(device->index, error));
  Description made{};
  std::memcpy(made.kind, kKind, sizeof kKind);
  if (!ThisProcess(&made.process)) return SY_FAIL(error, SY_INTERNAL, "cuda: the system gives no random numbers");
  cudaDeviceProp properties{};
  SY_CUDA(error, cudaGetDeviceProperties(&properties, device->index));
  made.device = properties.uuid;
  made.address = buffer->address;
  made.bytes = buffer->bytes;
  SY_CUDA(error, cudaIpcGetMemHandle(&made.handle, buffer->address));
  return Guarded(error, [&] {
    Exports& exports = OwnExports();
    const std::lock_guard lock(exports.mutex);
    exports.described.insert_or_assign(made.address, made);
    std::memcpy(description, &made, sizeof made);
    *bytes = sizeof made;
    return SY_OK;
  });
}

// SY_UNSUPPORTED where the device is one of this process, and CUDA cannot reach its memory from `device`. (It may well
// reach one that CUDA_VISIBLE_DEVICES hides here: only opening tells.)
sy_status CheckReach(const sy_device& device, const cudaUUID_t& owner, sy_error* error) {
  int count = 0;
  SY_CUDA(error, cudaGetDeviceCount(&count));
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    SY_CUDA(error, cudaGetDeviceProperties(&properties, index));
    if (std::memcmp(&properties.uuid, &owner, sizeof owner) != 0) continue;
    int possible = index == device.index;
    if (!possible) SY_CUDA(error, cudaDeviceCanAccessPeer(&possible, device.index, index));
    if (possible) return SY_OK;
    return SY_FAIL(error, SY_UNSUPPORTED, "cuda: device %d cannot reach the memory of device %d", device.index, index);
  }
  return SY_OK;
}

sy_status Import(sy_device* device, const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error) {
  *buffer = nullptr;
  Description given{};
  if (description == nullptr || bytes != sizeof given || std::memcmp(description, kKind, sizeof kKind) != 0)
    return SY_FAIL(error, SY_INVALID, "cuda: %u bytes that do not describe memory of this plugin", bytes);
  std::memcpy(&given, description, sizeof given);
  SY_TRY(Enter(device->index, error));
  SY_TRY(CheckReach(*device, given.device, error));
  ProcessId own{};
  std::unique_ptr<sy_buffer> made(new (std::nothrow) sy_buffer{given.address, given.bytes, sy_buffer::kForeign});
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a buffer");
  const bool foreign = !ThisProcess(&own) || own != given.process;
  if (!foreign && !IsOwnExport(given))
    return SY_FAIL(error, SY_INVALID,
                   "cuda: a description that this process did not write, or of memory that it freed");
  if (foreign) {
    void* address = nullptr;
    const cudaError_t code = cudaIpcOpenMemHandle(&address, given.handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != cudaSuccess) {
      const sy_status status = CudaFailed(error, code, "cudaIpcOpenMemHandle");
      return status == SY_DEVICE_LOST || status == SY_OUT_OF_MEMORY ? status : SY_UNSUPPORTED;
    }
    made->address = static_cast<char*>(address);
    made->origin = sy_buffer::kOpened;
  }
  *buffer = made.release();
  return SY_OK;
}

}  // namespace

void ForgetExport(const sy_buffer& buffer) {
  Exports& exports = OwnExports();
  const std::lock_guard lock(exports.mutex);
  exports.described.erase(buffer.address);
}

const sy_peer_v1 kCudaPeers = {.header = SY_HEADER(sy_peer_v1), .export_memory = Export, .import_memory = Import};

}  // namespace switchyard
