// Elementary functions on vectors of floats, each accurate to a few units in the last place unless it says otherwise.
// Sources: exp, exp2, log and tanh use the single-precision polynomials of S. Moshier's Cephes library; Φ uses
// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26 (|error| ≤ 1.5e-7), whose exponential is the normal
// density that gelu' needs as well.
#pragma once

#include "backends/cpu/vector/simd.h"

namespace switchyard::SY_ISA {

constexpr float kRounding = 12582912.0f;  // 1.5·2^23: adding it rounds to a whole number

// p·2^n, where n is a whole number and `shifted` is n + 1.5·2^23: the integer n is then in the low bits of `shifted`.
SY_INLINE Floats Scale(Floats p, [[maybe_unused]] Floats shifted, [[maybe_unused]] Floats n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  const Ints whole = Bits<Ints>(shifted) - Bits<int32_t>(kRounding), half = whole >> 1;
  return p * Bits<Floats>((half + 127) << 23) * Bits<Floats>((whole - half + 127) << 23);
#endif
}

// exp(x): x = n·ln2 + r, |r| ≤ ln2/2. Overflows to inf, underflows through subnormals to 0, keeps NaN.
SY_INLINE Floats Exp(Floats x) {
  const Floats most = Splat(89.0f), least = Splat(-104.0f);
  x = most < x ? most : x;  // in this order the comparison is one instruction that keeps NaN
  x = least > x ? least : x;
  const Floats shifted = x * 1.44269504088896341f + kRounding, n = shifted - kRounding;
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return Scale(p * (r * r) + r + 1.0f, shifted, n);
}

// 2^x for −150 ≤ x ≤ 128.
SY_INLINE Floats Exp2(Floats x) {
  const Floats shifted = x + kRounding, n = shifted - kRounding, r = x - n;
  Floats p = Splat(1.535336188319500e-4f);
  p = p * r + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  return Scale(p * r + 1.0f, shifted, n);
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

// Of the standard normal distribution at a ≥ 0: P(X > a) and √(2π) times the density, exp(−a²/2). NaN stays NaN.
struct Normal {
  Floats tail, density;
};
SY_INLINE Normal NormalTail(Floats a) {
  // exp(−a²/2) = 2^wanted; 0 below 2^-120, so that no subnormal numbers come of it: they take many times as long.
  const Floats least = Splat(-120.0f), wanted = a * a * -0.721347520444481704f,
               power = Exp2(least > wanted ? least : wanted);
  const Floats e = least > wanted ? Floats{} : power;
  const Floats t = Inverse(1.0f + (0.3275911f * 0.70710678118654752f) * a);
  Floats p = Splat(0.5f * 1.061405429f);
  p = p * t - 0.5f * 1.453152027f;
  p = p * t + 0.5f * 1.421413741f;
  p = p * t - 0.5f * 0.284496736f;
  p = p * t + 0.5f * 0.254829592f;
  return {p * t * e, e};
}
// |x|, at most 100: there the tail is 0, and infinity times 0 does not arise.
SY_INLINE Floats BoundedMagnitude(Floats x) {
  const Floats most = Splat(100.0f), a = Absolute(x);
  return most < a ? most : a;
}
SY_INLINE Floats WithSignOf(Floats magnitude, Floats x) {
  return Bits<Floats>(Bits<Ints>(magnitude) | (Bits<Ints>(x) & static_cast<int32_t>(0x80000000u)));
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
  const Floats a = BoundedMagnitude(x * 1.41421356237309505f);
  return z < 0.16f ? small : WithSignOf(1.0f - 2.0f * NormalTail(a).tail, x);
}

// x·Φ(x) = max(x, 0) − |x|·P(X > |x|), and its derivative Φ(x) + x·φ(x).
SY_INLINE Floats Gelu(Floats x) {
  const Floats zero = Splat(0.0f), a = BoundedMagnitude(x);
  return (zero > x ? zero : x) - a * NormalTail(a).tail;
}
SY_INLINE Floats GeluGradient(Floats x) {
  const Floats a = BoundedMagnitude(x);
  const Normal n = NormalTail(a);
  return 0.5f + WithSignOf(0.5f - n.tail + 0.398942280401432678f * a * n.density, x);
}

// The two for results that are rounded to bfloat16, at a third of the instructions: of a = |x|, P(X > a) to 3e-7
// and ½ − P(X > a) + a·φ(a) to 2e-6. Each is a cubic polynomial per interval, and a lane picks its own.
#if defined(__AVX512F__)
// Interval k, of 0 to 31, is k ± ½ in units of 3/16; the last one has the limit, and serves all that is larger.
struct Cubics {
  alignas(64) float c[4][2 * kLanes];
};
constexpr double kIntervalsPerUnit = 16.0 / 3;

constexpr double NormalDensity(double a) {
  double x = -a * a / 2048, term = 1, power = 1;  // exp(−a²/2) = exp(−a²/2048)^1024
  for (int n = 1; n < 12; ++n) power += term *= x / n;
  for (int i = 0; i < 10; ++i) power *= power;
  return 0.39894228040143268 * power;
}
// Abramowitz and Stegun 26.2.11: Φ(a) − ½ = φ(a)·(a + a³/3 + a⁵/(3·5) + …).
constexpr double TailOf(double a) {
  double term = a, sum = a;
  for (int n = 3; n < 200; n += 2) sum += term *= a * a / n;
  return 0.5 - NormalDensity(a) * sum;
}
constexpr double SlopeOf(double a) { return 0.5 - TailOf(a) + a * NormalDensity(a); }

// f at the four Chebyshev points of each interval: ±u and ±v.
template <typename F>
constexpr Cubics CubicsOf(F f, double limit) {
  Cubics cubics = {};
  constexpr double u = 0.19134171618254489, v = 0.46193976625564338, squares = v * v - u * u;
  for (int k = 0; k + 1 < 2 * kLanes; ++k) {
    const auto at = [&](double t) { return f((k + t) / kIntervalsPerUnit); };
    const double even_u = (at(u) + at(-u)) / 2, even_v = (at(v) + at(-v)) / 2, odd_u = (at(u) - at(-u)) / (2 * u),
                 odd_v = (at(v) - at(-v)) / (2 * v), c2 = (even_v - even_u) / squares, c3 = (odd_v - odd_u) / squares;
    const double c[] = {even_u - c2 * u * u, odd_u - c3 * u * u, c2, c3};
    for (int i = 0; i < 4; ++i) cubics.c[i][k] = static_cast<float>(c[i]);
  }
  cubics.c[0][2 * kLanes - 1] = static_cast<float>(limit);
  return cubics;
}
inline constexpr Cubics kTails = CubicsOf(TailOf, 0), kSlopes = CubicsOf(SlopeOf, 0.5);

SY_INLINE Floats Piecewise(const Cubics& f, Floats a) {
  const Floats most = Splat(2 * kLanes - 1), scaled = a * static_cast<float>(kIntervalsPerUnit),
               place = most < scaled ? most : scaled, shifted = place + kRounding, t = place - (shifted - kRounding);
  const auto c = [&](int i) SY_INLINED {
    return Floats(_mm512_permutex2var_ps(Load(f.c[i]), Bits<__m512i>(shifted), Load(f.c[i] + kLanes)));
  };
  return ((c(3) * t + c(2)) * t + c(1)) * t + c(0);
}

SY_INLINE Floats GeluForBf16(Floats x) {
  const Floats zero = Splat(0.0f), a = BoundedMagnitude(x);
  return (zero > x ? zero : x) - a * Piecewise(kTails, a);
}
SY_INLINE Floats GeluGradientForBf16(Floats x) { return 0.5f + WithSignOf(Piecewise(kSlopes, Absolute(x)), x); }
#else
SY_INLINE Floats GeluForBf16(Floats x) { return Gelu(x); }
SY_INLINE Floats GeluGradientForBf16(Floats x) { return GeluGradient(x); }
#endif

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
