// orthonormalize: many matrices in one launch, a block for each, which finds its own in a table that bind uploads. A
// thread keeps to its columns of all rows, so that only sums pass between threads, in a fixed order.
#include <cmath>

#include "backends/cuda/team.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

struct Matrix {
  const float* a;
  const float* drawn;  // or null
  float* q;
  int64_t rows, columns;
};

__device__ __forceinline__ float BlockDot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t k = threadIdx.x; k < n; k += kTeamBlock) sum += a[k] * b[k];
  return BlockReduce(sum, Plus());
}

// By Gram and Schmidt, modified: each row that was made is cleared out before the next product.
__global__ void OrthonormalizeKernel(const Matrix* matrices) {
  const Matrix m = matrices[blockIdx.x];
  const int64_t n = m.columns;
  for (int64_t i = 0; i < m.rows; ++i) {
    const float* from = m.a + i * n;
    float given = BlockDot(from, from, n);
    if (m.drawn != nullptr && given == 0) {
      from = m.drawn + i * n;
      given = BlockDot(from, from, n);
    }
    float* const v = m.q + i * n;
    for (int64_t k = threadIdx.x; k < n; k += kTeamBlock) v[k] = from[k];
    for (int round = 0; round < 2; ++round) {
      for (int64_t j = 0; j < i; ++j) {
        const float* const q = m.q + j * n;
        const float share = BlockDot(v, q, n);
        for (int64_t k = threadIdx.x; k < n; k += kTeamBlock) v[k] -= share * q[k];
      }
    }
    const float left = BlockDot(v, v, n);
    const float scale = left <= 1e-10f * given ? 0 * left : 1 / sqrtf(left);
    for (int64_t k = threadIdx.x; k < n; k += kTeamBlock) v[k] *= scale;
  }
}

struct OrthonormalizeBound : Bound {
  DeviceTable matrices;
};

struct Orthonormalize : Kernel {
  explicit Orthonormalize(const Request& r) : Kernel(r) {
    for (size_t o = 0; o < outputs.size(); ++o) inplace[o] = static_cast<int32_t>(o);
  }
  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    auto made = std::make_unique<OrthonormalizeBound>();
    static_cast<Bound&>(*made) = **bound;
    std::vector<Matrix> matrices;
    const size_t count = outputs.size();
    for (size_t i = 0; i < count; ++i)
      matrices.push_back({made->Input<float>(i), inputs.size() > count ? made->Input<float>(count + i) : nullptr,
                          made->Output<float>(i), outputs[i].dims[0], outputs[i].dims[1]});
    SY_TRY(made->matrices.Assign(device, matrices.data(), matrices.size() * sizeof(Matrix), error));
    *bound = std::move(made);
    return SY_OK;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto& own = static_cast<const OrthonormalizeBound&>(b);
    SY_CUDA(error, Launch(OrthonormalizeKernel, dim3(static_cast<unsigned>(outputs.size())), dim3(kTeamBlock), 0,
                          context.stream, own.matrices.data<Matrix>()));
    return SY_OK;
  }
};

KernelPointer PrepareOrthonormalize(const Request& r) {
  const int32_t drawn = r.Attributes<sy_orthonormalize_attributes>().drawn;
  if (drawn != 0 && drawn != 1) return SY_REFUSE(r, "orthonormalize: drawn %d", drawn);
  const size_t count = r.outputs.size();
  if (count == 0 || !r.HasCounts(count * (drawn ? 2 : 1), count * (drawn ? 2 : 1), count)) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "orthonormalize: cannot accumulate");
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const sy_tensor& q = r.outputs[i % count];
    if (r.inputs[i].rank != 2) return SY_REFUSE(r, "orthonormalize: rank %d, expected 2", r.inputs[i].rank);
    if (!r.RequireDtype(r.inputs[i], SY_F32, "a matrix") || !r.RequireDtype(q, SY_F32, "a result") ||
        !r.RequireDimsOf(r.inputs[i], q, "a matrix"))
      return nullptr;
  }
  return std::make_unique<Orthonormalize>(r);
}

const Registration kOrthonormalize{"orthonormalize", PrepareOrthonormalize, sizeof(sy_orthonormalize_attributes)};

}  // namespace
}  // namespace switchyard
