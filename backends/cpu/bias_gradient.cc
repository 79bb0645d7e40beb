#include <algorithm>

#include "backends/cpu/matmul.h"
#include "backends/cpu/parallel.h"

namespace switchyard {

MatmulBiasGradient::MatmulBiasGradient(const MatmulShape& shape, bool transposed, int threads)
    : m_(shape.m), k_(shape.k), threads_(threads) {
  if (transposed) parts_ = std::clamp<int64_t>(m_ * k_ / 65536, 1, std::min<int64_t>(16, k_));
}

void MatmulBiasGradient::Run(Rows a, bool accumulate, float* out, float* workspace) const {
  const int64_t bytes = DtypeBytes(a.dtype);
  if (parts_ == 0) {  // rows of K elements
    ParallelRanges(threads_, m_, RowGrain(k_), [&](int64_t begin, int64_t end, int) {
      float block[1024];
      for (int64_t i = begin; i < end; ++i) {
        float sum = accumulate ? out[i] : 0.0f;
        for (int64_t first = 0; first < k_; first += 1024) {
          const int64_t n = std::min<int64_t>(1024, k_ - first);
          Vector().to_float(a.dtype, a.data + (i * k_ + first) * bytes, block, n);
          sum += Vector().reduce(SY_REDUCE_SUM, block, n);
        }
        out[i] = sum;
      }
    });
    return;
  }
  // Columns of (K, M): parts of rows into partial sums, which are added in order.
  ParallelRanges(threads_, parts_, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = k_ * part / parts_, last = k_ * (part + 1) / parts_;
      std::fill_n(workspace + part * m_, m_, 0.0f);
      Vector().add_columns({a.data + first * m_ * bytes, a.dtype}, last - first, m_, m_, workspace + part * m_);
    }
  });
  for (int64_t part = 1; part < parts_; ++part)
    Vector().reduce_into(SY_REDUCE_SUM, workspace, workspace + part * m_, m_);
  if (accumulate) Vector().reduce_into(SY_REDUCE_SUM, workspace, out, m_);
  std::copy_n(workspace, m_, out);
}

}  // namespace switchyard
