// Attention over packed qkv, as products and a softmax that is kept as its logarithm's normaliser: p = exp(s −
// logsumexp). The whole (B, H, T, T) table of scores lies in scratch; aclnnFlashAttentionScore would spare it.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

struct Sizes {
  int64_t b, t, h, d;
  explicit Sizes(const Dims& qkv) : b(qkv[0]), t(qkv[1]), h(qkv[3]), d(qkv[4]) {}
  Dims Out() const { return {b, t, h, d}; }
  Dims Scores() const { return {b, h, t, t}; }
};

// (B, T, H, D) as (B·H, T, D), copied, since the two leading axes do not merge.
Operand Heads(Sequence& s, const Operand& x) {
  const Operand dense = s.Dense(x.Permuted({0, 2, 1, 3}));
  return dense.Reshaped({dense.dims[0] * dense.dims[1], dense.dims[2], dense.dims[3]});
}

// Part 0, 1 or 2 of qkv (B, T, 3, H, D) as (B, T, H, D).
Operand PartOf(const Operand& qkv, const Sizes& n, int64_t part) {
  Operand view = qkv.Part(2, part, 1);
  view.dims = n.Out();
  view.strides.erase(view.strides.begin() + 2);
  return view;
}

// (B·H, T, D) into a (B, T, H, D) view.
void StoreHeads(Sequence& s, const Operand& x, const Sizes& n, const Operand& to) {
  s.Emit(s.op.InplaceCopy, to.Permuted({0, 2, 1, 3}), x.Reshaped({n.b, n.h, n.t, n.d}));
}

