// Kernels as tests/gpu/check_machine_code must not let them pass. check_machine_code_faults compiles them and expects
// each fault to be told; nothing else has them.
#include <cstdint>

namespace switchyard {
namespace {

// Says that it takes eight elements at once, of which one access does, and takes the rest byte by byte.
template <int kPack>
__global__ void BytesKernel(const uint4* packed, const uint8_t* bytes, uint4* out, uint8_t* out_bytes) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  out[at] = packed[at];
  for (unsigned i = 0; i < kPack; ++i) out_bytes[at * kPack + i] = bytes[at * kPack + i] + 1;
}

// An index that is known only when it runs puts the array into local memory.
__device__ void SumOfSome(const int* indices, float* out) {
  float values[32];
  for (int i = 0; i < 32; ++i) values[i] = out[i] * out[i + 1];
  for (int i = 0; i < 32; ++i) out[threadIdx.x] += values[indices[i] & 31];
}
__global__ void StackKernel(const int* indices, float* out) { SumOfSome(indices, out); }  // of which some is let pass
__global__ void RefusedStackKernel(const int* indices, float* out) { SumOfSome(indices, out); }

__device__ __noinline__ float Called(float x, int n) { return n > 0 ? x * Called(x + 1, n - 1) : x; }
__global__ void CallingKernel(float* out) { out[threadIdx.x] = Called(out[threadIdx.x], 3 + threadIdx.x); }

}  // namespace

// So that they are compiled.
void LaunchFaultyKernels(const uint4* packed, const uint8_t* bytes, uint4* out, uint8_t* out_bytes, int* i, float* f) {
  BytesKernel<8><<<1, 256>>>(packed, bytes, out, out_bytes);
  StackKernel<<<1, 256>>>(i, f);
  RefusedStackKernel<<<1, 256>>>(i, f);
  CallingKernel<<<1, 256>>>(f);
}

}  // namespace switchyard
