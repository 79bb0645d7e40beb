// The npu plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/npu/device.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

const void* GetInterface(sy_instance*, const char* name) {
  if (std::strcmp(name, "device/2") == 0) return &kNpuDevice;
  if (std::strcmp(name, "kernel/2") == 0) return &kNpuKernels;
  if (std::strcmp(name, "memory_ext/2") == 0) return &kNpuMemory;
  if (std::strcmp(name, "region/2") == 0) return &kNpuRegions;
  if (std::strcmp(name, "semaphore/1") == 0) return &kNpuSemaphores;
  if (std::strcmp(name, "peer/1") == 0) return &kNpuPeers;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"npu", "0.1.0", "Switchyard"}, switchyard::GetInterface);
}