sy_status CheckAttention(const Request& r, size_t first_optional, size_t outputs) {
  const auto a = r.Attributes<sy_attention_attributes>();
  const size_t inputs = first_optional + (a.bias ? 1 : 0) + (a.mask ? 1 : 0);
  if (const sy_status status = r.Expect(inputs, outputs); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const Dims& qkv = r.inputs[0].dims;
  if (qkv.size() != 5 || qkv[2] != 3) return Refuse(r.error, SY_UNSUPPORTED, r.op + ": qkv must be (B, T, 3, H, D)");
  const Sizes n(qkv);
  if (a.bias) {
    const sy_status status = r.ExpectDims("bias", r.inputs[first_optional], {n.h, n.t, n.t});
    if (status != SY_OK) return status;
  }
  if (a.mask) {
    const Operand& mask = r.inputs.back();
    if (mask.dims.size() != 3 || n.b % mask.dims[0] != 0)
      return Refuse(r.error, SY_UNSUPPORTED, r.op + ": mask must be (G, T, T), and B a multiple of G");
    return r.ExpectDims("mask", mask, {mask.dims[0], n.t, n.t});
  }
  return SY_OK;
}

// scale·q·kᵀ + bias[h] + mask[b mod G] as (B, H, T, T).
Operand Scores(Sequence& s, const Request& r, const Sizes& n, const Operand& q, const Operand& k,
               size_t first_optional) {
  const auto a = r.Attributes<sy_attention_attributes>();
  Operand scores = s.Scaled(s.Matmul(q, k.Transposed()), a.scale).Reshaped(n.Scores());
  if (a.bias) scores = s.Add(scores, s.Wide(r.inputs[first_optional]));
  if (a.mask) {
    const Operand mask = s.Wide(r.inputs.back());
    const int64_t g = mask.dims[0];
    scores = s.Add(scores.Reshaped({n.b / g, g, n.h, n.t, n.t}), mask.Reshaped({g, 1, n.t, n.t})).Reshaped(n.Scores());
  }
  return scores;
}

sy_status BuildAttention(Sequence& s, Request& r) {
  if (const sy_status status = CheckAttention(r, 1, 2); status != SY_OK) return status;
  const Sizes n(r.inputs[0].dims);
  if (const sy_status status = r.ExpectDims("out", r.outputs[0], n.Out()); status != SY_OK) return status;
  if (const sy_status status = r.ExpectDims("logsumexp", r.outputs[1], {n.b, n.h, n.t}); status != SY_OK) return status;
  const Operand out = s.Destination(r, 0), logsumexp = s.Destination(r, 1), qkv = s.Wide(r.inputs[0]);
  const Operand scores = Scores(s, r, n, Heads(s, PartOf(qkv, n, 0)), Heads(s, PartOf(qkv, n, 1)), 1);
  const Operand normaliser = logsumexp.Reshaped({n.b, n.h, n.t, 1});
  s.Emit(s.op.LogSumExp, scores, Dims{3}, true, normaliser);
  const Operand p = s.Unary(s.op.Exp, s.Sub(scores, normaliser));
  StoreHeads(s, s.Matmul(p.Reshaped({n.b * n.h, n.t, n.t}), Heads(s, PartOf(qkv, n, 2))), n, out);
  s.Deliver(r, 0, out);
  return s.Deliver(r, 1, logsumexp);
}

// dv = pᵀ·dout; dp = dout·vᵀ; ds = p·(dp − Σ dout·out); dq = scale·ds·k; dk = scale·dsᵀ·q (Dao et al.,
// "FlashAttention", 2022, algorithm 4).
sy_status BuildAttentionBackward(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_attention_attributes>();
  const bool dbias = r.outputs.size() == 2;
  if (dbias && !a.bias) return Refuse(r.error, SY_UNSUPPORTED, r.op + ": dbias is asked for, but there is no bias");
  if (const sy_status status = CheckAttention(r, 4, dbias ? 2 : 1); status != SY_OK) return status;
  const Sizes n(r.inputs[0].dims);
  for (const size_t i : {1, 3}) {
    if (const sy_status status = r.ExpectDims("out and dout", r.inputs[i], n.Out()); status != SY_OK) return status;
  }
  if (const sy_status status = r.ExpectDims("logsumexp", r.inputs[2], {n.b, n.h, n.t}); status != SY_OK) return status;
  if (const sy_status status = r.ExpectDims("dqkv", r.outputs[0], r.inputs[0].dims); status != SY_OK) return status;
  if (dbias) {
    if (const sy_status status = r.ExpectDims("dbias", r.outputs[1], {n.h, n.t, n.t}); status != SY_OK) return status;
  }

  const Operand dqkv = s.Destination(r, 0), qkv = s.Wide(r.inputs[0]);
  const Operand q = Heads(s, PartOf(qkv, n, 0)), k = Heads(s, PartOf(qkv, n, 1)), v = Heads(s, PartOf(qkv, n, 2));
  const Operand wide_dout = s.Wide(r.inputs[3]), dout = Heads(s, wide_dout);
  const Operand delta = s.Sum(Heads(s, s.Mul(wide_dout, s.Wide(r.inputs[1]))), {2}, true);
  const Dims table = {n.b * n.h, n.t, n.t};
  const Operand normaliser = s.Wide(r.inputs[2]).Reshaped({n.b, n.h, n.t, 1});
  const Operand p = s.Unary(s.op.Exp, s.Sub(Scores(s, r, n, q, k, 4), normaliser)).Reshaped(table);
  StoreHeads(s, s.Matmul(p.Transposed(), dout), n, PartOf(dqkv, n, 2));
  const Operand ds = s.Mul(p, s.Sub(s.Matmul(dout, v.Transposed()), delta));
  if (dbias) s.Deliver(r, 1, s.Sum(ds.Reshaped(n.Scores()), {0}, false));
  StoreHeads(s, s.Scaled(s.Matmul(ds, k), a.scale), n, PartOf(dqkv, n, 0));
  StoreHeads(s, s.Scaled(s.Matmul(ds.Transposed(), q), a.scale), n, PartOf(dqkv, n, 1));
  return s.Deliver(r, 0, dqkv);
}

const Registration kAttention{"attention", BuildAttention, sizeof(sy_attention_attributes)};
const Registration kAttentionBackward{"attention_backward", BuildAttentionBackward, sizeof(sy_attention_attributes)};

}  // namespace
}  // namespace switchyard
