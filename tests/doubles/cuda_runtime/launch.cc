// Kernel launches. The double runs no GPU code: whoever has host code for a kernel puts it on a stream with
// cudaDoubleEnqueue, or installs a launcher. What compiled .cu files call when they are loaded is here too, so that
// they load.
#include <atomic>
#include <cstdint>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/cuda_runtime/error.h"
#include "tests/doubles/cuda_runtime/settings.h"
#include "tests/doubles/cuda_runtime/stream.h"

namespace cuda_double {
namespace {

std::atomic<cudaDoubleLauncher> launcher{nullptr};

// Under Book(): may the code of `function` be loaded now, if it is not there yet?
bool Load(const void* function) { return !GetSettings().lazy || Loaded().count(function) != 0; }

cudaError_t Check(dim3 grid, dim3 block, size_t shared_bytes) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0)
    return cudaErrorInvalidConfiguration;
  if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  if (block.x > 1024 || block.y > 1024 || block.z > 64) return cudaErrorInvalidConfiguration;
  if (uint64_t{block.x} * block.y * block.z > 1024 || shared_bytes > (227 << 10)) return cudaErrorInvalidConfiguration;
  return cudaSuccess;
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

extern "C" {

cudaError_t cudaDoubleEnqueue(cudaStream_t handle, void (*run)(void*), void* data, void (*release)(void*)) {
  return cudaDoubleLaunch(nullptr, handle, run, data, release);
}

cudaError_t cudaDoubleLaunch(const void* function, cudaStream_t handle, void (*run)(void*), void* data,
                             void (*release)(void*)) {
  // Declared first, so released last: after Book() is free.
  const std::shared_ptr<void> owner(data, [release](void* given) {
    if (release) release(given);
  });
  return Call([&] {
    if (run == nullptr) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr || stream->device != CurrentDevice()) return cudaErrorInvalidResourceHandle;
    if (Strikes("launch")) return cudaErrorLaunchOutOfResources;
    if (function != nullptr && !stream->capture && !Load(function)) return cudaErrorNotSupported;
    GetCounts().kernels += function != nullptr && stream->capture == nullptr;
    return Submit(
        stream, [run, owner] { run(owner.get()); }, function);
  });
}

void cudaDoubleSetLauncher(cudaDoubleLauncher given) { launcher = given; }

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return Call([&] {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    if (const cudaError_t error = Check(grid, block, shared_bytes); error != cudaSuccess) return error;
    const cudaDoubleLauncher run = launcher;
    return run ? run(function, grid, block, arguments, shared_bytes, stream) : cudaErrorNoKernelImageForDevice;
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  if (config == nullptr) return Answer(cudaErrorInvalidValue);
  return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                          config->stream);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return Call([&] {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    const bool too_much =
        attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && (value < 0 || value > (227 << 10));
    return too_much ? cudaErrorInvalidValue : cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return Call([&] {
    if (attributes == nullptr || function == nullptr) return cudaErrorInvalidValue;
    *attributes = cudaFuncAttributes{};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_threads, size_t) {
  return Call([&] {
    if (blocks == nullptr || block_threads < 1 || block_threads > 1024) return cudaErrorInvalidValue;
    *blocks = 2048 / block_threads;
    return cudaSuccess;
  });
}

// What the compiler's code for .cu files calls (crt/host_runtime.h of the toolkit declares them).
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) {
  return 1;
}  // kernels are launched by name alone
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorInvalidConfiguration; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"
