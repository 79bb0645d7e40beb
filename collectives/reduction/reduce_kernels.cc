// Compiled once for every instruction set, each time in a namespace of its own (SY_REDUCE_SET). For that reason nothing
// of the standard library is used here: an inline function compiled with wide vectors might be the copy that the linker
// keeps for everybody.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "collectives/reduction/reduce.h"
#include "core/abi/collective.h"

namespace switchyard::SY_REDUCE_SET {
namespace {

constexpr size_t kBlock = 1024;  // elements that are accumulated at a time; stays in the first-level cache

// How elements are stored, and in which type they are computed.
template <typename StoredType, typename ComputedType>
struct Plain {
  using Stored = StoredType;
  using Computed = ComputedType;
  static Computed Load(Stored value) { return static_cast<Computed>(value); }
  static Stored Store(Computed value) { return static_cast<Stored>(value); }
};

struct Bf16 {
  using Stored = uint16_t;
  using Computed = float;
  static float Load(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    return __builtin_bit_cast(float, bits);
  }
  static uint16_t Store(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16 | 0x40u) : rounded);  // NaN stays NaN
  }
};

struct F16 {
  using Stored = uint16_t;
  using Computed = float;
#if defined(__F16C__)
  static float Load(uint16_t value) { return _cvtsh_ss(value); }
  static uint16_t Store(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#else
  static float Load(uint16_t value) { return static_cast<float>(__builtin_bit_cast(_Float16, value)); }
  static uint16_t Store(float value) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value)); }
#endif
};

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    return a + b;
  }
};
struct Product {
  template <typename T>
  static T Apply(T a, T b) {
    return a * b;
  }
};
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
};

// The loops say ivdep because a destination is a source or does not touch it.
template <typename Element>
void LoadBlock(typename Element::Computed* to, const typename Element::Stored* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = Element::Load(from[i]);
}
template <typename Element>
void StoreBlock(typename Element::Stored* to, const typename Element::Computed* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = Element::Store(from[i]);
}

#if defined(__F16C__)
template <>
void LoadBlock<F16>(float* to, const uint16_t* from, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = F16::Load(from[i]);
}
template <>
void StoreBlock<F16>(uint16_t* to, const float* from, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = F16::Store(from[i]);
}
#endif

template <typename Element, typename Operation>
void Reduce(void* const* destinations, int destination_count, const void* const* sources, int source_count,
            size_t count) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
  Computed total[kBlock], next[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = count - start < kBlock ? count - start : kBlock;
    LoadBlock<Element>(total, static_cast<const Stored*>(sources[0]) + start, length);
    for (int source = 1; source < source_count; ++source) {
      LoadBlock<Element>(next, static_cast<const Stored*>(sources[source]) + start, length);
      for (size_t i = 0; i < length; ++i) total[i] = Operation::template Apply<Computed>(total[i], next[i]);
    }
    for (int destination = 0; destination < destination_count; ++destination) {
      StoreBlock<Element>(static_cast<Stored*>(destinations[destination]) + start, total, length);
    }
  }
}

// Two ranks with elements that are computed as they are stored: no block in between.
template <typename T, typename Operation>
void ReducePair(void* const* destinations, int destination_count, const void* const* sources, int source_count,
                size_t count) {
  if (source_count != 2 || destination_count != 2) {
    return Reduce<Plain<T, T>, Operation>(destinations, destination_count, sources, source_count, count);
  }
  const T *a = static_cast<const T*>(sources[0]), *b = static_cast<const T*>(sources[1]);
  T *to = static_cast<T*>(destinations[0]), *also_to = static_cast<T*>(destinations[1]);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const T value = Operation::template Apply<T>(a[i], b[i]);
    to[i] = value;
    also_to[i] = value;
  }
}

template <typename Operation>
ReduceFunction OrderFor(sy_dtype dtype) {
  switch (dtype) {
    case SY_F32:
      return ReducePair<float, Operation>;
    case SY_BF16:
      return Reduce<Bf16, Operation>;
    case SY_F16:
      return Reduce<F16, Operation>;
    case SY_F64:
      return ReducePair<double, Operation>;
    case SY_I32:
      return ReducePair<int32_t, Operation>;
    case SY_I64:
      return ReducePair<int64_t, Operation>;
    default:
      return ReducePair<uint8_t, Operation>;
  }
}

// Sums and products of integers wrap around, as unsigned ones do.
template <typename Operation>
ReduceFunction WrapFor(sy_dtype dtype) {
  switch (dtype) {
    case SY_I32:
      return ReducePair<uint32_t, Operation>;
    case SY_I64:
      return ReducePair<uint64_t, Operation>;
    default:
      return OrderFor<Operation>(dtype);
  }
}

template <typename Element>
void Widen(float* to, const void* from, size_t count) {
  LoadBlock<Element>(to, static_cast<const uint16_t*>(from), count);
}
template <typename Element>
void Narrow(void* to, const float* from, size_t count) {
  StoreBlock<Element>(static_cast<uint16_t*>(to), from, count);
}

constexpr WideForm kOfBf16 = {Widen<Bf16>, Narrow<Bf16>}, kOfF16 = {Widen<F16>, Narrow<F16>};

}  // namespace

const WideForm* FindWide(sy_dtype dtype);
const WideForm* FindWide(sy_dtype dtype) { return dtype == SY_BF16 ? &kOfBf16 : dtype == SY_F16 ? &kOfF16 : nullptr; }

ReduceFunction Find(sy_dtype dtype, int reduction);
ReduceFunction Find(sy_dtype dtype, int reduction) {
  switch (reduction) {
    case SY_SUM:
      return WrapFor<Sum>(dtype);
    case SY_PRODUCT:
      return WrapFor<Product>(dtype);
    case SY_MAX:
      return OrderFor<Max>(dtype);
    default:
      return OrderFor<Min>(dtype);
  }
}

}  // namespace switchyard::SY_REDUCE_SET
