// Tiles: the two-dimensional registers of Intel AMX, and the one product on them that attention and matmul need. Eight
// tiles, each 16 rows of 64 bytes, as palette 1 of the CPU has them; a tile is a matrix of 16 by 16 words, where a word
// of a sum is one f32 and a word of a factor is a pair of bf16. Two classes have the same members: AmxTiles is the
// instructions, EmulatedTiles what Intel's manual says that they do, for CPUs without them. Everything above
// (tile_gemm.h) is a template over the two, so that it is tested on any CPU.
//
// An object is the tiles of the thread that made it: they are configured while it lives, and given back at its end, so
// that oneDNN, which configures them for itself, and the kernel's context switches never meet ours. All tiles have
// their full size: callers pad with zeros, because another shape would need another configuration, which clears all
// tiles.
#pragma once

#include "backends/cpu/vector/simd.h"

namespace switchyard::SY_ISA {

constexpr int kTileWords = 16;  // rows of a tile, and words of a row

// As the Intel SDM describes it (volume 2, TDPBF16PS): over the 16 pairs of the inner dimension, in order, the first
// elements of the pairs are summed in one chain of fused multiply-adds and the second ones in another, both from zero;
// then sum += first + second, two additions. All of it rounds to nearest, ties to even, takes subnormal numbers for
// zero and turns subnormal results into zero, whatever MXCSR holds.
class EmulatedTiles {
 public:
  template <int tile>
  void Zero() {
    for (uint32_t& word : tiles_[tile]) word = 0;
  }
  // Row r of the tile lies `row_bytes`·r behind `from`.
  template <int tile>
  void Load(const void* from, int64_t row_bytes) {
    for (int r = 0; r < kTileWords; ++r)
      __builtin_memcpy(tiles_[tile] + r * kTileWords, static_cast<const char*>(from) + r * row_bytes, 64);
  }
  template <int tile>
  void Store(void* to, int64_t row_bytes) const {
    for (int r = 0; r < kTileWords; ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * row_bytes, tiles_[tile] + r * kTileWords, 64);
  }
  // sum (16, 16) += a (16, 32) · b (32, 16), whose word (k, n) holds elements (2k, n) and (2k + 1, n).
  template <int sum, int a, int b>
  void MultiplyAdd() {
    for (int m = 0; m < kTileWords; ++m)
      for (int n = 0; n < kTileWords; ++n) {
        float first = 0, second = 0;
        for (int k = 0; k < kTileWords; ++k) {
          const uint32_t left = tiles_[a][m * kTileWords + k], right = tiles_[b][k * kTileWords + n];
          first = Flush(__builtin_fmaf(Flush(Low(left)), Flush(Low(right)), first));
          second = Flush(__builtin_fmaf(Flush(High(left)), Flush(High(right)), second));
        }
        uint32_t& word = tiles_[sum][m * kTileWords + n];
        word = Bits<uint32_t>(Flush(Flush(Bits<float>(word)) + Flush(first + second)));
      }
  }

 private:
  static float Low(uint32_t pair) { return Bits<float>(pair << 16); }
  static float High(uint32_t pair) { return Bits<float>(pair & 0xFFFF0000u); }
  static float Flush(float x) { return Bits<uint32_t>(x) & 0x7F800000u ? x : __builtin_copysignf(0.0f, x); }

  uint32_t tiles_[8][kTileWords * kTileWords] = {};
};

#if defined(__x86_64__)
// Written as assembly rather than with the compilers' intrinsics, which in g++ 12 take only literal numbers of tiles
// and do not say that a load reads memory. Only in a process that has no TilesRefusal (amx.h).
class AmxTiles {
 public:
  AmxTiles() {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    static_assert(sizeof configuration == 64);
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int tile>
  SY_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  template <int tile>
  SY_INLINE void Load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(tile) : "memory");
  }
  template <int tile>
  SY_INLINE void Store(void* to, int64_t row_bytes) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(tile) : "memory");
  }
  template <int sum, int a, int b>
  SY_INLINE void MultiplyAdd() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
  }
};
#endif

#if defined(SY_EMULATED_TILES)  // a build of the tests
constexpr bool kHasTiles = true;
using Tiles = EmulatedTiles;
#elif defined(__AMX_BF16__)
constexpr bool kHasTiles = true;
using Tiles = AmxTiles;
#else
constexpr bool kHasTiles = false;
using Tiles = EmulatedTiles;  // compiled, never run
#endif

}  // namespace switchyard::SY_ISA
