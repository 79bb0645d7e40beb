// Elementary functions on vectors of floats, each accurate to a few units in the last place unless it says otherwise.
// Sources: exp, log and tanh use the single-precision polynomials of S. Moshier's Cephes library; Φ uses Abramowitz and
// Stegun, Handbook of Mathematical Functions, 7.1.26 (|error| ≤ 1.5e-7), whose exponential is the normal density that
// gelu' needs as well.
#pragma once

#include "backends/cpu/vector/simd.h"

namespace switchyard::SY_ISA {

// exp(x): x = n·ln2 + r, |r| ≤ ln2/2. Overflows to inf, underflows through subnormals to 0, keeps NaN.
SY_INLINE Floats Exp(Floats x) {
  constexpr float kMagic = 12582912.0f;  // 1.5·2^23: adding it rounds to an integer, which is then in the low bits
  x = x > 89.0f ? Splat(89.0f) : x;
  x = x < -104.0f ? Splat(-104.0f) : x;
  const Floats shifted = x * 1.44269504088896341f + kMagic, n = shifted - kMagic;
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  const Ints whole = Bits<Ints>(shifted) - Bits<int32_t>(kMagic), half = whole >> 1;
  return p * Bits<Floats>((half + 127) << 23) * Bits<Floats>((whole - half + 127) << 23);
#endif
}

SY_INLINE Floats Log(Floats x) {
  const Ints tiny = x < 1.17549435e-38f;
  const Floats scaled = tiny ? x * 8388608.0f : x;
  const Ints word = Bits<Ints>(scaled);
  Floats e = __builtin_convertvector(((word >> 23) & 0xFF) - 126, Floats) - (tiny ? Splat(23.0f) : Splat(0.0f));
  Floats m = Bits<Floats>((word & 0x007FFFFF) | 0x3F000000);  // [0.5, 1)
  const Ints low = m < 0.707106781186547524f;
  e = low ? e - 1.0f : e;
  m = (low ? m + m : m) - 1.0f;
  Floats p = Splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const Floats square = m * m;
  Floats result = m * square * p - 2.12194440e-4f * e - 0.5f * square + m + 0.693359375f * e;
  result = x > 3.40282347e38f ? x : result;
  result = x == 0.0f ? Splat(-__builtin_inff()) : result;
  return x >= 0.0f ? result : Splat(__builtin_nanf(""));
}

SY_INLINE Floats Sigmoid(Floats x) { return 1.0f / (1.0f + Exp(-x)); }

SY_INLINE Floats Tanh(Floats x) {
  const Floats a = Absolute(x), z = x * x;
  Floats p = Splat(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Floats small = p * z * x + x, large = 1.0f - 2.0f / (Exp(2.0f * a) + 1.0f);
  return a < 0.625f ? small : (x < 0.0f ? -large : large);
}

// Φ(x) = P(X ≤ x) and the density φ(x) of the standard normal distribution.
struct Normal {
  Floats cumulative, density;
};
SY_INLINE Normal NormalDistribution(Floats x) {
  const Floats e = Exp(-0.5f * x * x);
  const Floats t = Inverse(1.0f + (0.3275911f * 0.70710678118654752f) * Smaller(Absolute(x), Splat(1e4f)));
  Floats p = Splat(0.5f * 1.061405429f);
  p = p * t - 0.5f * 1.453152027f;
  p = p * t + 0.5f * 1.421413741f;
  p = p * t - 0.5f * 0.284496736f;
  p = p * t + 0.5f * 0.254829592f;
  const Floats tail = p * t * e;
  return {x < 0.0f ? tail : 1.0f - tail, 0.398942280401432678f * e};
}

// erf(x) = 2Φ(√2·x) − 1; near 0 its Taylor series (7.1.5), which keeps relative accuracy.
SY_INLINE Floats Erf(Floats x) {
  const Floats z = x * x;
  Floats p = Splat(-1.0f / 1320);
  p = p * z + 1.0f / 216;
  p = p * z - 1.0f / 42;
  p = p * z + 1.0f / 10;
  p = p * z - 1.0f / 3;
  p = p * z + 1.0f;
  const Floats small = 1.12837916709551257f * x * p;
  return z < 0.16f ? small : 2.0f * NormalDistribution(1.41421356237309505f * x).cumulative - 1.0f;
}

SY_INLINE Floats Gelu(Floats x) {
  const Floats y = x * NormalDistribution(x).cumulative;
  return x < -1e4f ? Splat(-0.0f) : y;  // −inf · 0
}
SY_INLINE Floats GeluGradient(Floats x) {
  const Normal n = NormalDistribution(x);
  const Floats y = n.cumulative + x * n.density;
  return Absolute(x) > 1e4f ? n.cumulative : y;  // inf · 0
}

// gelu_tanh(x) = x·σ(2u), u = √(2/π)·(x + 0.044715x³): ½(1 + tanh u) = σ(2u).
SY_INLINE Floats GeluTanhGate(Floats x) { return Sigmoid(x * (1.59576912160573f + 0.0713548162726f * x * x)); }
SY_INLINE Floats GeluTanh(Floats x) {
  const Floats y = x * GeluTanhGate(x);
  return x < -1e4f ? Splat(-0.0f) : y;
}
SY_INLINE Floats GeluTanhGradient(Floats x) {
  const Floats s = GeluTanhGate(x);
  const Floats y = s + x * s * (1.0f - s) * (1.59576912160573f + 3.0f * 0.0713548162726f * x * x);
  return Absolute(x) > 1e4f ? s : y;
}

SY_INLINE Floats Silu(Floats x) {
  const Floats y = x * Sigmoid(x);
  return x < -1e4f ? Splat(-0.0f) : y;
}
SY_INLINE Floats SiluGradient(Floats x) {
  const Floats s = Sigmoid(x), y = s * (1.0f + x * (1.0f - s));
  return Absolute(x) > 1e4f ? s : y;
}

SY_INLINE Floats Relu(Floats x) { return x < 0.0f ? Splat(0.0f) : x; }  // keeps NaN
SY_INLINE Floats ReluGradient(Floats x) { return x > 0.0f ? Splat(1.0f) : Splat(0.0f); }

}  // namespace switchyard::SY_ISA
