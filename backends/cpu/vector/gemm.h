// C (+)= A·B on small matrices in cache, for attention. A "word" is 32 bits: one f32, or a pair of bf16 that are
// neighbours along the inner dimension, so that f32 and bf16 (with vdpbf16ps) share every loop. Word (i, k) of A lies
// at a[i·row + k·step]; B is packed: word (k, j) at b[k·ldb + j], columns padded with zeros to whole vectors; C is f32,
// columns padded likewise.
#pragma once

#include "backends/cpu/vector/simd.h"

namespace switchyard::SY_ISA {

#if defined(__AVX512BF16__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileVectors = 4;
#else
constexpr int kTileRows = 4, kTileVectors = 2;
#endif

struct SmallMatrix {  // the A operand
  const float* words;
  int64_t row, step;
};

template <bool pairs>
SY_INLINE Floats MultiplyAdd(Floats sum, Floats a, Floats b) {
#if defined(__AVX512BF16__)
  if constexpr (pairs) return _mm512_dpbf16_ps(sum, Bits<__m512bh>(a), Bits<__m512bh>(b));
#endif
  return sum + a * b;
}

template <bool pairs, int rows, int vectors>
SY_INLINE void Tile(int64_t depth, const SmallMatrix& a, const float* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  Floats sum[rows][vectors];
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j) sum[i][j] = add ? Load(c + i * ldc + j * kLanes) : Floats{};
  const float* left = a.words;
  for (int64_t k = 0; k < depth; ++k, left += a.step, b += ldb) {
    Floats right[vectors];
    for (int j = 0; j < vectors; ++j) right[j] = Load(b + j * kLanes);
    for (int i = 0; i < rows; ++i) {
      // Moved as an integer: a pair of bf16 need not be a valid float.
      const Floats value = Bits<Floats>(Ints{} + Bits<int32_t>(left[i * a.row]));
      for (int j = 0; j < vectors; ++j) sum[i][j] = MultiplyAdd<pairs>(sum[i][j], value, right[j]);
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j) Store(c + i * ldc + j * kLanes, sum[i][j]);
}

template <bool pairs, int vectors, int rows>
void Rest(int64_t m, int64_t depth, const SmallMatrix& a, const float* b, int64_t ldb, float* c, int64_t ldc,
          bool add) {
  if constexpr (rows > 0) {
    if (m == rows) return Tile<pairs, rows, vectors>(depth, a, b, ldb, c, ldc, add);
    Rest<pairs, vectors, rows - 1>(m, depth, a, b, ldb, c, ldc, add);
  }
}

template <bool pairs, int vectors>
void Panel(int64_t m, int64_t depth, SmallMatrix a, const float* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  for (; m >= kTileRows; m -= kTileRows) {
    Tile<pairs, kTileRows, vectors>(depth, a, b, ldb, c, ldc, add);
    a.words += kTileRows * a.row;
    c += kTileRows * ldc;
  }
  Rest<pairs, vectors, kTileRows - 1>(m, depth, a, b, ldb, c, ldc, add);
}

// C (m, n) = A (m, depth words) · B [+ C]; n a multiple of kLanes. Columns are taken as wide as tiles are, and what is
// left of them together: a tile of one vector has too few sums under way to keep a core busy.
template <bool pairs, int vectors = kTileVectors>
void MultiplySmall(int64_t m, int64_t n, int64_t depth, const SmallMatrix& a, const float* b, int64_t ldb, float* c,
                   int64_t ldc, bool add) {
  for (; n >= vectors * kLanes; n -= vectors * kLanes, b += vectors * kLanes, c += vectors * kLanes)
    Panel<pairs, vectors>(m, depth, a, b, ldb, c, ldc, add);
  if constexpr (vectors > 1) {
    if (n > 0) MultiplySmall<pairs, vectors - 1>(m, n, depth, a, b, ldb, c, ldc, add);
  }
}

}  // namespace switchyard::SY_ISA
