// peer/1: memory.h says how.
#include "backends/null/device.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

sy_status Export(sy_device* device, sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes,
                 sy_error* error) {
  return Guarded(error, [&] { return device->memory.Export(buffer, description, capacity, bytes, error); });
}

sy_status Import(sy_device* device, const void* description, uint32_t bytes, sy_buffer** buffer, sy_error* error) {
  return Guarded(error, [&] { return device->memory.Import(description, bytes, buffer, error); });
}

}  // namespace

const sy_peer_v1 kNullPeer = {.header = SY_HEADER(sy_peer_v1), .export_memory = Export, .import_memory = Import};

}  // namespace switchyard
