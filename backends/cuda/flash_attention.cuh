// What attention and its gradient share: the layout of packed qkv (B, T, 3, H, D), tiles of it in shared memory as f32,
// and the two small matrix products that a block computes with them. A block has kRows rows of its own and runs over
// tiles of kColumns others; threads form a grid of 16 × kRows/4, each with four rows (4·y … 4·y + 3) and every sixteenth
// column (x, x + 16, …).
#pragma once

#include <cmath>

#include "backends/cuda/views.h"

namespace switchyard {

struct AttentionShape {
  int64_t batch, tokens, heads, depth, groups;
  float scale;

  // Element (b, token, part, h, 0) of qkv, part 0 … 2 for q, k, v; and the distance to the next token.
  __device__ __forceinline__ int64_t Qkv(int64_t b, int64_t token, int part, int64_t h) const {
    return (((b * tokens + token) * 3 + part) * heads + h) * depth;
  }
  __device__ __forceinline__ int64_t QkvStride() const { return 3 * heads * depth; }
  __device__ __forceinline__ int64_t Out(int64_t b, int64_t token, int64_t h) const {
    return ((b * tokens + token) * heads + h) * depth;
  }
  __device__ __forceinline__ int64_t OutStride() const { return heads * depth; }
  __device__ __forceinline__ int64_t Row(int64_t b, int64_t h, int64_t token) const {
    return (b * heads + h) * tokens + token;
  }
};

struct AttentionTerms {
  View bias, mask;  // (H, T, T) and (G, T, T); may be absent

  // scale·(q·k) + bias + mask for query i and key j; −∞ beyond the tokens, so that they weigh nothing.
  __device__ __forceinline__ float Score(const AttentionShape& s, int64_t b, int64_t h, int64_t i, int64_t j,
                                         float product) const {
    if (i >= s.tokens || j >= s.tokens) return -INFINITY;
    float score = s.scale * product;
    if (bias) score += LoadOne(bias, (h * s.tokens + i) * s.tokens + j);
    if (mask) score += LoadOne(mask, (b % s.groups * s.tokens + i) * s.tokens + j);
    return score;
  }
};

constexpr int kAttentionLanes = 16;  // threads side by side

template <int kDepth, int kRows, int kColumns>
struct AttentionTiles {
  static constexpr int kThreads = kAttentionLanes * kRows / 4;
  static constexpr int kStride = kDepth + 4;           // of a row of a tile, floats: 16-byte aligned, banks apart
  static constexpr int kWeightStride = kColumns + 4;
  static constexpr int kOwn = kRows * kStride, kOther = kColumns * kStride, kWeights = kRows * kWeightStride;  // floats
  static constexpr int kScores = kColumns / kAttentionLanes, kWidth = kDepth / kAttentionLanes;  // columns of a thread

  __device__ static int X() { return threadIdx.x % kAttentionLanes; }
  __device__ static int Y() { return threadIdx.x / kAttentionLanes; }

