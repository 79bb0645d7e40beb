// The exported symbol and the interfaces behind it. Nothing here touches the driver.
#include <cstring>

#include "backends/cuda/device.h"

namespace switchyard {
namespace {

const void* Interface(sy_instance*, const char* name) {
  if (!std::strcmp(name, "device/2")) return &kCudaDevice;
  if (!std::strcmp(name, "memory_ext/2")) return &kCudaMemory;
  if (!std::strcmp(name, "semaphore/1")) return &kCudaSemaphores;
  if (!std::strcmp(name, "peer/1")) return &kCudaPeers;
  if (!std::strcmp(name, "kernel/2")) return &kCudaKernels;
  if (!std::strcmp(name, "capture/2")) return &kCudaCapture;
  if (!std::strcmp(name, "profiler/2")) return &kCudaProfiler;
  return nullptr;
}

}  // namespace
}  // namespace switchyard

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"cuda", "0.1.0", "Switchyard"}, switchyard::Interface);
}
