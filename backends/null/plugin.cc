// The null plugin's one symbol.
#include "core/abi/plugin.h"

#include <cstring>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

const void* Interface(sy_instance*, const char* name) {
  if (std::strcmp(name, "device/2") == 0) return &kNullDevice;
  if (std::strcmp(name, "kernel/2") == 0) return &kNullKernels;
  if (std::strcmp(name, "capture/2") == 0) return &kNullCapture;
  if (std::strcmp(name, "profiler/2") == 0) return &kNullProfiler;
  if (std::strcmp(name, "semaphore/1") == 0) return &kNullSemaphores;
  if (std::strcmp(name, "peer/1") == 0) return &kNullPeer;
  if (std::strcmp(name, "null.host_call/1") == 0) return &kNullHostCall;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"null", "0.1.0", "Switchyard"}, switchyard::Interface);
}
