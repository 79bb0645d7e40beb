// optimizer_update: SGD with momentum (Sutskever et al., 2013), Adam (Kingma and Ba, 2014) and AdamW (Loshchilov and
// Hutter, 2017), elementwise, tensor by tensor; what depends on lr and the step alone is computed once per launch, on
// the device. aclnnApplyAdamWV2 takes the learning rate from the host and so cannot serve a table on the device.
#include <array>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite

// What every tensor of the update reads: operands of one element.
struct Shared {
  Operand lr, gradient_scale;
  Operand finite;            // bool
  Operand first;             // bool: t = 1; SGD
  Operand m_scale, v_scale;  // 1/(1 − β1ᵗ), 1/(1 − β2ᵗ); Adam
  Operand kept;              // 1 − lr·wd; AdamW
};

// 1/(1 − βᵗ)
Operand Debias(Sequence& s, float beta, const Operand& t) {
  const Operand power = s.Binary(s.op.PowTensorTensor, s.Constant(beta), t);
  return s.Unary(s.op.Reciprocal, s.Plus(s.Scaled(power, -1), 1));
}

Shared Prologue(Sequence& s, const Request& r, const sy_optimizer_attributes& a) {
  Shared shared;
  const auto scalar = [&](size_t i) { return s.Wide(r.inputs[i].Reshaped({1})); };
  shared.lr = scalar(0);
  const Operand t = s.Plus(scalar(1), 1);
  shared.gradient_scale = scalar(2);
  // A NaN is not 0, as in the specification.
  const Operand zero = s.Binary(s.op.EqTensor, scalar(3), s.Constant(0));
  shared.finite = s.Holds(s.op.EqTensor, zero, s.Constant(0));
  if (a.kind == SY_OPTIMIZER_SGD) {
    shared.first = s.Holds(s.op.EqTensor, t, s.Constant(1));
    return shared;
  }
  shared.m_scale = Debias(s, a.beta1, t);
  shared.v_scale = Debias(s, a.beta2, t);
  shared.kept = s.Plus(s.Scaled(shared.lr, -a.weight_decay), 1);
  return shared;
}

// The new p, m and v; the last two where the optimizer has them.
std::array<Operand, 3> Update(Sequence& s, const Shared& shared, const sy_optimizer_attributes& a,
                              const std::array<Operand, 3>& old, Operand g) {
  const auto& [p, m, v] = old;
  g = s.Mul(g, shared.gradient_scale);
  if (a.kind != SY_OPTIMIZER_ADAMW && a.weight_decay != 0) g = s.Add(g, p, a.weight_decay);
  if (a.kind == SY_OPTIMIZER_SGD) {
    if (a.momentum == 0) return {s.Sub(p, s.Mul(g, shared.lr)), {}, {}};
    const Operand carried = s.Add(s.Scaled(m, a.momentum), g, 1.0 - a.dampening);
    const Operand velocity = s.Where(shared.first, g, carried);
    const Operand step = a.nesterov ? s.Add(g, velocity, a.momentum) : velocity;
    return {s.Sub(p, s.Mul(step, shared.lr)), velocity, {}};
  }
  const Operand mean = s.Add(s.Scaled(m, a.beta1), g, 1.0 - a.beta1);
  const Operand square = s.Add(s.Scaled(v, a.beta2), s.Mul(g, g), 1.0 - a.beta2);
  const Operand divisor = s.Plus(s.Unary(s.op.Sqrt, s.Mul(square, shared.v_scale)), a.eps);
  const Operand step = s.Binary(s.op.Div, s.Mul(mean, s.Mul(shared.m_scale, shared.lr)), divisor);
  const Operand from = a.kind == SY_OPTIMIZER_ADAMW ? s.Mul(p, shared.kept) : p;
  return {s.Sub(from, step), mean, square};
}

sy_status BuildOptimizerUpdate(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_optimizer_attributes>();
  if (a.kind < SY_OPTIMIZER_SGD || a.kind > SY_OPTIMIZER_ADAMW)
    return SY_FAIL(r.error, SY_UNSUPPORTED,
                   "optimizer_update: kind %d; there are SGD, Adam and AdamW, LAMB and LARS run as simpler ops",
                   a.kind);
  if (a.half_copies)
    return SY_FAIL(r.error, SY_UNSUPPORTED,
                   "optimizer_update: no half copies; the graph converts what this op updated");
  const size_t states = a.kind != SY_OPTIMIZER_SGD ? 2 : a.momentum != 0 ? 1 : 0, given = 2 + states;
  if (r.inputs.size() <= kScalars || (r.inputs.size() - kScalars) % given != 0)
    return SY_FAIL(r.error, SY_UNSUPPORTED,
                   "optimizer_update: expected 4 scalars and %zu inputs per tensor, found %zu inputs", given,
                   r.inputs.size());
  const size_t tensors = (r.inputs.size() - kScalars) / given;
  if (const sy_status status = r.Expect(r.inputs.size(), tensors * (1 + states)); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  for (size_t i = 0; i < kScalars; ++i) {
    if (r.inputs[i].count() != 1)
      return SY_FAIL(r.error, SY_UNSUPPORTED, "optimizer_update: scalar %zu must have one element", i);
  }
  for (size_t k = 0; k < tensors; ++k) {
    const Dims& dims = r.inputs[kScalars + k * given].dims;
    for (size_t i = 1; i < given; ++i) {
      const sy_status status = r.ExpectDims("g, m and v", r.inputs[kScalars + k * given + i], dims);
      if (status != SY_OK) return status;
    }
    for (size_t o = 0; o <= states; ++o) {
      const Operand& output = r.outputs[k * (1 + states) + o];
      if (const sy_status status = r.ExpectDims("p', m' and v'", output, dims); status != SY_OK) return status;
    }
  }

  const Shared shared = Prologue(s, r, a);
  for (size_t k = 0; k < tensors; ++k) {
    const Sequence::Scope scope(s);
    const size_t in = kScalars + k * given, out = k * (1 + states);
    std::array<Operand, 3> old = {s.Wide(r.inputs[in]), {}, {}};
    for (size_t i = 0; i < states; ++i) old[1 + i] = s.Wide(r.inputs[in + 2 + i]);
    const std::array<Operand, 3> updated = Update(s, shared, a, old, s.Wide(r.inputs[in + 1]));
    // Nothing of the old is read after the new is written, element by element: each may replace its own.
    for (size_t o = 0; o <= states; ++o) {
      const Operand to = s.Destination(r, out + o);
      s.Deliver(r, out + o, s.Where(shared.finite, updated[o], old[o], &to));
      const size_t from = o == 0 ? in : in + 1 + o;
      if (to.SamePlaceAs(r.outputs[out + o]) && r.inputs[from].dtype == ACL_FLOAT)
        r.inplace[out + o] = static_cast<int32_t>(from);
    }
  }
  return SY_OK;
}

const Registration kOptimizerUpdate{"optimizer_update", BuildOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
