// The activations and their derivatives in f32, as ops.h defines them (SY_ACTIVATION_*).
#pragma once

#include <cmath>

#include "core/abi/ops.h"

namespace switchyard {

constexpr float kSqrtHalf = 0.70710678f, kSqrtTwoOverPi = 0.79788456f, kOneOverSqrtTwoPi = 0.39894228f;
constexpr float kGeluCubic = 0.044715f;  // Hendrycks and Gimpel, 2016

__device__ __forceinline__ float Gelu(float x) { return 0.5f * x * (1 + erff(x * kSqrtHalf)); }
__device__ __forceinline__ float GeluGradient(float x) {
  return 0.5f * (1 + erff(x * kSqrtHalf)) + x * expf(-0.5f * x * x) * kOneOverSqrtTwoPi;
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

__device__ __forceinline__ float Activate(int activation, float x) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      return Gelu(x);
    case SY_ACTIVATION_GELU_TANH:
      return GeluTanh(x);
    case SY_ACTIVATION_RELU:
      return Relu(x);
    case SY_ACTIVATION_SILU:
      return Silu(x);
    default:
      return x;
  }
}
__device__ __forceinline__ float ActivationGradient(int activation, float x) {
  switch (activation) {
    case SY_ACTIVATION_GELU:
      return GeluGradient(x);
    case SY_ACTIVATION_GELU_TANH:
      return GeluTanhGradient(x);
    case SY_ACTIVATION_RELU:
      return ReluGradient(x);
    case SY_ACTIVATION_SILU:
      return SiluGradient(x);
    default:
      return 1;
  }
}

}  // namespace switchyard