  // tile[r][d] = x[base + (first + r)·stride + d], zero beyond the tokens and the depth.
  __device__ static void LoadTile(const AttentionShape& s, const View& x, int64_t base, int64_t stride, int64_t first,
                                  int rows, float* tile) {
    constexpr int kPacks = kDepth / kPack;
    for (int i = threadIdx.x; i < rows * kPacks; i += kThreads) {
      const int row = i / kPacks, column = i % kPacks * kPack;
      const int64_t at = base + (first + row) * stride + column;
      float v[kPack] = {};
      if (first + row < s.tokens && column < s.depth) {
        if (s.depth % kPack == 0) {
          Load<kPack>(x, at, v);
        } else {
          for (int k = 0; k < kPack; ++k) v[k] = column + k < s.depth ? LoadOne(x, at + k) : 0;
        }
      }
      auto* to = reinterpret_cast<float4*>(tile + row * kStride + column);
      to[0] = make_float4(v[0], v[1], v[2], v[3]);
      to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
  }

  // product[r][c] = own row r · other row c
  __device__ static void Multiply(const float* own, const float* other, float (&product)[4][kScores]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < kScores; ++c) product[r][c] = 0;
    }
#pragma unroll 4
    for (int d = 0; d < kDepth; d += 4) {
      float4 a[4], b[kScores];
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = *reinterpret_cast<const float4*>(own + (4 * Y() + r) * kStride + d);
#pragma unroll
      for (int c = 0; c < kScores; ++c)
        b[c] = *reinterpret_cast<const float4*>(other + (X() + c * kAttentionLanes) * kStride + d);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < kScores; ++c)
          product[r][c] += a[r].x * b[c].x + a[r].y * b[c].y + a[r].z * b[c].z + a[r].w * b[c].w;
      }
    }
  }

  // Puts this thread's weights where AddWeighted looks for them.
  __device__ static void StoreWeights(const float (&w)[4][kScores], float* weights) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < kScores; ++c) weights[(4 * Y() + r) * kWeightStride + X() + c * kAttentionLanes] = w[r][c];
    }
  }

  // sum[r] += Σ over the other rows of weights[r]·other
  __device__ static void AddWeighted(const float* weights, const float* other, float (&sum)[4][kWidth]) {
    for (int j = 0; j < kColumns; j += 4) {
      float4 w[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) w[r] = *reinterpret_cast<const float4*>(weights + (4 * Y() + r) * kWeightStride + j);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float* column = other + j * kStride + X() + k * kAttentionLanes;
        const float b[4] = {column[0], column[kStride], column[2 * kStride], column[3 * kStride]};
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[r][k] += w[r].x * b[0] + w[r].y * b[1] + w[r].z * b[2] + w[r].w * b[3];
      }
    }
  }

  // x[base + (first + r)·stride + d] = factor[r]·sum[r][d]
  __device__ static void StoreRows(const AttentionShape& s, const View& x, int64_t base, int64_t stride, int64_t first,
                                   const float (&sum)[4][kWidth], const float (&factor)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first + 4 * Y() + r;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const int d = X() + k * kAttentionLanes;
        if (row < s.tokens && d < s.depth) StoreOne(x, base + row * stride + d, factor[r] * sum[r][k]);
      }
    }
  }
};

// The shape and the optional operands of a request for attention (`first` = 1) or its gradient (4); false, with a
// message, where something does not fit.
inline bool CheckAttention(const Request& r, size_t first, size_t outputs, AttentionShape* shape) {
  const auto a = r.Attributes<sy_attention_attributes>();
  const size_t inputs = first + (a.bias ? 1 : 0) + (a.mask ? 1 : 0);
  const auto complain = [&](const char* what) { return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: %s", r.op, what), false; };
  if (!r.HasCounts(inputs, inputs, outputs)) return false;
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& x : *tensors) {
      if (!r.RequireFloat(x, "an operand")) return false;
    }
  }
  const sy_tensor& qkv = r.inputs[0];
  if (qkv.rank != 5 || qkv.dims[2] != 3) return complain("qkv is not (B, T, 3, H, D)");
  *shape = {qkv.dims[0], qkv.dims[1], qkv.dims[3], qkv.dims[4], 1, a.scale};
  const int64_t square = shape->tokens * shape->tokens;
  if (shape->depth > 128) return complain("more than 128 elements per head");
  if (shape->batch * shape->heads > kMostIndices || shape->tokens > 1 << 20) return complain("too many tokens or heads");
  if (r.Accumulates()) return complain("cannot accumulate");
  if (a.bias && !r.RequireElements(r.inputs[first], shape->heads * square, "bias")) return false;
  if (a.mask) {
    const sy_tensor& mask = r.inputs[inputs - 1];
    if (mask.rank != 3) return complain("mask is not (G, T, T)");
    shape->groups = mask.dims[0];
    if (!r.RequireElements(mask, shape->groups * square, "mask")) return false;
  }
  return true;
}

}  // namespace switchyard
