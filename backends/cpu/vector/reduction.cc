#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

SY_INLINE Floats Combine(int32_t reduction, Floats a, Floats x) {
  switch (reduction) {
    case SY_REDUCE_MAX:
      return x > a ? x : (x != x ? x : a);  // NaN wins
    case SY_REDUCE_MIN:
      return x < a ? x : (x != x ? x : a);
    case SY_REDUCE_SUM_OF_SQUARES:
      return a + x * x;
    default:
      return a + x;
  }
}

template <int32_t reduction>
float Extreme(const float* x, int64_t n) {
  Floats best = Splat(x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = Combine(reduction, best, Load(x + i));
  for (; i < n; ++i) best = Combine(reduction, best, Splat(x[i]));
  float result = best[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    const bool better = reduction == SY_REDUCE_MAX ? best[lane] > result : best[lane] < result;
    if (better || best[lane] != best[lane]) result = best[lane];
  }
  return result;
}

template <sy_dtype dtype>
void AddColumns(const char* data, int64_t rows, int64_t stride, int64_t n, float* accumulator) {
  const auto row = [&](int64_t r, int64_t i, int64_t lanes) SY_INLINED {
    if constexpr (dtype == SY_F32) return Load(reinterpret_cast<const float*>(data) + r * stride + i, lanes);
    const Halves h = LoadHalves(reinterpret_cast<const uint16_t*>(data) + r * stride + i, lanes);
    return dtype == SY_BF16 ? FromBf16(h) : FromF16(h);
  };
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {  // four rows share one load and store of the sums
    ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
      const Floats sum = (row(r, i, lanes) + row(r + 1, i, lanes)) + (row(r + 2, i, lanes) + row(r + 3, i, lanes));
      Store(accumulator + i, Load(accumulator + i, lanes) + sum, lanes);
    });
  }
  for (; r < rows; ++r) {
    ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
      Store(accumulator + i, Load(accumulator + i, lanes) + row(r, i, lanes), lanes);
    });
  }
}

template <int vectors>
SY_INLINE void AddProductsStrip(const Rows& x, int64_t x_stride, const Rows& y, int64_t y_stride, int64_t rows,
                                int64_t c, int64_t lanes, float* accumulator) {
  Floats sum[vectors] = {};
  for (int64_t r = 0; r < rows; ++r) {
    for (int j = 0; j < vectors; ++j) {
      const int64_t at = c + j * kLanes;
      sum[j] += LoadRow(x, r * x_stride + at, lanes) * LoadRow(y, r * y_stride + at, lanes);
    }
  }
  for (int j = 0; j < vectors; ++j) {
    const int64_t at = c + j * kLanes;
    Store(accumulator + at, Load(accumulator + at, lanes) + sum[j], lanes);
  }
}

// The dtypes are constants in all but mixed cases.
SY_INLINE void AddProducts(const Rows& x, int64_t x_stride, const Rows& y, int64_t y_stride, int64_t rows, int64_t n,
                           float* accumulator) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= n; c += 4 * kLanes)
    AddProductsStrip<4>(x, x_stride, y, y_stride, rows, c, int64_t{kLanes}, accumulator);
  for (; c + kLanes <= n; c += kLanes)
    AddProductsStrip<1>(x, x_stride, y, y_stride, rows, c, int64_t{kLanes}, accumulator);
  if (c < n) AddProductsStrip<1>(x, x_stride, y, y_stride, rows, c, n - c, accumulator);
}

}  // namespace

// By Gram and Schmidt, modified: each row that was made is cleared out before the next product.
void orthonormalize(const OrthonormalizeMatrix& a) {
  const int64_t n = a.columns;
  for (int64_t i = 0; i < a.rows; ++i) {
    const float* from = a.a + i * n;
    float given = Dot(from, from, n);
    if (a.drawn != nullptr && given == 0) {
      from = a.drawn + i * n;
      given = Dot(from, from, n);
    }
    float* const v = a.q + i * n;
    ForEachVector(n, [&](int64_t k, int64_t lanes) SY_INLINED { Store(v + k, Load(from + k, lanes), lanes); });
    for (int64_t step = 0; step < 2 * i; ++step) {
      const float* const q = a.q + step % i * n;
      const Floats share = Splat(Dot(v, q, n));
      ForEachVector(n, [&](int64_t k, int64_t lanes)
                           SY_INLINED { Store(v + k, Load(v + k, lanes) - share * Load(q + k, lanes), lanes); });
    }
    const float left = i > 0 ? Dot(v, v, n) : given;
    const Floats scale = Splat(left <= 1e-10f * given ? 0 * left : 1 / __builtin_sqrtf(left));
    ForEachVector(n, [&](int64_t k, int64_t lanes) SY_INLINED { Store(v + k, Load(v + k, lanes) * scale, lanes); });
  }
}

void add_products(Rows x, int64_t x_stride, Rows y, int64_t y_stride, int64_t rows, int64_t n, float* accumulator) {
  if (x.dtype == SY_F32 && y.dtype == SY_F32)
    return AddProducts({x.data, SY_F32}, x_stride, {y.data, SY_F32}, y_stride, rows, n, accumulator);
  if (x.dtype == SY_BF16 && y.dtype == SY_BF16)
    return AddProducts({x.data, SY_BF16}, x_stride, {y.data, SY_BF16}, y_stride, rows, n, accumulator);
  AddProducts(x, x_stride, y, y_stride, rows, n, accumulator);
}

float reduce(int32_t reduction, const float* x, int64_t n) {
  switch (reduction) {
    case SY_REDUCE_MAX:
      return Extreme<SY_REDUCE_MAX>(x, n);
    case SY_REDUCE_MIN:
      return Extreme<SY_REDUCE_MIN>(x, n);
    case SY_REDUCE_SUM_OF_SQUARES:
      return SumOver(n, [&](int64_t i, int64_t lanes) SY_INLINED {
        const Floats v = Load(x + i, lanes);
        return v * v;
      });
    default:
      return SumOver(n, [&](int64_t i, int64_t lanes) SY_INLINED { return Load(x + i, lanes); });
  }
}

void reduce_into(int32_t reduction, float* accumulator, const float* x, int64_t n) {
  ForEachVector(n, [&](int64_t i, int64_t lanes) SY_INLINED {
    Store(accumulator + i, Combine(reduction, Load(accumulator + i, lanes), Load(x + i, lanes)), lanes);
  });
}

void add_columns(Rows x, int64_t rows, int64_t stride, int64_t n, float* accumulator) {
  if (x.dtype == SY_F32) return AddColumns<SY_F32>(x.data, rows, stride, n, accumulator);
  if (x.dtype == SY_BF16) return AddColumns<SY_BF16>(x.data, rows, stride, n, accumulator);
  AddColumns<SY_F16>(x.data, rows, stride, n, accumulator);
}

}  // namespace switchyard::SY_ISA
