// peer/1: core/abi/host_device.h says how. Collectives reach the memory of this device directly and do without.
#include "backends/cpu/device.h"
#include "core/abi/host_device.h"

namespace switchyard {
namespace {

sy_status Export(sy_device*, sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes,
                 sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (buffer->shared == nullptr)
      return SY_FAIL(error, SY_INVALID, "cpu: export_memory expects a buffer that was allocated as exportable");
    return buffer->shared->Describe("cpu", description, capacity, bytes, error);
  });
}

sy_status Import(sy_device*, const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    std::shared_ptr<const SharedMemory> memory;
    if (const sy_status status = SharedMemory::Open("cpu", description, bytes, &memory, error); status != SY_OK)
      return status;
    auto imported = std::make_unique<sy_buffer>();
    imported->address = memory->address();
    imported->bytes = memory->bytes();
    imported->shared = std::move(memory);
    *buffer = imported.release();
    return SY_OK;
  });
}

}  // namespace

const sy_peer_v1& PeerInterface() {
  static constexpr sy_peer_v1 kInterface = {
      .header = SY_HEADER(sy_peer_v1), .export_memory = Export, .import_memory = Import};
  return kInterface;
}

}  // namespace switchyard
