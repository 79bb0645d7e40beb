// Single instructions that C++ has no word for: approximations of the special function unit, and a minimum that does
// not lose what is not a number. Device code; every function belongs to the calling thread. (A host emulation of CUDA
// defines its own before and SWITCHYARD_APPROXIMATE_CUH_.)
// https://docs.nvidia.com/cuda/parallel-thread-execution/ (ex2, lg2, rcp, min)
#ifndef SWITCHYARD_APPROXIMATE_CUH_
#define SWITCHYARD_APPROXIMATE_CUH_

#include <cuda_runtime.h>

namespace switchyard {

// 2^x, log2(x) and 1 / x, correct to about 2⁻²² (of log2 near 1: 2⁻²² itself); results and operands below the least
// normal number count as 0.
__device__ __forceinline__ float ApproximateExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float ApproximateLog2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float ApproximateReciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The lesser one; not a number if either is.
__device__ __forceinline__ float LeastOrNan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace switchyard

#endif  // SWITCHYARD_APPROXIMATE_CUH_
