#include "backends/cuda/check.h"

#include <array>
#include <atomic>
#include <mutex>

namespace switchyard {
namespace {

constexpr int kMostDevices = 64;

struct Loss {
  std::mutex mutex;
  std::atomic<bool> happened{false};
  sy_error error{SY_HEADER(sy_error)};
};

std::array<Loss, kMostDevices> losses;

// cudaErrorContained and cudaErrorTensorMemoryLeak, which the oldest CUDA that this is built with has no names for.
constexpr int kContained = 226, kTensorMemoryLeak = 721;
#if CUDART_VERSION >= 13000
static_assert(kContained == cudaErrorContained && kTensorMemoryLeak == cudaErrorTensorMemoryLeak);
#endif

// The errors after which "the process must be terminated and relaunched" (documentation of cudaError).
bool Sticky(cudaError_t code) {
  if (code == static_cast<cudaError_t>(kContained) || code == static_cast<cudaError_t>(kTensorMemoryLeak)) return true;
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsClientTerminated:
      return true;
    default:
      return false;
  }
}

// The device that this thread entered last: a lost one may not even say which device is current.
thread_local int32_t entered = 0;
// A fresh thread answers device 0 where it is asked, but has no context until cudaSetDevice, and the libraries
// (cuBLASLt, cuDNN) work in the thread's context.
thread_local bool has_context = false;

sy_status StatusOf(cudaError_t code) {
  if (Sticky(code)) return SY_DEVICE_LOST;
  switch (code) {
    case cudaErrorMemoryAllocation:
      return SY_OUT_OF_MEMORY;
    case cudaErrorNotSupported:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorStreamCaptureUnsupported:  // these six: what a capture cannot hold
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
      return SY_UNSUPPORTED;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureWrongThread:
      return SY_INVALID;
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
      return SY_DEVICE_LOST;
    default:
      return SY_INTERNAL;
  }
}

}  // namespace

sy_status LibraryFailed(sy_error* error, sy_status status, int64_t code, const char* text, const char* call,
                        std::source_location where) {
  Refuse(error, status, Format("%.160s: %.300s (%lld)", call, text ? text : "no text", static_cast<long long>(code)),
         where);
  if (error && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return status;
}

sy_status CudaFailed(sy_error* error, cudaError_t code, const char* call, std::source_location where) {
  const sy_status status = StatusOf(code);
  sy_error own{SY_HEADER(sy_error)};
  LibraryFailed(&own, status, code, Format("%s: %s", cudaGetErrorName(code), cudaGetErrorString(code)).c_str(), call,
                where);
  cudaGetLastError();  // forgets it, unless it is sticky
  if (Sticky(code) && entered < kMostDevices) {
    Loss& loss = losses[static_cast<size_t>(entered)];
    const std::lock_guard lock(loss.mutex);
    if (!loss.happened) {
      loss.error = own;
      loss.happened = true;
    }
    own = loss.error;
  }
  if (error) FillStruct(error, own);
  return status;
}

sy_status FirstLoss(int32_t index, sy_error* error) {
  if (index < 0 || index >= kMostDevices) return SY_OK;
  Loss& loss = losses[static_cast<size_t>(index)];
  if (!loss.happened) return SY_OK;
  const std::lock_guard lock(loss.mutex);
  if (error) FillStruct(error, loss.error);
  return SY_DEVICE_LOST;
}

sy_status Enter(int32_t index, sy_error* error) {
  SY_TRY(FirstLoss(index, error));
  entered = index < 0 ? 0 : index;
  int current = -1;
  SY_CUDA(error, cudaGetDevice(&current));
  if (current != index || !has_context) SY_CUDA(error, cudaSetDevice(index));
  has_context = true;
  return SY_OK;
}

}  // namespace switchyard
