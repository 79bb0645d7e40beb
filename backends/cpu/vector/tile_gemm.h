// C (+)= A·B on tiles, for matrices that lie in the caches of one core, padded with zeros to whole tiles. A block of C
// is TileBlock, of which attention (MultiplyTiles) and matmul (tile_matmul.cc) make theirs.
//
// A is bf16 in rows; B is words of pairs: word (k, n) holds elements (2k, n) and (2k + 1, n); C is f32. A block of 2 by
// 2 tiles of C stays in four tiles while the inner dimension passes through the other four: a step of 32 along it loads
// two tiles of A and two of B and makes four products, so that every tile loaded is used twice: 4·16·16·32
// multiply-adds (65536 operations) for 4 KiB, 16 operations a byte. A product takes the multiplier 16 cycles (512
// multiply-adds, 1024 operations a cycle) and a load 8, so that the 64 cycles of a step hide its 32 of loads; a block
// with a single tile of A or of B (the edge, where the number of tiles is odd) loads 3 tiles for 2 products, 24 cycles
// under 32. A product's sum is ready for the next one after 52 cycles, less than the 64 that pass until a block of four
// comes back to it.
#pragma once

#include "backends/cpu/vector/tiles.h"

namespace switchyard::SY_ISA {

// Distances in words: from row to row of a tile, to the tile after it along the inner dimension, and to the tile beside
// it in the block (below for A, to the right for B).
struct TileMatrix {
  const float* words;
  int64_t row, next, beside;
};
SY_INLINE TileMatrix LeftFactor(const float* words, int64_t row) { return {words, row, kTileWords, kTileWords * row}; }
SY_INLINE TileMatrix RightFactor(const float* words, int64_t row) { return {words, row, kTileWords * row, kTileWords}; }

// meanwhile(): called at every step, for what can be done while the tiles multiply.
template <int rows, int columns, typename T, typename Meanwhile>
SY_INLINE void TileBlock(T& tiles, int64_t depth, const TileMatrix& a, const TileMatrix& b, float* c, int64_t ldc,
                         bool add, Meanwhile meanwhile) {
  const int64_t a_bytes = a.row * 4, b_bytes = b.row * 4, c_bytes = ldc * 4;
  const auto right = c + kTileWords, below = c + kTileWords * ldc;
  if (add) {
    tiles.template Load<0>(c, c_bytes);
    if constexpr (columns == 2) tiles.template Load<1>(right, c_bytes);
    if constexpr (rows == 2) tiles.template Load<2>(below, c_bytes);
    if constexpr (rows == 2 && columns == 2) tiles.template Load<3>(below + kTileWords, c_bytes);
  } else {
    tiles.template Zero<0>();
    if constexpr (columns == 2) tiles.template Zero<1>();
    if constexpr (rows == 2) tiles.template Zero<2>();
    if constexpr (rows == 2 && columns == 2) tiles.template Zero<3>();
  }
  const float *left = a.words, *top = b.words;
  for (int64_t k = 0; k < depth; ++k, left += a.next, top += b.next) {
    meanwhile();
    tiles.template Load<6>(top, b_bytes);
    tiles.template Load<4>(left, a_bytes);
    tiles.template MultiplyAdd<0, 4, 6>();
    if constexpr (columns == 2) {
      tiles.template Load<7>(top + b.beside, b_bytes);
      tiles.template MultiplyAdd<1, 4, 7>();
    }
    if constexpr (rows == 2) {
      tiles.template Load<5>(left + a.beside, a_bytes);
      tiles.template MultiplyAdd<2, 5, 6>();
    }
    if constexpr (rows == 2 && columns == 2) tiles.template MultiplyAdd<3, 5, 7>();
  }
  tiles.template Store<0>(c, c_bytes);
  if constexpr (columns == 2) tiles.template Store<1>(right, c_bytes);
  if constexpr (rows == 2) tiles.template Store<2>(below, c_bytes);
  if constexpr (rows == 2 && columns == 2) tiles.template Store<3>(below + kTileWords, c_bytes);
}

template <int columns, typename T>
void TilePanel(T& tiles, int64_t m, int64_t depth, TileMatrix a, const TileMatrix& b, float* c, int64_t ldc, bool add) {
  for (; m >= 2; m -= 2, a.words += 2 * a.beside, c += 2 * kTileWords * ldc)
    TileBlock<2, columns>(tiles, depth, a, b, c, ldc, add, [] {});
  if (m > 0) TileBlock<1, columns>(tiles, depth, a, b, c, ldc, add, [] {});
}

// C (m, n) = A (m, depth) · B [+ C]; m, n and depth count tiles: 16 rows, 16 columns, 32 elements.
template <typename T>
void MultiplyTiles(T& tiles, int64_t m, int64_t n, int64_t depth, const TileMatrix& a, TileMatrix b, float* c,
                   int64_t ldc, bool add) {
  for (; n >= 2; n -= 2, b.words += 2 * b.beside, c += 2 * kTileWords) TilePanel<2>(tiles, m, depth, a, b, c, ldc, add);
  if (n > 0) TilePanel<1>(tiles, m, depth, a, b, c, ldc, add);
}

}  // namespace switchyard::SY_ISA
