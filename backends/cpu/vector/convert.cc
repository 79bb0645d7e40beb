#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {

void to_float(sy_dtype dtype, const void* from, float* to, int64_t n) {
  switch (dtype) {
    case SY_F32:
      __builtin_memcpy(to, from, n * sizeof(float));
      break;
    case SY_BF16: {
      const auto* halves = static_cast<const uint16_t*>(from);
      ForEachVector(n, [&](int64_t i, int64_t lanes)
                           SY_INLINED { Store(to + i, FromBf16(LoadHalves(halves + i, lanes)), lanes); });
      break;
    }
    case SY_F16: {
      const auto* halves = static_cast<const uint16_t*>(from);
      ForEachVector(n, [&](int64_t i, int64_t lanes)
                           SY_INLINED { Store(to + i, FromF16(LoadHalves(halves + i, lanes)), lanes); });
      break;
    }
    case SY_F64:
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<const double*>(from)[i]);
      break;
    case SY_I32:
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<const int32_t*>(from)[i]);
      break;
    case SY_I64:
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<const int64_t*>(from)[i]);
      break;
    case SY_U8:
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<const uint8_t*>(from)[i]);
      break;
    default:
      break;
  }
}

// Integers take the value towards zero.
void from_float(sy_dtype dtype, const float* from, void* to, int64_t n) {
  switch (dtype) {
    case SY_F32:
      __builtin_memcpy(to, from, n * sizeof(float));
      break;
    case SY_BF16: {
      auto* halves = static_cast<uint16_t*>(to);
      ForEachVector(n, [&](int64_t i, int64_t lanes)
                           SY_INLINED { StoreHalves(halves + i, ToBf16(Load(from + i, lanes)), lanes); });
      break;
    }
    case SY_F16: {
      auto* halves = static_cast<uint16_t*>(to);
      ForEachVector(n, [&](int64_t i, int64_t lanes)
                           SY_INLINED { StoreHalves(halves + i, ToF16(Load(from + i, lanes)), lanes); });
      break;
    }
    case SY_F64:
      for (int64_t i = 0; i < n; ++i) static_cast<double*>(to)[i] = from[i];
      break;
    case SY_I32:
      for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(to)[i] = static_cast<int32_t>(from[i]);
      break;
    case SY_I64:
      for (int64_t i = 0; i < n; ++i) static_cast<int64_t*>(to)[i] = static_cast<int64_t>(from[i]);
      break;
    case SY_U8:
      for (int64_t i = 0; i < n; ++i)
        static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(static_cast<int32_t>(from[i]));
      break;
    default:
      break;
  }
}

}  // namespace switchyard::SY_ISA
