// softmax and cross entropy, row by row.
#include "backends/cpu/vector/convert.h"
#include "backends/cpu/vector/math.h"

namespace switchyard::SY_ISA {
namespace {

// y = exp(x − max x); returns Σ y and the maximum.
struct Exponentials {
  float sum, largest;
};
Exponentials Exponentiate(const float* x, float* y, int64_t n) {
  const float largest = LargestOf(x, n);
  const float shift = largest == -__builtin_inff() ? 0.0f : largest;  // a row of −inf
  const float sum = SumOver(n, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats e = Exp(Load(x + i, lanes) - shift);
    Store(y + i, e, lanes);
    return Keep(e, lanes);
  });
  return {sum, shift};
}

bool Ignored(const CrossEntropyRows& a, int64_t row) {
  return a.labels && (a.labels[row] == a.ignore_index || a.labels[row] < 0);
}

// A label that no class has: the row's loss and gradient are NaN, so that it does not pass unnoticed.
bool Beyond(const CrossEntropyRows& a, int64_t row) {
  return a.labels && !Ignored(a, row) && a.labels[row] >= a.columns;
}

}  // namespace

void softmax(const SoftmaxRows& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t n = a.columns;
  for (int64_t r = begin; r < end; ++r) {
    float* y = Destination(a.y, r * n, scratch);
    const float inverse = 1.0f / Exponentiate(Widened(a.x, r * n, n, scratch), y, n).sum;
    ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED { Store(y + i, Load(y + i, lanes) * inverse, lanes); });
    Finish(a.y, r * n, n, y);
  }
}

void softmax_backward(const SoftmaxRows& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t n = a.columns;
  for (int64_t r = begin; r < end; ++r) {
    const float *y = Widened(a.y, r * n, n, scratch), *dy = Widened(a.dy, r * n, n, scratch + n);
    float* dx = Destination(a.dx, r * n, scratch + 2 * n);
    const float dot = Dot(y, dy, n);
    ForEachVector(n, [&](int64_t i, int64_t lanes)
                         SY_INLINED { Store(dx + i, Load(y + i, lanes) * (Load(dy + i, lanes) - dot), lanes); });
    Finish(a.dx, r * n, n, dx);
  }
}

// With Y = Σ y: loss = Y·logsumexp − Σ y·x, where y = t·(1−s) + s/C.
void cross_entropy(const CrossEntropyRows& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t n = a.columns;
  const float s = a.smoothing;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = Widened(a.logits, r * n, n, scratch);
    float* exponentials = scratch + n;
    const Exponentials e = Exponentiate(x, exponentials, n);
    const float relative = __builtin_logf(e.sum);  // to the maximum, so that large logits do not cancel
    At(a.logsumexp, r) = e.largest + relative;
    const auto sum_of_logits = [&] {
      return SumOver(n,
                     [&](int64_t i, int64_t lanes) SY_INLINED { return Keep(Load(x + i, lanes) - e.largest, lanes); });
    };
    const float smooth = s == 0.0f ? 0.0f : s * (relative - sum_of_logits() / static_cast<float>(n));
    if (Beyond(a, r)) {
      At(a.loss, r) = __builtin_nanf("");
    } else if (a.labels) {
      At(a.loss, r) = Ignored(a, r) ? 0.0f : (1.0f - s) * (relative - (x[a.labels[r]] - e.largest)) + smooth;
    } else {
      const float* t = Widened(a.targets, r * n, n, exponentials);
      At(a.loss, r) = (1.0f - s) * SumOver(n,
                                           [&](int64_t i, int64_t lanes) SY_INLINED {
                                             const Floats target = Load(t + i, lanes);  // 0 also times −logit = inf
                                             const Floats term = target * (relative - (Load(x + i, lanes) - e.largest));
                                             return Keep(target == 0.0f ? Floats{} : term, lanes);
                                           }) +
                      smooth;
    }
  }
}

void cross_entropy_backward(const CrossEntropyRows& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t n = a.columns;
  const float s = a.smoothing, floor = s / static_cast<float>(n);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = Widened(a.logits, r * n, n, scratch);
    float* dx = Destination(a.dlogits, r * n, scratch);
    const float logsumexp = At(a.logsumexp, r), scale = At(a.dloss, r);
    if (Beyond(a, r)) {
      ForEachVector(n,
                    [&](int64_t i, int64_t lanes) SY_INLINED { Store(dx + i, Floats{} + __builtin_nanf(""), lanes); });
    } else if (Ignored(a, r)) {
      ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED { Store(dx + i, Floats{}, lanes); });
    } else if (a.labels) {
      ForEachVector(n, [&](int64_t i, int64_t lanes)
                           SY_INLINED { Store(dx + i, scale * (Exp(Load(x + i, lanes) - logsumexp) - floor), lanes); });
      dx[a.labels[r]] -= scale * (1.0f - s);
    } else {
      const float* t = Widened(a.targets, r * n, n, scratch + n);
      const float total = (1.0f - s) * reduce(SY_REDUCE_SUM, t, n) + s;
      ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
        const Floats y = (1.0f - s) * Load(t + i, lanes) + floor;
        Store(dx + i, scale * (Exp(Load(x + i, lanes) - logsumexp) * total - y), lanes);
      });
    }
    Finish(a.dlogits, r * n, n, dx);
  }
}

}  // namespace switchyard::SY_ISA
