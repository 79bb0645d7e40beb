#include "tests/doubles/cuda_runtime/error.h"

#include <atomic>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/cuda_runtime/settings.h"

namespace cuda_double {
namespace {

std::atomic<cudaError_t> lost{cudaSuccess};
thread_local cudaError_t last = cudaSuccess;

struct Name {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define CUDA_DOUBLE_ERROR(error, text) \
  { error, #error, text }
constexpr Name kNames[] = {
    CUDA_DOUBLE_ERROR(cudaSuccess, "no error"),
    CUDA_DOUBLE_ERROR(cudaErrorInvalidValue, "invalid argument"),
    CUDA_DOUBLE_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    CUDA_DOUBLE_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    CUDA_DOUBLE_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    CUDA_DOUBLE_ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    CUDA_DOUBLE_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    CUDA_DOUBLE_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    CUDA_DOUBLE_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    CUDA_DOUBLE_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    CUDA_DOUBLE_ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    CUDA_DOUBLE_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    CUDA_DOUBLE_ERROR(cudaErrorNotReady, "device not ready"),
    CUDA_DOUBLE_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    CUDA_DOUBLE_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    CUDA_DOUBLE_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    CUDA_DOUBLE_ERROR(cudaErrorTooManyPeers, "peer mapping resources exhausted"),
    CUDA_DOUBLE_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    CUDA_DOUBLE_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    CUDA_DOUBLE_ERROR(cudaErrorNotSupported, "operation not supported"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureImplicit,
                      "operation would make the legacy stream depend on a capturing blocking stream"),
    CUDA_DOUBLE_ERROR(cudaErrorCapturedEvent,
                      "operation not permitted on an event last recorded in a capturing stream"),
    CUDA_DOUBLE_ERROR(cudaErrorStreamCaptureWrongThread,
                      "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef CUDA_DOUBLE_ERROR

const Name* Find(cudaError_t error) {
  for (const Name& name : kNames) {
    if (name.error == error) return &name;
  }
  return nullptr;
}

}  // namespace

cudaError_t Lost() { return lost.load(); }

void Lose(cudaError_t error) {
  cudaError_t none = cudaSuccess;
  lost.compare_exchange_strong(none, error);
}

cudaError_t Answer(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}

cudaError_t Usable() {
  if (!GetSettings().driver) return cudaErrorInsufficientDriver;
  if (GetSettings().devices == 0) return cudaErrorNoDevice;
  return Lost();
}

}  // namespace cuda_double

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_double::last;
  cuda_double::last = cuda_double::Lost();
  return error;
}

cudaError_t cudaPeekAtLastError() { return cuda_double::last; }

const char* cudaGetErrorName(cudaError_t error) {
  const cuda_double::Name* found = cuda_double::Find(error);
  return found ? found->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const cuda_double::Name* found = cuda_double::Find(error);
  return found ? found->text : "unrecognized error code";
}

void cudaDoubleLoseDevice(cudaError_t error) { cuda_double::Lose(error); }

cudaError_t cudaDoubleLoss() { return cuda_double::Lost(); }

}  // extern "C"
