// The null plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

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
  return AnswerQuery(host, plugin, error, "null", "0.1.0", Interface);
}
