#include "collectives/tcp/reduce.h"

#include <algorithm>
#include <bit>

namespace tcp {
namespace {

// How an element is stored, and the type in which it is computed.
template <typename S, typename C>
struct Plain {
  using Stored = S;
  using Computed = C;
  static C Load(S value) { return static_cast<C>(value); }
  static S Store(C value) { return static_cast<S>(value); }
};
struct Bf16 {
  using Stored = uint16_t;
  using Computed = float;
  static float Load(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
};

template <typename T>
void Combine(T* into, const T* values, uint64_t count, int32_t reduction) {
  for (uint64_t i = 0; i < count; ++i) {
    const T a = into[i], b = values[i];
    switch (reduction) {
      case SY_SUM:
        into[i] = a + b;
        break;
      case SY_PRODUCT:
        into[i] = a * b;
        break;
      case SY_MAX:
        into[i] = a > b || a != a ? a : b;
        break;
      default:
        into[i] = a < b || a != a ? a : b;
        break;
    }
  }
}

template <typename Element>
void ReduceAs(void* out, const std::vector<const void*>& sources, uint64_t count, int32_t reduction) {
  using Stored = typename Element::Stored;
  constexpr uint64_t kPart = 512;  // elements; stays in the first-level cache
  typename Element::Computed sum[kPart], next[kPart];
  for (uint64_t start = 0; start < count; start += kPart) {
    const uint64_t part = std::min(kPart, count - start);
    for (size_t source = 0; source < sources.size(); ++source) {
      const Stored* const values = static_cast<const Stored*>(sources[source]) + start;
      std::transform(values, values + part, source == 0 ? sum : next, Element::Load);
      if (source > 0) Combine(sum, next, part, reduction);
    }
    std::transform(sum, sum + part, static_cast<Stored*>(out) + start, Element::Store);
  }
}

// Sums and products wrap around like unsigned ones; the order of signed ones differs.
template <typename Signed, typename Unsigned>
void ReduceInteger(void* out, const std::vector<const void*>& sources, uint64_t count, int32_t reduction) {
  if (reduction == SY_SUM || reduction == SY_PRODUCT)
    ReduceAs<Plain<Unsigned, Unsigned>>(out, sources, count, reduction);
  else
    ReduceAs<Plain<Signed, Signed>>(out, sources, count, reduction);
}

}  // namespace

bool Reduce(void* out, const std::vector<const void*>& sources, uint64_t count, sy_dtype dtype, int32_t reduction) {
  if (reduction < 0 || reduction >= SY_REDUCTION_COUNT) return false;
  switch (dtype) {
    case SY_F32:
      ReduceAs<Plain<float, float>>(out, sources, count, reduction);
      return true;
    case SY_BF16:
      ReduceAs<Bf16>(out, sources, count, reduction);
      return true;
    case SY_F16:
      ReduceAs<Plain<_Float16, float>>(out, sources, count, reduction);
      return true;
    case SY_F64:
      ReduceAs<Plain<double, double>>(out, sources, count, reduction);
      return true;
    case SY_I32:
      ReduceInteger<int32_t, uint32_t>(out, sources, count, reduction);
      return true;
    case SY_I64:
      ReduceInteger<int64_t, uint64_t>(out, sources, count, reduction);
      return true;
    case SY_U8:
      ReduceAs<Plain<uint8_t, uint32_t>>(out, sources, count, reduction);
      return true;
    default:
      return false;
  }
}

}  // namespace tcp
