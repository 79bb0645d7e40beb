#include "tests/doubles/mesh/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace doubles {
namespace {

// bfloat16: the upper half of a float, rounded to nearest even.
struct BF16 {
  uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static BF16 From(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(word >> 16 | 0x40)};
    return {static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16)};
  }
};

// IEEE 754 binary16.
struct F16 {
  uint16_t bits;
  explicit operator float() const {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                  : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return bits >> 15 ? -value : value;
  }
  static F16 From(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7E00)};
    if (size == 0) return {sign};
    if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7C00)};
    int exponent = 0;
    std::frexp(size, &exponent);
    // The distance of neighbours is 2^(exponent − 11), at least 2^−24; nearbyint rounds to even.
    const int unit = std::max(exponent - 11, -24);
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
    return {static_cast<uint16_t>(sign | (steps + (unit + 24) * 1024))};
  }
};

template <typename T, typename Computed>
void ReduceAs(void* into, const std::vector<const void*>& parts, size_t count, Reduction reduction) {
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](size_t part) { return static_cast<Computed>(static_cast<const T*>(parts[part])[i]); };
    Computed result = at(0);
    for (size_t part = 1; part < parts.size(); ++part) {
      const Computed next = at(part);
      switch (reduction) {
        case Reduction::kSum:
          result = static_cast<Computed>(result + next);
          break;
        case Reduction::kMax:
          result = std::max(result, next);
          break;
        case Reduction::kMin:
          result = std::min(result, next);
          break;
        case Reduction::kProduct:
          result = static_cast<Computed>(result * next);
          break;
      }
    }
    if constexpr (std::is_arithmetic_v<T>) {
      static_cast<T*>(into)[i] = static_cast<T>(result);
    } else {
      static_cast<T*>(into)[i] = T::From(result);
    }
  }
}

}  // namespace

size_t BytesOf(Type type) {
  switch (type) {
    case Type::kF64:
    case Type::kI64:
      return 8;
    case Type::kF32:
    case Type::kI32:
      return 4;
    case Type::kBF16:
    case Type::kF16:
      return 2;
    default:
      return 1;
  }
}

void Reduce(void* into, const std::vector<const void*>& parts, size_t count, Type type, Reduction reduction) {
  switch (type) {
    case Type::kF32:
      return ReduceAs<float, float>(into, parts, count, reduction);
    case Type::kBF16:
      return ReduceAs<BF16, float>(into, parts, count, reduction);
    case Type::kF16:
      return ReduceAs<F16, float>(into, parts, count, reduction);
    case Type::kF64:
      return ReduceAs<double, double>(into, parts, count, reduction);
    case Type::kI32:
      return ReduceAs<int32_t, int64_t>(into, parts, count, reduction);
    case Type::kI64:
      return ReduceAs<int64_t, int64_t>(into, parts, count, reduction);
    case Type::kU8:
      return ReduceAs<uint8_t, uint8_t>(into, parts, count, reduction);
    case Type::kI8:
      return ReduceAs<int8_t, int8_t>(into, parts, count, reduction);
  }
}

}  // namespace doubles
