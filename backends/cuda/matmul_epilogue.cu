// What follows a matrix product that the library has no epilogue for (MatmulEpilogue in kernel.h): bias, activation or
// its derivative, residual, in one pass with f32 arithmetic.
#include "backends/cuda/activation.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

struct EpilogueOperands {
  View accumulator, bias, preactivation, residual, saved, output;  // all but the first and the last may be absent
};

template <int N>
__global__ void MatmulEpilogueKernel(int64_t elements, int64_t columns, int activation, bool accumulate, EpilogueOperands p) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  if (i >= elements) return;
  float t[N], other[N];
  Load<N>(p.accumulator, i, t);
  if (p.bias) {
    Load<N>(p.bias, i % columns, other);
#pragma unroll
    for (int k = 0; k < N; ++k) t[k] += other[k];
  }
  if (p.preactivation) {
    Load<N>(p.preactivation, i, other);
#pragma unroll
    for (int k = 0; k < N; ++k) t[k] *= ActivationGradient(activation, other[k]);
  } else {
    if (p.saved) Store<N>(p.saved, i, t);
#pragma unroll
    for (int k = 0; k < N; ++k) t[k] = Activate(activation, t[k]);
  }
  if (p.residual) {
    Load<N>(p.residual, i, other);
#pragma unroll
    for (int k = 0; k < N; ++k) t[k] += other[k];
  }
  if (accumulate) {
    Load<N>(p.output, i, other);
#pragma unroll
    for (int k = 0; k < N; ++k) t[k] += other[k];
  }
  Store<N>(p.output, i, t);
}

View Of(const void* data, sy_dtype dtype) { return {static_cast<char*>(const_cast<void*>(data)), dtype}; }

}  // namespace

cudaError_t LaunchMatmulEpilogue(const MatmulEpilogue& e, cudaStream_t stream) {
  const EpilogueOperands p = {
      Of(e.accumulator, e.accumulator_dtype), Of(e.bias, e.bias_dtype),   Of(e.preactivation, e.preactivation_dtype),
      Of(e.residual, e.residual_dtype),       Of(e.saved, e.saved_dtype), Of(e.output, e.output_dtype)};
  const int64_t elements = e.rows * e.columns;
  const bool packs = Packs(e.columns);
  const dim3 grid(static_cast<unsigned>(CeilDivide(elements, int64_t{kThreads} * (packs ? kPack : 1))));
  return Launch(packs ? MatmulEpilogueKernel<kPack> : MatmulEpilogueKernel<1>, grid, dim3(kThreads), 0, stream,
                elements, e.columns, e.activation, e.accumulate, p);
}

}  // namespace switchyard
