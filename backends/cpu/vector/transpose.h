// Transposes a matrix of words in vector registers.
#pragma once

#include "backends/cpu/vector/simd.h"

namespace switchyard::SY_ISA {

template <int... lane>
struct LaneNumbers {
  // Exchanges, in blocks of `step` lanes, the odd blocks of a with the even blocks of b.
  template <int step>
  SY_INLINE static void Exchange(Ints& a, Ints& b) {
    const Ints low = __builtin_shufflevector(a, b, (lane & step ? kLanes + lane - step : lane)...);
    b = __builtin_shufflevector(a, b, (lane & step ? kLanes + lane : lane + step)...);
    a = low;
  }
};
#if defined(__AVX512F__)
using AllLanes = LaneNumbers<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif defined(__AVX2__)
using AllLanes = LaneNumbers<0, 1, 2, 3, 4, 5, 6, 7>;
#else
using AllLanes = LaneNumbers<0, 1, 2, 3>;
#endif

template <int step>
SY_INLINE void ExchangeAll(Ints (&rows)[kLanes]) {
  if constexpr (step < kLanes) {
    for (int i = 0; i < kLanes; ++i)
      if ((i & step) == 0) AllLanes::Exchange<step>(rows[i], rows[i + step]);
    ExchangeAll<2 * step>(rows);
  }
}

// to (columns, rows) = the transpose of from (rows, columns); strides in words; rows and columns multiples of kLanes.
inline void Transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t c = 0; c < columns; c += kLanes) {
      Ints block[kLanes];
      for (int i = 0; i < kLanes; ++i) __builtin_memcpy(&block[i], from + (r + i) * from_row + c, sizeof block[i]);
      ExchangeAll<1>(block);
      for (int i = 0; i < kLanes; ++i) __builtin_memcpy(to + (c + i) * to_row + r, &block[i], sizeof block[i]);
    }
}

}  // namespace switchyard::SY_ISA
