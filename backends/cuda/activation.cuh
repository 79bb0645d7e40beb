// The activations and their derivatives in f32, as ops.h defines them (SY_ACTIVATION_*).
#pragma once

#include <cmath>

#include "backends/cuda/approximate.cuh"
#include "core/abi/ops.h"

namespace switchyard {

constexpr float kSqrtTwoOverPi = 0.79788456f, kHalfLog2E = 0.72134752f, kLog2SqrtTwoPi = 1.3257481f;
constexpr float kGeluCubic = 0.044715f;  // Hendrycks and Gimpel, 2016

// The standard normal distribution's upper tail Q(z) = 1 − Φ(z), z ≥ 0, as 2 to a polynomial: log2 Q is nearly a
// parabola. The coefficients are our own fit, by tools/fixtures/fit_normal_tail.py: the greatest absolute error of Q is
// the least that degree 10 has on [0, 8], the relative one stays below 0.42 % there, and beyond the polynomial falls on.
// In f32 the error of Q is below 9e-8 where 2 to it is rounded correctly, and GELU needs neither erf nor a difference of numbers that are nearly equal.
constexpr float kNoTail = 14;  // 2 to the polynomial is 0 from 11.4 on
__device__ __forceinline__ float NormalTail(float z) {
  float log2 = -3.0621635e-08f;
  log2 = log2 * z + 9.32855e-07f;
  log2 = log2 * z - 1.190837e-05f;
  log2 = log2 * z + 8.190045e-05f;
  log2 = log2 * z - 0.00029600272f;
  log2 = log2 * z + 2.6271317e-05f;
  log2 = log2 * z + 0.0069251163f;
  log2 = log2 * z - 0.05243321f;
  log2 = log2 * z - 0.4592216f;
  log2 = log2 * z - 1.1511042f;
  return ApproximateExp2(log2 * z - 1);
}
// x·Φ(x) = max(x, 0) − |x|·Q(|x|)
__device__ __forceinline__ float Gelu(float x) {
  const float z = LeastOrNan(fabsf(x), kNoTail);
  return fmaxf(x, 0) - z * NormalTail(z);
}
// Φ(x) + x·φ(x): with u = Q(|x|) − |x|·φ(x), 1 − u for x > 0, else u
__device__ __forceinline__ float GeluGradient(float x) {
  const float z = LeastOrNan(fabsf(x), kNoTail);
  const float density = ApproximateExp2(kHalfLog2E * (-z * z) - kLog2SqrtTwoPi);
  const float u = NormalTail(z) - z * density;
  return x > 0 ? 1 - u : u;
}
__device__ __forceinline__ float GeluTanh(float x) {
  return 0.5f * x * (1 + tanhf(kSqrtTwoOverPi * (x + kGeluCubic * x * x * x)));
}
__device__ __forceinline__ float GeluTanhGradient(float x) {
  const float t = tanhf(kSqrtTwoOverPi * (x + kGeluCubic * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kSqrtTwoOverPi * (1 + 3 * kGeluCubic * x * x);
}
__device__ __forceinline__ float Relu(float x) { return x < 0 ? 0 : x; }
__device__ __forceinline__ float ReluGradient(float x) { return x > 0 ? 1 : 0; }
__device__ __forceinline__ float Sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }
__device__ __forceinline__ float SiluGradient(float x) {
  const float s = Sigmoid(x);
  return s * (1 + x * (1 - s));
}

template <int N, typename F>
__device__ __forceinline__ void Each(float (&result)[N], F f) {
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] = f(k);
}

// Each v[k] becomes its activation. (One branch for all of them.)
template <int N>
__device__ __forceinline__ void Activate(int activation, float (&v)[N]) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      return Each(v, [&](int k) { return Gelu(v[k]); });
    case SY_ACTIVATION_GELU_TANH:
      return Each(v, [&](int k) { return GeluTanh(v[k]); });
    case SY_ACTIVATION_RELU:
      return Each(v, [&](int k) { return Relu(v[k]); });
    case SY_ACTIVATION_SILU:
      return Each(v, [&](int k) { return Silu(v[k]); });
    default:
      return;
  }
}
// Each v[k] is multiplied by the activation's derivative at x[k].
template <int N>
__device__ __forceinline__ void MultiplyGradient(int activation, const float (&x)[N], float (&v)[N]) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      return Each(v, [&](int k) { return v[k] * GeluGradient(x[k]); });
    case SY_ACTIVATION_GELU_TANH:
      return Each(v, [&](int k) { return v[k] * GeluTanhGradient(x[k]); });
    case SY_ACTIVATION_RELU:
      return Each(v, [&](int k) { return v[k] * ReluGradient(x[k]); });
    case SY_ACTIVATION_SILU:
      return Each(v, [&](int k) { return v[k] * SiluGradient(x[k]); });
    default:
      return;
  }
}

}  // namespace switchyard
