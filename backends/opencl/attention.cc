// attention and its gradient as products over strided views of qkv, with a pass over rows between them (attention.cl).
// The scores of some batches at a time lie in the workspace, few enough to stay in a CPU's caches.
#include <algorithm>

#include "backends/opencl/matmul.h"
#include "backends/opencl/reduction.h"

namespace switchyard {
namespace {

struct Sizes {
  int64_t b, t, h, d;
  sy_dtype dtype;
  int64_t Row() const { return 3 * h * d; }                              // of qkv, elements
  int64_t ScoreBytes() const { return h * t * t * DtypeBytes(SY_F32); }  // of one batch

  int64_t BatchesAtOnce(const sy_device& device) const {
    const int64_t bytes = device.grouped() ? int64_t{256} << 20 : int64_t{8} << 20;
    return std::clamp<int64_t>(bytes / ScoreBytes(), 1, b);
  }
  // q (part 0), k or v of qkv, from batch `first` on: rows are tokens.
  Matrix Part(const Operand& qkv, int part, int64_t first) const {
    const int64_t start = first * t * Row() + part * h * d;
    return {qkv.Plus(static_cast<uint64_t>(start * DtypeBytes(dtype))), dtype, Row(), 1, t * Row(), d};
  }
  Matrix Heads(const Operand& out, int64_t first) const {  // out or dout (B, T, H, D)
    const int64_t start = first * t * h * d;
    return {out.Plus(static_cast<uint64_t>(start * DtypeBytes(dtype))), dtype, h * d, 1, t * h * d, d};
  }
  Matrix Scores(const Operand& scratch) const { return {scratch, SY_F32, t, 1, h * t * t, t * t}; }
};

// The checks that both directions share; `optional` is the first of bias and mask.
bool CheckOperands(const Request& r, size_t required, size_t least_outputs, size_t most_outputs, Sizes* s) {
  const auto a = r.Attributes<sy_attention_attributes>();
  const size_t inputs = required + (a.bias != 0) + (a.mask != 0);
  if (r.outputs.size() > most_outputs || !r.HasCounts(inputs, inputs, std::max(least_outputs, r.outputs.size())) ||
      !r.RequireContiguous() || !r.RequireFloat(r.inputs[0], "qkv")) {
    return false;
  }
  const sy_tensor& qkv = r.inputs[0];
  if (qkv.rank != 5 || qkv.dims[2] != 3) return SY_REFUSE_OP(r, "qkv must be (B, T, 3, H, D)"), false;
  *s = {qkv.dims[0], qkv.dims[1], qkv.dims[3], qkv.dims[4], qkv.dtype};
  if (a.bias && (!r.RequireDims(r.inputs[required], {s->h, s->t, s->t}, "bias") ||
                 !r.RequireDtype(r.inputs[required], s->dtype, "bias"))) {
    return false;
  }
  if (!a.mask) return true;
  const sy_tensor& mask = r.inputs.back();
  return r.RequireElements(mask, mask.dims[0] * s->t * s->t, "mask") && r.RequireDtype(mask, s->dtype, "mask");
}

// `function` of attention.cl over the rows of batches first … first + count − 1.
void AddRows(const Request& r, Kernel& kernel, const Sizes& s, const char* function,
             const std::vector<Operand>& scratch, size_t optional, const Operand& logsumexp, int64_t first,
             int64_t count) {
  const auto a = r.Attributes<sy_attention_attributes>();
  constexpr int64_t kBiasAdded = 1, kMaskAdded = 2;  // BIAS, MASK of attention.cl
  Launch& launch = kernel.Add("attention", function, Define("TM", s.dtype));
  for (const Operand& operand : scratch) launch.Array(operand);
  launch.In(a.bias ? optional : 0).In(a.mask ? r.inputs.size() - 1 : 0);
  launch.Array(logsumexp.Plus(static_cast<uint64_t>(first * s.h * s.t * DtypeBytes(SY_F32))));
  const int64_t rows = count * s.h * s.t;
  launch.Uint(rows).Uint(s.t).Uint(s.h).Uint(a.mask ? r.inputs.back().dims[0] : 1).Uint(first);
  launch.Uint((a.bias ? kBiasAdded : 0) + (a.mask ? kMaskAdded : 0));
  launch.Groups(RowGroups(*kernel.device(), rows));
}

sy_status PrepareAttention(const Request& r, Kernel& kernel) {
  Sizes s;
  if (!CheckOperands(r, 1, 2, 2, &s) || !r.RequireDims(r.outputs[0], {s.b, s.t, s.h, s.d}, "out") ||
      !r.RequireDtype(r.outputs[0], s.dtype, "out") || !r.RequireDims(r.outputs[1], {s.b, s.h, s.t}, "logsumexp") ||
      !r.RequireDtype(r.outputs[1], SY_F32, "logsumexp")) {
    return SY_UNSUPPORTED;
  }
  if (r.accumulate[1]) return SY_REFUSE_OP(r, "cannot accumulate into logsumexp");
  const int64_t at_once = s.BatchesAtOnce(*kernel.device());
  const Operand scores = kernel.Scratch(at_once * s.ScoreBytes());
  for (int64_t first = 0; first < s.b; first += at_once) {
    const int64_t count = std::min(at_once, s.b - first);
    Product p;
    p.batches = count * s.h;
    p.inner_batches = s.h;
    p.m = p.n = s.t;
    p.k = s.d;
    p.alpha = r.Attributes<sy_attention_attributes>().scale;
    p.a = s.Part(In(0), 0, first);
    p.b = Transposed(s.Part(In(0), 1, first));
    p.c = s.Scores(scores);
    AddProduct(kernel, p);
    AddRows(r, kernel, s, "probabilities", {scores}, 1, Out(1), first, count);
    p.n = s.d;
    p.k = s.t;
    p.alpha = 1;
    p.a = s.Scores(scores);
    p.b = s.Part(In(0), 2, first);
    p.c = s.Heads(Out(0), first);
    if (r.accumulate[0]) p.flags = kAccumulate;
    AddProduct(kernel, p);
  }
  return SY_OK;
}

// p from q, k and logsumexp; dp = dout·vᵀ; ds = p·(dp − Σ p·dp), where Σ p·dp = dout·out.
// dv = pᵀ·dout; dq = scale·ds·k; dk = scale·dsᵀ·q; dbias = Σ over batches of ds.
sy_status PrepareAttentionBackward(const Request& r, Kernel& kernel) {
  Sizes s;
  const bool dbias = r.outputs.size() == 2;
  const auto a = r.Attributes<sy_attention_attributes>();
  if (!CheckOperands(r, 4, 1, 2, &s) || !r.RequireDims(r.inputs[1], {s.b, s.t, s.h, s.d}, "out") ||
      !r.RequireDims(r.inputs[2], {s.b, s.h, s.t}, "logsumexp") || !r.RequireDtype(r.inputs[2], SY_F32, "logsumexp") ||
      !r.RequireDims(r.inputs[3], {s.b, s.t, s.h, s.d}, "dout") || !r.RequireDtype(r.inputs[3], s.dtype, "dout") ||
      !r.RequireElements(r.outputs[0], Elements(r.inputs[0]), "dqkv") ||
      !r.RequireDtype(r.outputs[0], s.dtype, "dqkv")) {
    return SY_UNSUPPORTED;
  }
  if (dbias && !a.bias) return SY_REFUSE_OP(r, "dbias is asked for, but there is no bias");
  if (dbias &&
      (!r.RequireDims(r.outputs[1], {s.h, s.t, s.t}, "dbias") || !r.RequireDtype(r.outputs[1], SY_F32, "dbias"))) {
    return SY_UNSUPPORTED;
  }
  const int64_t at_once = s.BatchesAtOnce(*kernel.device());
  const Operand p_place = kernel.Scratch(at_once * s.ScoreBytes()), ds_place = kernel.Scratch(at_once * s.ScoreBytes());
  for (int64_t first = 0; first < s.b; first += at_once) {
    const int64_t count = std::min(at_once, s.b - first);
    const auto multiply = [&](int64_t n, int64_t k, double alpha, const Matrix& left, const Matrix& right,
                              const Matrix& result, bool accumulate) {
      Product p;
      p.batches = count * s.h;
      p.inner_batches = s.h;
      p.m = s.t;
      p.n = n;
      p.k = k;
      p.alpha = alpha;
      p.a = left;
      p.b = right;
      p.c = result;
      if (accumulate) p.flags = kAccumulate;
      AddProduct(kernel, p);
    };
    const Matrix q = s.Part(In(0), 0, first), k = s.Part(In(0), 1, first), v = s.Part(In(0), 2, first);
    const Matrix dout = s.Heads(In(3), first), p = s.Scores(p_place), ds = s.Scores(ds_place);
    const auto gradient = [&](int part) { return s.Part(Out(0), part, first); };
    const bool adds = r.accumulate[0];
    multiply(s.t, s.d, a.scale, q, Transposed(k), p, false);
    multiply(s.t, s.d, 1, dout, Transposed(v), ds, false);
    AddRows(r, kernel, s, "gradients", {p_place, ds_place}, 4, In(2), first, count);
    multiply(s.d, s.t, 1, Transposed(p), dout, gradient(2), adds);
    multiply(s.d, s.t, a.scale, ds, k, gradient(0), adds);
    multiply(s.d, s.t, a.scale, Transposed(ds), q, gradient(1), adds);
    if (!dbias) continue;
    Reduction sum{SY_REDUCE_SUM, ds_place, SY_F32, Out(1), SY_F32};
    sum.reduced = count;
    sum.inner = s.h * s.t * s.t;
    sum.accumulate = first > 0 || r.accumulate[1];
    AddReduction(kernel, sum);
  }
  return SY_OK;
}

const Registration kAttention{"attention", PrepareAttention, sizeof(sy_attention_attributes)};
const Registration kAttentionBackward{"attention_backward", PrepareAttentionBackward, sizeof(sy_attention_attributes)};

}  // namespace
}  // namespace switchyard
