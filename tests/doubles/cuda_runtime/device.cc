// The machine: some devices of the same kind, whose names and ids are the same in every process
// (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/cuda_runtime/error.h"
#include "tests/doubles/cuda_runtime/settings.h"
#include "tests/doubles/cuda_runtime/stream.h"

namespace cuda_double {
namespace {

thread_local int current_device = 0;
thread_local bool has_context = false;

bool IsDevice(int device) { return device >= 0 && device < GetSettings().devices; }

cudaDeviceProp Properties(int device) {
  cudaDeviceProp properties{};
  std::snprintf(properties.name, sizeof properties.name, "CUDA double %d", device);
  std::memcpy(properties.uuid.bytes, "CUDA-double", 11);
  properties.uuid.bytes[15] = static_cast<char>(device);
  properties.totalGlobalMem = GetSettings().memory_bytes;
  properties.sharedMemPerBlock = 48 << 10;
  properties.sharedMemPerBlockOptin = 227 << 10;
  properties.sharedMemPerMultiprocessor = 228 << 10;
  properties.regsPerBlock = properties.regsPerMultiprocessor = 64 << 10;
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsDim[0] = properties.maxThreadsDim[1] = 1024;
  properties.maxThreadsDim[2] = 64;
  properties.maxGridSize[0] = INT32_MAX;
  properties.maxGridSize[1] = properties.maxGridSize[2] = 65535;
  properties.totalConstMem = 64 << 10;
  properties.major = 9;
  properties.minor = 0;
  properties.textureAlignment = 512;
  properties.multiProcessorCount = 4;  // few, so that kernels that loop over their grid do loop
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.maxBlocksPerMultiProcessor = 32;
  properties.canMapHostMemory = properties.concurrentKernels = properties.unifiedAddressing = 1;
  properties.streamPrioritiesSupported = properties.cooperativeLaunch = 1;
  properties.pciBusID = device + 1;
  properties.asyncEngineCount = 2;
  properties.memoryBusWidth = 64;
  properties.l2CacheSize = 1 << 20;
  return properties;
}

}  // namespace

int CurrentDevice() { return current_device; }

}  // namespace cuda_double

using namespace cuda_double;

extern "C" {

int cudaDoubleHasContext(void) { return has_context; }

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return Answer(cudaErrorInvalidValue);
  *count = 0;
  return Call([&] {
    *count = GetSettings().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Call([&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    current_device = device;
    has_context = GetSettings().contexts;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call([&] {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call([&] {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    *properties = Properties(device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call([&] {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    const cudaDeviceProp properties = Properties(device);
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = properties.maxThreadsPerBlock;
        break;
      case cudaDevAttrMaxBlockDimX:
        *value = properties.maxThreadsDim[0];
        break;
      case cudaDevAttrMaxGridDimX:
        *value = properties.maxGridSize[0];
        break;
      case cudaDevAttrMaxGridDimY:
        *value = properties.maxGridSize[1];
        break;
      case cudaDevAttrMaxGridDimZ:
        *value = properties.maxGridSize[2];
        break;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(properties.sharedMemPerBlock);
        break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(properties.sharedMemPerBlockOptin);
        break;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
        break;
      case cudaDevAttrMaxRegistersPerBlock:
        *value = properties.regsPerBlock;
        break;
      case cudaDevAttrWarpSize:
        *value = properties.warpSize;
        break;
      case cudaDevAttrMultiProcessorCount:
        *value = properties.multiProcessorCount;
        break;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = properties.maxThreadsPerMultiProcessor;
        break;
      case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = properties.maxBlocksPerMultiProcessor;
        break;
      case cudaDevAttrComputeCapabilityMajor:
        *value = properties.major;
        break;
      case cudaDevAttrComputeCapabilityMinor:
        *value = properties.minor;
        break;
      case cudaDevAttrL2CacheSize:
        *value = properties.l2CacheSize;
        break;
      case cudaDevAttrPciBusId:
        *value = properties.pciBusID;
        break;
      case cudaDevAttrPciDeviceId:
      case cudaDevAttrPciDomainId:
      case cudaDevAttrIntegrated:
      case cudaDevAttrComputeMode:
      case cudaDevAttrMemoryPoolsSupported:
      case cudaDevAttrPageableMemoryAccess:
      case cudaDevAttrManagedMemory:
        *value = 0;
        break;
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrConcurrentKernels:
      case cudaDevAttrCooperativeLaunch:
      case cudaDevAttrStreamPrioritiesSupported:
        *value = 1;
        break;
      case cudaDevAttrClockRate:
      case cudaDevAttrMemoryClockRate:
        *value = 1000000;
        break;  // kHz
      case cudaDevAttrGlobalMemoryBusWidth:
        *value = properties.memoryBusWidth;
        break;
      case cudaDevAttrAsyncEngineCount:
        *value = properties.asyncEngineCount;
        break;
      default:
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return Call([&] {
    if (text == nullptr || bytes < 13) return cudaErrorInvalidValue;
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    std::snprintf(text, bytes, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return Call([&] {
    if (can == nullptr) return cudaErrorInvalidValue;
    if (!IsDevice(device) || !IsDevice(peer)) return cudaErrorInvalidDevice;
    *can = device != peer && GetSettings().peers;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return Call([&] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!IsDevice(peer) || peer == CurrentDevice()) return cudaErrorInvalidDevice;
    if (!GetSettings().peers) return cudaErrorPeerAccessUnsupported;
    static auto& enabled = *new std::map<int, std::set<int>>;  // under Book(): of a device, which it reaches
    std::lock_guard lock(Book());
    std::set<int>& reached = enabled[CurrentDevice()];
    if (reached.contains(peer)) return cudaErrorPeerAccessAlreadyEnabled;
    if (static_cast<int>(reached.size()) >= GetSettings().peer_limit) return cudaErrorTooManyPeers;
    reached.insert(peer);
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return Answer(cudaErrorInvalidValue);
  *version = GetSettings().driver ? GetSettings().driver_version : 0;  // 0: no driver is installed
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return Answer(cudaErrorInvalidValue);
  *version = GetSettings().runtime_version;
  return cudaSuccess;
}

}  // extern "C"
