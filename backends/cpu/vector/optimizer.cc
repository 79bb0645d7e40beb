// One pass over parameters, gradients and moments: every byte is read once and written once.
#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

template <sy_dtype dtype>
void Sgd(const OptimizerStep& s, const OptimizerChunk& c) {
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats p = Load(c.p + i, lanes);
    Floats g = LoadAs<dtype>(c.g, i, lanes) * s.gradient_scale + s.weight_decay * p;
    if (c.m) {
      const Floats m = s.first ? g : s.momentum * Load(c.m + i, lanes) + (1.0f - s.dampening) * g;
      Store(c.m_out + i, m, lanes);
      g = s.nesterov ? g + s.momentum * m : m;
    }
    Store(c.p_out + i, p - s.lr * g, lanes);
  });
}

template <sy_dtype dtype, bool decoupled>
void Adam(const OptimizerStep& s, const OptimizerChunk& c) {
  const float keep = 1.0f - s.lr * s.weight_decay;
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    Floats p = Load(c.p + i, lanes), g = LoadAs<dtype>(c.g, i, lanes) * s.gradient_scale;
    if (decoupled) {
      p *= keep;
    } else {
      g += s.weight_decay * p;
    }
    const Floats m = s.beta1 * Load(c.m + i, lanes) + (1.0f - s.beta1) * g;
    const Floats v = s.beta2 * Load(c.v + i, lanes) + (1.0f - s.beta2) * (g * g);
    Store(c.m_out + i, m, lanes);
    Store(c.v_out + i, v, lanes);
    Store(c.p_out + i, p - s.step_size * m / (SquareRoot(v) * s.inverse_root_correction2 + s.eps), lanes);
  });
}

template <sy_dtype dtype>
void Update(const OptimizerStep& s, const OptimizerChunk& c) {
  if (s.kind == SY_OPTIMIZER_SGD) return Sgd<dtype>(s, c);
  if (s.kind == SY_OPTIMIZER_ADAM) return Adam<dtype, false>(s, c);
  Adam<dtype, true>(s, c);
}

}  // namespace

void optimizer_update(const OptimizerStep& step, const OptimizerChunk& chunk) {
  if (chunk.g_dtype == SY_F32) return Update<SY_F32>(step, chunk);
  if (chunk.g_dtype == SY_BF16) return Update<SY_BF16>(step, chunk);
  Update<SY_F16>(step, chunk);
}

}  // namespace switchyard::SY_ISA
