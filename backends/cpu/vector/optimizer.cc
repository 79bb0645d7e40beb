// One pass over parameters, gradients and moments: every byte is read once and written once. LAMB and LARS, whose step
// depends on norms of whole tensors, take a second pass.
#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

SY_INLINE void StoreParameter(const OptimizerChunk& c, int64_t i, Floats p, int64_t lanes) {
  Store(c.p_out + i, p, lanes);
  if (c.h_out.data) StoreRow(c.h_out, i, p, lanes);
}

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
    StoreParameter(c, i, p - s.lr * g, lanes);
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
    StoreParameter(c, i, p - s.step_size * m / (SquareRoot(v) * s.inverse_root_correction2 + s.eps), lanes);
  });
}

// u of LAMB.
SY_INLINE Floats LambStep(const OptimizerStep& s, Floats p, Floats m, Floats v) {
  const Floats u = s.inverse_correction1 * m / (SquareRoot(v) * s.inverse_root_correction2 + s.eps);
  return s.decoupled ? u + s.weight_decay * p : u;
}

// The moments were updated with the norms.
void Lamb(const OptimizerStep& s, const OptimizerChunk& c) {
  const float rate = s.lr * c.ratio;
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats p = Load(c.p + i, lanes);
    const Floats step = LambStep(s, p, Load(c.m_out + i, lanes), Load(c.v_out + i, lanes));
    StoreParameter(c, i, p - rate * step, lanes);
  });
}

void Lars(const OptimizerStep& s, const OptimizerChunk& c) {
  const Rows g_row = {const_cast<char*>(c.g), c.g_dtype};
  const float rate = s.lr * c.ratio;
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats p = Load(c.p + i, lanes);
    Floats g = rate * (LoadRow(g_row, i, lanes) * s.gradient_scale + s.weight_decay * p);
    if (c.m) {
      const Floats m = s.first ? g : s.momentum * Load(c.m + i, lanes) + g;
      Store(c.m_out + i, m, lanes);
      g = s.nesterov ? g + s.momentum * m : m;
    }
    StoreParameter(c, i, p - g, lanes);
  });
}

}  // namespace

void optimizer_norms(const OptimizerStep& s, const OptimizerChunk& c, float* squares) {
  const Rows g_row = {const_cast<char*>(c.g), c.g_dtype};
  Floats parameters = {}, steps = {};
  ForEachVector(c.count, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats p = Load(c.p + i, lanes);
    Floats g = LoadRow(g_row, i, lanes) * s.gradient_scale;
    if (s.kind == SY_OPTIMIZER_LAMB) {
      if (!s.decoupled) g += s.weight_decay * p;
      const Floats m = s.beta1 * Load(c.m + i, lanes) + s.gradient_share * g;
      const Floats v = s.beta2 * Load(c.v + i, lanes) + (1.0f - s.beta2) * (g * g);
      Store(c.m_out + i, m, lanes);
      Store(c.v_out + i, v, lanes);
      g = Keep(LambStep(s, p, m, v), lanes);
    }
    parameters += p * p;
    steps += g * g;
  });
  squares[0] = Sum(parameters);
  squares[1] = Sum(steps);
}

void optimizer_update(const OptimizerStep& step, const OptimizerChunk& chunk) {
  if (step.kind == SY_OPTIMIZER_SGD) return Sgd(step, chunk);
  if (step.kind == SY_OPTIMIZER_ADAM) return Adam<false>(step, chunk);
  if (step.kind == SY_OPTIMIZER_LAMB) return Lamb(step, chunk);
  if (step.kind == SY_OPTIMIZER_LARS) return Lars(step, chunk);
  Adam<true>(step, chunk);
}

}  // namespace switchyard::SY_ISA
