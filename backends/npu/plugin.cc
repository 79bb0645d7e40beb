// The npu plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/npu/device.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

const void* Interface(const char* name) {
  if (std::strcmp(name, "device/1") == 0) return &kNpuDevice;
  if (std::strcmp(name, "kernel/1") == 0) return &kNpuKernels;
  if (std::strcmp(name, "memory_ext/1") == 0) return &kNpuMemory;
  if (std::strcmp(name, "region/1") == 0) return &kNpuRegions;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "npu", "0.1.0", switchyard::Interface);
}
