// Scaled dot-product attention over packed qkv (Vaswani et al., 2017), with additive bias and mask; the backward
// recomputes the probabilities from logsumexp (Dao et al., "FlashAttention", 2022, algorithm 4). window_attention is
// the same with another place for each token.
#include <algorithm>
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

// The sizes of qkv (B, T, 3, H, D) and where its rows lie. `part` is 0 for q, 1 for k, 2 for v. rows (W, T): where the
// tokens of windows lie in their map; null: samples and tokens are in order.
struct Layout {
  int64_t b, t, h, d;
  const Array* rows;
  explicit Layout(const Dims& qkv, const Array* of_windows = nullptr)
      : b(qkv[0]), t(qkv[1]), h(qkv[3]), d(qkv[4]), rows(of_windows) {}
  int64_t Token(int64_t batch, int64_t token) const {
    if (rows == nullptr) return batch * t + token;
    const int64_t windows = rows->dims[0], map = batch / windows, window = batch % windows;
    const auto row = static_cast<int64_t>((*rows)[window * t + token]);
    return map * windows * t + std::clamp<int64_t>(row, 0, windows * t - 1);
  }
  int64_t Qkv(int64_t batch, int64_t token, int part, int64_t head) const {
    return ((Token(batch, token) * 3 + part) * h + head) * d;
  }
  int64_t Out(int64_t batch, int64_t token, int64_t head) const { return (Token(batch, token) * h + head) * d; }
  int64_t Row(int64_t batch, int64_t head, int64_t token) const { return (batch * h + head) * t + token; }
};

