#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {

void layer_norm(const LayerNormRows& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t n = a.columns;
  float* row = scratch;
  const float* gamma = Widened(a.gamma, 0, n, scratch + n);
  const float* beta = Widened(a.beta, 0, n, scratch + 2 * n);
  for (int64_t r = begin; r < end; ++r) {
    const float* h = Widened(a.x, r * n, n, row);
    if (a.residual.data) {
      float* sum = Destination(a.sum, r * n, row);
      alignas(64) float block[256];
      for (int64_t first = 0; first < n; first += 256) {
        const int64_t count = Min(256, n - first);
        const float* addend = Widened(a.residual, r * n + first, count, block);
        ForEachVector(count, [&](int64_t j, int64_t lanes) SY_INLINED {
          Store(sum + first + j, Load(h + first + j, lanes) + Load(addend + j, lanes), lanes);
        });
      }
      Finish(a.sum, r * n, n, sum);
      h = Widened(a.sum, r * n, n, row);  // as it was stored, which is what the backward part reads
    }
    const float mean =
        SumOver(n, [&](int64_t i, int64_t lanes) SY_INLINED { return Load(h + i, lanes); }) / static_cast<float>(n);
    const float variance = SumOver(n,
                                   [&](int64_t i, int64_t lanes) SY_INLINED {
                                     const Floats d = Keep(Load(h + i, lanes) - mean, lanes);
                                     return d * d;
                                   }) /
                           static_cast<float>(n);
    const float rstd = 1.0f / __builtin_sqrtf(variance + a.eps);
    At(a.mean, r) = mean;
    At(a.rstd, r) = rstd;
    float* y = Destination(a.y, r * n, row);
    ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
      const Floats normal = (Load(h + i, lanes) - mean) * rstd;
      Store(y + i, normal * Load(gamma + i, lanes) + Load(beta + i, lanes), lanes);
    });
    Finish(a.y, r * n, n, y);
  }
}

// With x̂ = (h − mean)·rstd and g = dy·gamma: dh = rstd·(g − mean(g) − x̂·mean(g·x̂)) [+ dsum].
void layer_norm_backward(const LayerNormGradientRows& a, int64_t begin, int64_t end, float* dgamma, float* dbeta,
                         float* scratch) {
  const int64_t n = a.columns;
  const float* gamma = Widened(a.gamma, 0, n, scratch + 3 * n);
  for (int64_t r = begin; r < end; ++r) {
    const float* h = Widened(a.h, r * n, n, scratch);
    const float* dy = Widened(a.dy, r * n, n, scratch + n);
    const float mean = At(a.mean, r), rstd = At(a.rstd, r);
    Floats sum_g = {}, sum_gx = {};
    ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
      const Floats x = (Load(h + i, lanes) - mean) * rstd, d = Load(dy + i, lanes), g = d * Load(gamma + i, lanes);
      sum_g += g;
      sum_gx += g * x;
      Store(dgamma + i, Load(dgamma + i, lanes) + d * x, lanes);
      Store(dbeta + i, Load(dbeta + i, lanes) + d, lanes);
    });
    const float mean_g = Sum(sum_g) / static_cast<float>(n), mean_gx = Sum(sum_gx) / static_cast<float>(n);
    const float* dsum = a.dsum.data ? Widened(a.dsum, r * n, n, scratch + 2 * n) : nullptr;
    float* dh = Destination(a.dh, r * n, scratch);
    const auto gradient = [&](int64_t i, int64_t lanes) SY_INLINED {
      const Floats x = (Load(h + i, lanes) - mean) * rstd;
      return rstd * (Load(dy + i, lanes) * Load(gamma + i, lanes) - mean_g - x * mean_gx);
    };
    if (dsum) {
      ForEachVector(n, [&](int64_t i, int64_t lanes)
                           SY_INLINED { Store(dh + i, gradient(i, lanes) + Load(dsum + i, lanes), lanes); });
    } else {
      ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED { Store(dh + i, gradient(i, lanes), lanes); });
    }
    Finish(a.dh, r * n, n, dh);
  }
}

}  // namespace switchyard::SY_ISA
