// The opencl plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/opencl/device.h"

namespace switchyard {
namespace {

const void* Interface(const char* name) {
  if (std::strcmp(name, "device/1") == 0) return &kOpenClDevice;
  if (std::strcmp(name, "kernel/1") == 0) return &kOpenClKernels;
  if (std::strcmp(name, "memory_ext/1") == 0) return &kOpenClMemory;
  if (std::strcmp(name, "profiler/1") == 0) return &kOpenClProfiler;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  using namespace switchyard;
  return AnswerQuery(host, plugin, error, "opencl", "0.1.0", Interface);
}
