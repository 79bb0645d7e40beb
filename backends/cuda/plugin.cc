// The exported symbol and the interfaces behind it. Nothing here touches the driver.
#include <cstring>

#include "backends/cuda/device.h"

namespace switchyard {
namespace {

const void* Interface(const char* name) {
  if (!std::strcmp(name, "device/1")) return &kCudaDevice;
  if (!std::strcmp(name, "memory_ext/1")) return &kCudaMemory;
  if (!std::strcmp(name, "kernel/1")) return &kCudaKernels;
  if (!std::strcmp(name, "capture/1")) return &kCudaCapture;
  if (!std::strcmp(name, "profiler/1")) return &kCudaProfiler;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "cuda", "0.1.0", switchyard::Interface);
}
