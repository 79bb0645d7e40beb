// What every call of the CUDA libraries is wrapped in. SY_CUDA returns from the enclosing function with a status where
// the call failed: the native code and its text, the call as written, and file:line go into the caller's sy_error.
// Errors that destroy the device's context (an illegal address, an uncorrectable ECC error …) are sticky in CUDA: every
// later call repeats them. The first one is kept per device and process and answered as SY_DEVICE_LOST from then on.
// Thread-safe. https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html (cudaError)
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>

#include "core/abi/boundary.h"

namespace switchyard {

// Fills `error`, which may be NULL, and returns SY_OUT_OF_MEMORY, SY_UNSUPPORTED, SY_DEVICE_LOST or SY_INTERNAL.
// Clears the thread's last error where it is not sticky, so that the next call does not report it again.
sy_status CudaFailed(sy_error* error, cudaError_t code, const char* call,
                     std::source_location where = std::source_location::current());

// The same for a code of another library (cuBLASLt, cuDNN) with its own text; it is not sticky by itself.
sy_status LibraryFailed(sy_error* error, sy_status status, int64_t code, const char* text, const char* call,
                        std::source_location where = std::source_location::current());

// SY_OK, or SY_DEVICE_LOST with the first sticky error that device `index` has met in this process.
sy_status FirstLoss(int32_t index, sy_error* error);

// Makes the context of device `index` current for this thread, unless it is already; SY_DEVICE_LOST where it met a
// sticky error. Every entry point of the plugin begins with it.
sy_status Enter(int32_t index, sy_error* error);

}  // namespace switchyard

// SY_CUDA(error, cudaMemsetAsync(address, 0, bytes, stream));
#define SY_CUDA(error, ...)                                                \
  do {                                                                     \
    if (const cudaError_t sy_code = (__VA_ARGS__); sy_code != cudaSuccess) \
      return ::switchyard::CudaFailed((error), sy_code, #__VA_ARGS__);     \
  } while (false)

// SY_TRY(Enter(device->index, error)); returns the status of anything that is not SY_OK.
#define SY_TRY(...)                                                                                     \
  do {                                                                                                  \
    if (const sy_status sy_status_code = (__VA_ARGS__); sy_status_code != SY_OK) return sy_status_code; \
  } while (false)
