// Stands in for libcuda.so.1, as far as the cuda plugin calls it itself: a stream's wait for a value
// (https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html), on the streams of the runtime's double,
// from a thread that has a context. A library of its own, as the driver's is. Thread-safe.
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/faults.h"

namespace {

bool HasMemoryOperations() {
  static const bool has = doubles::NumberFrom("CUDA_DOUBLE_MEMORY_OPS", 1, 0, 1) == 1;
  return has;
}

struct Operation {
  cuuint64_t* address;
  cuuint64_t value;
};

CUresult Enqueue(CUstream stream, CUdeviceptr address, cuuint64_t value, void (*run)(void*)) {
  if (!cudaDoubleHasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!HasMemoryOperations()) return CUDA_ERROR_NOT_SUPPORTED;
  auto* const word = reinterpret_cast<cuuint64_t*>(address);
  cudaPointerAttributes attributes{};
  if (const cudaError_t error = cudaPointerGetAttributes(&attributes, word); error != cudaSuccess)
    return static_cast<CUresult>(error);
  if (attributes.type == cudaMemoryTypeUnregistered || address % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(cudaDoubleEnqueue(stream, run, new Operation{word, value},
                                                 [](void* data) { delete static_cast<Operation*>(data); }));
}

}  // namespace

extern "C" {

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return static_cast<CUresult>(error);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ordinal < 0 || ordinal >= count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (value == nullptr || attribute != CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
    return CUDA_ERROR_INVALID_VALUE;
  *value = HasMemoryOperations();
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  return Enqueue(stream, address, value, [](void* data) {
    const Operation& operation = *static_cast<Operation*>(data);
    const auto reached = [&] {
      return static_cast<int64_t>(std::atomic_ref(*operation.address).load() - operation.value) >= 0;
    };
    while (!reached() && cudaDoubleLoss() == cudaSuccess) std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
}

}  // extern "C"
