// Vectors of floats for the sources of this folder, which CMake compiles once per instruction set (SY_ISA names the
// namespace). The width is the compiler's widest: 16 lanes with AVX-512, 8 with AVX2, else 4. GCC and Clang vector
// extensions carry the arithmetic, so that the same text serves every architecture; intrinsics appear only where the
// extension has no word for it.
//
// Rule of this folder: no standard library. An inline function of a shared header compiled with AVX-512 could be the
// copy that the linker keeps for everybody; everything here therefore lives in SY_ISA's namespace.
#pragma once

#include <stdint.h>

#include "core/abi/base.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SY_INLINE inline __attribute__((always_inline))
#define SY_INLINED __attribute__((always_inline))  // for lambdas, after their parameters

namespace switchyard::SY_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

template <typename To, typename From>
SY_INLINE To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

SY_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
SY_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

SY_INLINE Floats Splat(float value) { return Floats{} + value; }
SY_INLINE Floats Larger(Floats a, Floats b) { return a > b ? a : b; }
SY_INLINE Floats Smaller(Floats a, Floats b) { return a < b ? a : b; }
SY_INLINE Floats Absolute(Floats a) { return Bits<Floats>(Bits<Ints>(a) & 0x7FFFFFFF); }

SY_INLINE Floats SquareRoot(Floats a) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(a);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(a);
#else
  Floats r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_sqrtf(a[i]);
  return r;
#endif
}

// 1/a to an ulp or two; for a whose reciprocal is a normal number.
SY_INLINE Floats Inverse(Floats a) {
#if defined(__AVX512F__)
  const Floats r = _mm512_rcp14_ps(a);
  return r * (2.0f - a * r);
#else
  return 1.0f / a;
#endif
}

// `lanes` ≤ kLanes floats; the others are 0.
SY_INLINE Floats Load(const float* from, int64_t lanes = kLanes) {
  Floats v = {};
  if (lanes == kLanes) {
    __builtin_memcpy(&v, from, sizeof v);
    return v;
  }
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), from);
#else
  for (int64_t i = 0; i < lanes; ++i) v[i] = from[i];
  return v;
#endif
}

SY_INLINE void Store(float* to, Floats v, int64_t lanes = kLanes) {
  if (lanes == kLanes) {
    __builtin_memcpy(to, &v, sizeof v);
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << lanes) - 1), v);
#else
  for (int64_t i = 0; i < lanes; ++i) to[i] = v[i];
#endif
}

// v with the lanes from `lanes` on set to 0.
SY_INLINE Floats Keep(Floats v, int64_t lanes) {
#if defined(__AVX512F__)
  return _mm512_maskz_mov_ps(static_cast<__mmask16>((1u << lanes) - 1), v);
#else
  for (int64_t i = lanes; i < kLanes; ++i) v[i] = 0;
  return v;
#endif
}

// The same with `fill` in them.
SY_INLINE Floats KeepOr(Floats v, int64_t lanes, Floats fill) {
  if (lanes == kLanes) return v;
#if defined(__AVX512F__)
  return _mm512_mask_mov_ps(fill, static_cast<__mmask16>((1u << lanes) - 1), v);
#else
  for (int64_t i = lanes; i < kLanes; ++i) v[i] = fill[i];
  return v;
#endif
}

SY_INLINE float Sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#else
  float s = 0;
  for (int i = 0; i < kLanes; ++i) s += v[i];
  return s;
#endif
}
SY_INLINE float Largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#else
  float largest = v[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = v[lane] > largest ? v[lane] : largest;
  return largest;
#endif
}
// The largest of n elements; NaN may be passed over.
SY_INLINE float LargestOf(const float* x, int64_t n) {
  Floats m0 = Splat(x[0]), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    m0 = Larger(Load(x + i), m0);
    m1 = Larger(Load(x + i + kLanes), m1);
    m2 = Larger(Load(x + i + 2 * kLanes), m2);
    m3 = Larger(Load(x + i + 3 * kLanes), m3);
  }
  for (; i + kLanes <= n; i += kLanes) m0 = Larger(Load(x + i), m0);
  float largest = Largest(Larger(Larger(m0, m1), Larger(m2, m3)));
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// bfloat16 is the upper half of a float; rounding to nearest, ties to even, NaN stays NaN.
SY_INLINE Floats FromBf16(Halves h) { return Bits<Floats>(__builtin_convertvector(h, Words) << 16); }
SY_INLINE Halves ToBf16(Floats v) {
  const Words w = Bits<Words>(v);
#if defined(__AVX512BF16__)
  const __m512i words = Bits<__m512i>(v);
  const __mmask16 subnormal = _mm512_testn_epi32_mask(words, _mm512_set1_epi32(0x7F800000)) &
                              _mm512_test_epi32_mask(words, _mm512_set1_epi32(0x007FFFFF));
  if (__builtin_expect(subnormal == 0, 1)) return Bits<Halves>(_mm512_cvtneps_pbh(v));  // which takes them for zero
#endif
  const Words rounded = w + 0x7FFFu + ((w >> 16) & 1u);
  return __builtin_convertvector((v == v ? rounded : (w | 0x400000u)) >> 16, Halves);
}

