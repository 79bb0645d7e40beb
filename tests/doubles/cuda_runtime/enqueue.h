// What the double offers beyond CUDA's own interface: how code that runs in place of GPU kernels gets onto its streams.
// A program that links the double calls these directly; they do not exist in the real library. Any thread.
#ifndef SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_ENQUEUE_H_
#define SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_ENQUEUE_H_

#include <cuda_runtime_api.h>

extern "C" {

// A kernel launch: `run(data)` is called by the stream's thread after the work before it, and once per replay where the
// stream is being captured. `release(data)`, which may be NULL, is called exactly once when it can never run again,
// also where the launch fails. The current device must be the stream's, as for cudaLaunchKernel. Counts as a launch for
// CUDA_DOUBLE_FAULT.
cudaError_t cudaDoubleEnqueue(cudaStream_t stream, void (*run)(void* data), void* data, void (*release)(void* data));

// The same of a kernel that has a name, `function`, as cudaLaunchKernel has it: its code has to be loaded first
// (CUDA_DOUBLE_LAZY).
cudaError_t cudaDoubleLaunch(const void* function, cudaStream_t stream, void (*run)(void* data), void* data,
                             void (*release)(void* data));

// What cudaLaunchKernel and cudaLaunchKernelExC call after their checks; without one they answer
// cudaErrorNoKernelImageForDevice.
typedef cudaError_t (*cudaDoubleLauncher)(const void* function, dim3 grid, dim3 block, void** arguments,
                                          size_t shared_bytes, cudaStream_t stream);
void cudaDoubleSetLauncher(cudaDoubleLauncher launcher);

// Whether this thread has called cudaSetDevice: until then a library that works in the thread's context finds none.
int cudaDoubleHasContext(void);

// The device that fails from now on with `error`, as a kernel that touched a bad address makes it: every later call
// answers it.
void cudaDoubleLoseDevice(cudaError_t error);

// The error that the device was lost with, or cudaSuccess.
cudaError_t cudaDoubleLoss(void);

}  // extern "C"

#endif  // SWITCHYARD_TESTS_DOUBLES_CUDA_RUNTIME_ENQUEUE_H_
