// The null plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/null/device.h"
#include "backends/reference/boundary.h"

namespace switchyard {
namespace {

const void* Interface(const char* name) {
  if (std::strcmp(name, "device/1") == 0) return &kNullDevice;
  if (std::strcmp(name, "kernel/1") == 0) return &kNullKernels;
  if (std::strcmp(name, "capture/1") == 0) return &kNullCapture;
  if (std::strcmp(name, "profiler/1") == 0) return &kNullProfiler;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  using namespace switchyard;
  if (plugin == nullptr || !SY_HAS(sy_plugin, plugin, interface)) {
    return Refuse(error, SY_INVALID, "sy_plugin_query: the plugin struct is smaller than version 1's");
  }
  if (host != nullptr && SY_HAS(sy_host, host, setting)) setting = host->setting;
  sy_plugin filled{};
  filled.magic = SY_PLUGIN_MAGIC;
  filled.name = "null";
  filled.version = "0.1.0";
  filled.vendor = "Switchyard";
  filled.interface = Interface;
  FillStruct(plugin, filled);
  return SY_OK;
}