double Dot(const Array& a, int64_t at, const Array& b, int64_t bt, int64_t count) {
  const double *x = a.values.data() + at, *y = b.values.data() + bt;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

void AddScaled(Array& to, int64_t at, double scale, const Array& from, int64_t ft, int64_t count) {
  double* const x = to.values.data() + at;
  const double* const y = from.values.data() + ft;
  for (int64_t i = 0; i < count; ++i) x[i] += scale * y[i];
}

// s[j] = scale·q_i·k_j + bias[h, i, j] + mask[b mod G, i, j]
std::vector<double> Scores(const Call& call, const Layout& l, size_t first_optional, int64_t b, int64_t h, int64_t i) {
  const auto& attr = call.attributes<sy_attention_attributes>();
  const Array& qkv = call.input(0);
  std::vector<double> s(static_cast<size_t>(l.t));
  for (int64_t j = 0; j < l.t; ++j) {
    double score = double{attr.scale} * Dot(qkv, l.Qkv(b, i, 0, h), qkv, l.Qkv(b, j, 1, h), l.d);
    if (attr.bias) score += call.input(first_optional)[(h * l.t + i) * l.t + j];
    if (attr.mask) {
      const Array& mask = call.input(first_optional + (attr.bias ? 1 : 0));
      score += mask[(b % mask.dims[0] * l.t + i) * l.t + j];
    }
    s[static_cast<size_t>(j)] = score;
  }
  return s;
}

// Where the bias stands, or would: input `last` is the last before it but for the rows of windows.
size_t FirstOptional(bool windows, size_t last) { return last + (windows ? 2 : 1); }

bool CheckOptional(Check& check, bool windows, size_t last, size_t outputs) {
  const auto& attr = check.attributes<sy_attention_attributes>();
  const size_t first = FirstOptional(windows, last), mask = first + (attr.bias ? 1 : 0),
               inputs = mask + (attr.mask ? 1 : 0);
  if (!check.Operands(inputs, outputs) || !check.Rank("qkv", 0, 5)) return false;
  if (!windows && !check.Floats()) return false;
  if (windows) {
    const size_t rows = first - 1;
    if (!check.FloatsExcept({rows}) || !check.Rank("rows", rows, 2)) return false;
    const int64_t count = check.InputDims(rows)[0];
    check.Input("rows", rows, {count, check.InputDims(0)[1]}) &&
        check.Need(count > 0 && check.InputDims(0)[0] % count == 0, "rows must be (W, T) with B a multiple of W");
  }
  const Dims qkv = check.InputDims(0);
  check.Need(qkv[2] == 3, "qkv must be (B, T, 3, H, D), found " + ToText(qkv));
  if (attr.bias) check.Input("bias", first, {qkv[3], qkv[1], qkv[1]});
  if (attr.mask && check.Rank("mask", mask, 3)) check.Input("mask", mask, {check.InputDims(mask)[0], qkv[1], qkv[1]});
  return check.ok();
}

template <bool kWindows>
void CheckAttention(Check& check) {
  if (!CheckOptional(check, kWindows, 0, 2)) return;
  const Layout l(check.InputDims(0));
  check.Output("out", 0, {l.b, l.t, l.h, l.d}) && check.Output("logsumexp", 1, {l.b, l.h, l.t});
}

template <bool kWindows>
void RunAttention(Call& call) {
  const Array& qkv = call.input(0);
  const size_t optional = FirstOptional(kWindows, 0);
  const Layout l(qkv.dims, kWindows ? &call.input(optional - 1) : nullptr);
  for (int64_t b = 0; b < l.b; ++b) {
    for (int64_t h = 0; h < l.h; ++h) {
      for (int64_t i = 0; i < l.t; ++i) {
        const std::vector<double> s = Scores(call, l, optional, b, h, i);
        const double largest = *std::max_element(s.begin(), s.end());
        double sum = 0;
        for (const double score : s) sum += std::exp(score - largest);
        call.output(1)[l.Row(b, h, i)] = largest + std::log(sum);
        for (int64_t j = 0; j < l.t; ++j) {
          AddScaled(call.output(0), l.Out(b, i, h), std::exp(s[static_cast<size_t>(j)] - largest) / sum, qkv,
                    l.Qkv(b, j, 2, h), l.d);
        }
      }
    }
  }
}

template <bool kWindows>
void CheckAttentionBackward(Check& check) {
  const bool dbias = check.output_count() == 2;
  check.Need(!dbias || check.attributes<sy_attention_attributes>().bias, "dbias is asked for, but there is no bias");
  if (!CheckOptional(check, kWindows, 3, dbias ? 2 : 1)) return;
  const Layout l(check.InputDims(0));
  const Dims out = {l.b, l.t, l.h, l.d};
  check.Input("out", 1, out) && check.Input("logsumexp", 2, {l.b, l.h, l.t}) && check.Input("dout", 3, out) &&
      check.Output("dqkv", 0, check.InputDims(0)) && dbias&& check.Output("dbias", 1, {l.h, l.t, l.t});
}

// p = exp(s − logsumexp);  dv_j += p·dout_i;  ds = p·(dout_i·v_j − dout_i·out_i);  dq_i += scale·ds·k_j;  dk_j +=
// scale·ds·q_i;  dbias += ds
template <bool kWindows>
void RunAttentionBackward(Call& call) {
  const Array &qkv = call.input(0), &out = call.input(1), &logsumexp = call.input(2), &dout = call.input(3);
  const double scale = call.attributes<sy_attention_attributes>().scale;
  Array& dqkv = call.output(0);
  const size_t optional = FirstOptional(kWindows, 3);
  const Layout l(qkv.dims, kWindows ? &call.input(optional - 1) : nullptr);
  for (int64_t b = 0; b < l.b; ++b) {
    for (int64_t h = 0; h < l.h; ++h) {
      for (int64_t i = 0; i < l.t; ++i) {
        const std::vector<double> s = Scores(call, l, optional, b, h, i);
        const int64_t o = l.Out(b, i, h), q = l.Qkv(b, i, 0, h);
        const double delta = Dot(dout, o, out, o, l.d);
        for (int64_t j = 0; j < l.t; ++j) {
          const int64_t k = l.Qkv(b, j, 1, h), v = l.Qkv(b, j, 2, h);
          const double p = std::exp(s[static_cast<size_t>(j)] - logsumexp[l.Row(b, h, i)]);
          const double ds = p * (Dot(dout, o, qkv, v, l.d) - delta);
          AddScaled(dqkv, v, p, dout, o, l.d);
          AddScaled(dqkv, q, scale * ds, qkv, k, l.d);
          AddScaled(dqkv, k, scale * ds, qkv, q, l.d);
          if (call.output_count() == 2) call.output(1)[(h * l.t + i) * l.t + j] += ds;
        }
      }
    }
  }
}

constexpr size_t kAttributes = sizeof(sy_attention_attributes);
const Operation kAttention{"attention", kAttributes, CheckAttention<false>, RunAttention<false>};
const Operation kAttentionBackward{"attention_backward", kAttributes, CheckAttentionBackward<false>,
                                   RunAttentionBackward<false>};
const Operation kWindowAttention{"window_attention", kAttributes, CheckAttention<true>, RunAttention<true>};
const Operation kWindowAttentionBackward{"window_attention_backward", kAttributes, CheckAttentionBackward<true>,
                                         RunAttentionBackward<true>};

}  // namespace
}  // namespace switchyard