// bf16 for a factor, subnormal numbers of which count as zero anyway.
SY_INLINE Halves ToFactor(Floats v) {
#if defined(__AVX512BF16__)
  return Bits<Halves>(_mm512_cvtneps_pbh(v));
#else
  return ToBf16(v);
#endif
}

// Two vectors as factors, and as words of their pairs.
struct FactorPair {
  Halves low, high;
  Floats words;
};
SY_INLINE FactorPair ToFactors(Floats low, Floats high) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  typedef int16_t Lanes __attribute__((vector_size(64)));
  const Lanes order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = Bits<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  return {Bits<Halves>(_mm512_castsi512_si256(both)), Bits<Halves>(_mm512_extracti64x4_epi64(both, 1)),
          Bits<Floats>(_mm512_permutexvar_epi16(Bits<__m512i>(order), both))};
#else
  const Halves first = ToFactor(low), second = ToFactor(high);
  return {first, second,
          Bits<Floats>(__builtin_convertvector(first, Words) | __builtin_convertvector(second, Words) << 16)};
#endif
}

// Words of pairs.
SY_INLINE void StorePairs(float* words, Halves low, Halves high) {
  Store(words, Bits<Floats>(__builtin_convertvector(low, Words) | __builtin_convertvector(high, Words) << 16));
}

SY_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) return Bits<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // Scaling by 2^112 moves the exponent and normalises subnormals at once.
  return Bits<float>(Bits<uint32_t>(Bits<float>(magnitude << 13) * 0x1p112f) | sign);
}
SY_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t word = Bits<uint32_t>(value), sign = (word >> 16) & 0x8000u, magnitude = word & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u)  // subnormal: adding 0.5 puts its last bit at the last bit of the float
    return static_cast<uint16_t>(sign | (Bits<uint32_t>(Bits<float>(magnitude) + 0.5f) - 0x3F000000u));
  return static_cast<uint16_t>(sign | ((magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13));
}

SY_INLINE Floats FromF16(Halves h) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(Bits<__m256i>(h));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(Bits<__m128i>(h));
#else
  Floats v;
  for (int i = 0; i < kLanes; ++i) v[i] = HalfToFloat(h[i]);
  return v;
#endif
}
SY_INLINE Halves ToF16(Floats v) {
#if defined(__AVX512F__)
  return Bits<Halves>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  return Bits<Halves>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  Halves h;
  for (int i = 0; i < kLanes; ++i) h[i] = FloatToHalf(v[i]);
  return h;
#endif
}

SY_INLINE Halves LoadHalves(const uint16_t* from, int64_t lanes = kLanes) {
  Halves h = {};
  if (lanes == kLanes) {
    __builtin_memcpy(&h, from, sizeof h);
    return h;
  }
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  return Bits<Halves>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << lanes) - 1), from));
#else
  for (int64_t i = 0; i < lanes; ++i) h[i] = from[i];
  return h;
#endif
}
SY_INLINE void StoreHalves(uint16_t* to, Halves h, int64_t lanes = kLanes) {
  if (lanes == kLanes) {
    __builtin_memcpy(to, &h, sizeof h);
    return;
  }
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << lanes) - 1), Bits<__m256i>(h));
#else
  for (int64_t i = 0; i < lanes; ++i) to[i] = h[i];
#endif
}

// Calls body(first element, lanes) for each vector of n elements; lanes is the constant kLanes for all but the last.
template <typename Body>
SY_INLINE void ForEachVector(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, int64_t{kLanes});
  if (i < n) body(i, n - i);
}

// Sums term(first element, lanes) over n elements in a fixed order, in four independent vectors. Lanes beyond n must be
// 0 in term.
template <typename Term>
SY_INLINE float SumOver(int64_t n, Term term) {
  Floats s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 += term(i, int64_t{kLanes});
    s1 += term(i + kLanes, int64_t{kLanes});
    s2 += term(i + 2 * kLanes, int64_t{kLanes});
    s3 += term(i + 3 * kLanes, int64_t{kLanes});
  }
  for (; i + kLanes <= n; i += kLanes) s0 += term(i, int64_t{kLanes});
  if (i < n) s1 += term(i, n - i);
  return Sum((s0 + s1) + (s2 + s3));
}

SY_INLINE float Dot(const float* a, const float* b, int64_t n) {
  return SumOver(n, [&](int64_t i, int64_t lanes) SY_INLINED { return Load(a + i, lanes) * Load(b + i, lanes); });
}

}  // namespace switchyard::SY_ISA
