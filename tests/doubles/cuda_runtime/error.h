// The runtime's error state: the last error of each thread, which cudaGetLastError takes, and the error of a lost
// device, which every later call of the process answers
// (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__ERROR.html). Thread-safe.
#ifndef SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_ERROR_H_
#define SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_ERROR_H_

#include <cuda_runtime_api.h>

namespace cuda_double {

// The error that made the process lose its devices, or cudaSuccess.
cudaError_t Lost();
void Lose(cudaError_t error);  // the first one stays

// Keeps a failure as the calling thread's last error, and returns what the call is to answer. cudaErrorNotReady is no
// failure.
cudaError_t Answer(cudaError_t error);

// cudaSuccess where the machine has a driver, devices, and none was lost: what every call asks first.
cudaError_t Usable();

// Runs `body` unless the machine is unusable; what it returns is the call's answer.
template <typename Body>
cudaError_t Call(Body body) {
  if (const cudaError_t error = Usable(); error != cudaSuccess) return Answer(error);
  return Answer(body());
}

}  // namespace cuda_double

#endif  // SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_ERROR_H_
