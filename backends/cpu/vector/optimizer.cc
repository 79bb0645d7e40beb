// One pass over parameters, gradients and moments: every byte is read once and written once.
#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

void Sgd(const OptimizerStep& s, const OptimizerChunk& c) {
  const Rows g_row = {const_cast<char*>(c.g), c.g_dtype};
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats p = Load(c.p + i, lanes);
    Floats g = LoadRow(g_row, i, lanes) * s.gradient_scale + s.weight_decay * p;
    if (c.m) {
      const Floats m = s.first ? g : s.momentum * Load(c.m + i, lanes) + (1.0f - s.dampening) * g;
      Store(c.m_out + i, m, lanes);
      g = s.nesterov ? g + s.momentum * m : m;
    }
    Store(c.p_out + i, p - s.lr * g, lanes);
  });
}

template <bool decoupled>
void Adam(const OptimizerStep& s, const OptimizerChunk& c) {
  const Rows g_row = {const_cast<char*>(c.g), c.g_dtype};
  const float keep = 1.0f - s.lr * s.weight_decay;
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    Floats p = Load(c.p + i, lanes), g = LoadRow(g_row, i, lanes) * s.gradient_scale;
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

}  // namespace

void optimizer_update(const OptimizerStep& step, const OptimizerChunk& chunk) {
  if (step.kind == SY_OPTIMIZER_SGD) return Sgd(step, chunk);
  if (step.kind == SY_OPTIMIZER_ADAM) return Adam<false>(step, chunk);
  Adam<true>(step, chunk);
}

}  // namespace switchyard::SY_ISA
