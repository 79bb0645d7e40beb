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
namespace {

// To the nearest integer towards zero that the type has; 0 of what is not a number.
template <typename Integer, Integer kLeast, Integer kMost>
Integer Saturated(float value) {
  if (value != value) return 0;
  if (value >= static_cast<float>(kMost)) return kMost;
  return value <= static_cast<float>(kLeast) ? kLeast : static_cast<Integer>(value);
}

}  // namespace

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
      for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(to)[i] = Saturated<int32_t, INT32_MIN, INT32_MAX>(from[i]);
      break;
    case SY_I64:
      for (int64_t i = 0; i < n; ++i) static_cast<int64_t*>(to)[i] = Saturated<int64_t, INT64_MIN, INT64_MAX>(from[i]);
      break;
    case SY_U8:
      for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = Saturated<uint8_t, 0, UINT8_MAX>(from[i]);
      break;
    default:
      break;
  }
}

}  // namespace switchyard::SY_ISA
