// aclnnMatmul of matrices, or of equally many: f32 accumulation, in blocks that fit the host's cache.
#include <algorithm>

#include "tests/doubles/npu/operator.h"

namespace simulator {
namespace {

constexpr uint64_t kWorkspace = 4096;  // what the operator asks for, so that callers have to give some

// c (m, n) = a (m, k) · b (k, n), row-major.
__attribute__((always_inline)) inline void MultiplyBlocks(const float* a, const float* b, float* c, int64_t m,
                                                          int64_t k, int64_t n) {
  constexpr int64_t kRows = 4, kDepth = 128, kColumns = 512;
  std::fill_n(c, m * n, 0.0f);
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = std::min(kDepth, k - p);
    for (int64_t j = 0; j < n; j += kColumns) {
      const int64_t columns = std::min(kColumns, n - j);
      int64_t i = 0;
      for (; i + kRows <= m; i += kRows) {
        float *c0 = c + i * n + j, *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
        for (int64_t q = p; q < p + depth; ++q) {
          const float* row = b + q * n + j;
          const float a0 = a[i * k + q], a1 = a[(i + 1) * k + q], a2 = a[(i + 2) * k + q], a3 = a[(i + 3) * k + q];
          for (int64_t x = 0; x < columns; ++x) {
            c0[x] += a0 * row[x];
            c1[x] += a1 * row[x];
            c2[x] += a2 * row[x];
            c3[x] += a3 * row[x];
          }
        }
      }
      for (; i < m; ++i) {
        for (int64_t q = p; q < p + depth; ++q) {
          const float factor = a[i * k + q];
          for (int64_t x = 0; x < columns; ++x) c[i * n + j + x] += factor * b[q * n + j + x];
        }
      }
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void MultiplyWide(const float* a, const float* b, float* c, int64_t m, int64_t k,
                                                      int64_t n) {
  MultiplyBlocks(a, b, c, m, k, n);
}
#endif

}  // namespace

void Multiply(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return MultiplyWide(a, b, c, m, k, n);
#endif
  MultiplyBlocks(a, b, c, m, k, n);
}

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnMatmulGetWorkspaceSize(const aclTensor* self, const aclTensor* mat2, aclTensor* out,
                                                   int8_t cubeMathType, uint64_t* workspaceSize,
                                                   aclOpExecutor** executor) {
  Planner plan("aclnnMatmul");
  plan.Floats({self, mat2, out}).SameDtype({self, mat2, out});
  if (plan.ok()) {
    const size_t rank = self->dims.size();
    plan.Need(cubeMathType == 0, "simulated with cubeMathType 0")
        .Need((rank == 2 || rank == 3) && mat2->dims.size() == rank, "simulated for 2 or 3 axes")
        .Need(IsContiguous(*out), "out must be contiguous");
    if (plan.ok()) {
      Dims dims = self->dims;
      dims.back() = mat2->dims.back();
      Dims right = mat2->dims;
      right[rank - 2] = self->dims.back();
      plan.Shape(out, dims).Shape(mat2, right).Need(rank == 2 || self->dims[0] == mat2->dims[0], "the batches differ");
    }
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [a_from = *self, b_from = *mat2, to = *out]() -> Outcome {
        const Read<float> a(a_from, a_from.dims), b(b_from, b_from.dims);
        Write c(to);
        if (!a.valid() || !b.valid() || !c.valid()) return LostMemory("aclnnMatmul");
        const size_t rank = to.dims.size();
        const int64_t m = to.dims[rank - 2], n = to.dims[rank - 1], k = a_from.dims[rank - 1];
        for (int64_t batch = 0; batch < Count(to.dims) / (m * n); ++batch) {
          Multiply(a.data() + batch * m * k, b.data() + batch * k * n, c.data() + batch * m * n, m, k, n);
        }
        c.Finish();
        return {};
      },
      kWorkspace, workspaceSize, executor);
}
