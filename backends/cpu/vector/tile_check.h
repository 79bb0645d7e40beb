// Whether tiles multiply as they should.
#pragma once

#include "backends/cpu/vector/tile_gemm.h"

namespace switchyard::SY_ISA {

// C (32, 32) = A (32, 64) · B twice, the second time added, on T and on the emulation. The elements are small whole
// numbers, so that every sum is exact in any order: what this finds is a machine that does something else, not one that
// rounds otherwise.
template <typename T>
bool AgreesWithEmulation() {
  constexpr int64_t kRows = 32, kPairs = 32;  // of each matrix, in words
  alignas(64) float a[kRows * kPairs], b[kPairs * kRows], c[2][kRows * kRows];
  uint32_t state = 1;
  const auto fill = [&](float* words) {
    for (int64_t i = 0; i < kRows * kPairs; ++i) {
      uint32_t pair = 0;
      for (int half = 0; half < 2; ++half) {
        state = state * 1664525u + 1013904223u;
        pair = pair << 16 | Bits<uint32_t>(static_cast<float>(static_cast<int32_t>(state >> 27) - 16)) >> 16;
      }
      __builtin_memcpy(words + i, &pair, sizeof pair);
    }
  };
  fill(a);
  fill(b);
  const auto multiply = [&](auto& tiles, float* to) {
    for (int i = 0; i < 2; ++i) MultiplyTiles(tiles, 2, 2, 2, {a, kPairs}, {b, kRows}, to, kRows, i > 0);
  };
  EmulatedTiles emulated;
  multiply(emulated, c[0]);
  {
    T tiles;
    multiply(tiles, c[1]);
  }
  for (int64_t i = 0; i < kRows * kRows; ++i)
    if (c[0][i] != c[1][i]) return false;
  return true;
}

}  // namespace switchyard::SY_ISA
