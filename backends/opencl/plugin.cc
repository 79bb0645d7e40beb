// The opencl plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/opencl/device.h"

namespace switchyard {
namespace {

const void* GetInterface(sy_instance*, const char* name) {
  if (std::strcmp(name, "device/2") == 0) return &kOpenClDevice;
  if (std::strcmp(name, "kernel/2") == 0) return &kOpenClKernels;
  if (std::strcmp(name, "memory_ext/2") == 0) return &kOpenClMemory;
  if (std::strcmp(name, "profiler/2") == 0) return &kOpenClProfiler;
  if (std::strcmp(name, "semaphore/1") == 0) return &kOpenClSemaphores;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"opencl", "0.1.0", "Switchyard"}, switchyard::GetInterface);
}
