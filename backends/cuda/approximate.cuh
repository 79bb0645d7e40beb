// Single instructions that C++ has no word for: approximations of the special function unit, and a minimum that does
// not lose what is not a number. Device code; every function belongs to the calling thread. (A host emulation of CUDA
// defines its own before and SWITCHYARD_APPROXIMATE_CUH_.)
// https://docs.nvidia.com/cuda/parallel-thread-execution/ (ex2, min)
#ifndef SWITCHYARD_APPROXIMATE_CUH_
#define SWITCHYARD_APPROXIMATE_CUH_

#include <cuda_runtime.h>

namespace switchyard {

// 2^x with a relative error of about 2^-22; 0 where it would be smaller than the normal numbers.
__device__ __forceinline__ float ApproximateExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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
