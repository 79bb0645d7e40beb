// Scaled dot-product attention over packed qkv with f32 arithmetic, for what the library's kernels do not take. One pass
// over the keys with running maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018;
// Dao et al., "FlashAttention", 2022), so that no (T, T) array is ever stored.
#include "backends/cuda/flash_attention.cuh"

namespace switchyard {
namespace {

constexpr int kColumns = 32;

// A block has kRows queries of one head: blockIdx.x = b·H + h, blockIdx.y = which queries.
template <int kDepth, int kRows>
__global__ void AttentionKernel(AttentionShape s, View qkv, AttentionTerms terms, View out, View logsumexp) {
  using Tiles = AttentionTiles<kDepth, kRows, kColumns>;
  SWITCHYARD_DYNAMIC_SHARED(float, shared);
  float *queries = shared, *others = queries + Tiles::kOwn, *weights = others + Tiles::kOther;
  const int64_t b = blockIdx.x / s.heads, h = blockIdx.x % s.heads, first = blockIdx.y * static_cast<int64_t>(kRows);
  float largest[4], total[4], sum[4][Tiles::kWidth] = {};
#pragma unroll
  for (int r = 0; r < 4; ++r) largest[r] = -INFINITY, total[r] = 0;
  Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 0, h), s.QkvStride(), first, kRows, queries);
  for (int64_t key = 0; key < s.tokens; key += kColumns) {
    __syncthreads();  // the values of the tile before have been used
    Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 1, h), s.QkvStride(), key, kColumns, others);
    __syncthreads();
    float p[4][Tiles::kScores];
    Tiles::Multiply(queries, others, p);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float top = largest[r], row_sum = 0;
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        p[r][c] = terms.Score(s, b, h, first + 4 * Tiles::Y() + r, key + Tiles::X() + c * kAttentionLanes, p[r][c]);
        top = fmaxf(top, p[r][c]);
      }
#pragma unroll
      for (int bits = kAttentionLanes / 2; bits > 0; bits /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bits));
      const float shift = top == -INFINITY ? 0 : top;  // a row with no key so far
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        p[r][c] = expf(p[r][c] - shift);
        row_sum += p[r][c];
      }
#pragma unroll
      for (int bits = kAttentionLanes / 2; bits > 0; bits /= 2) row_sum += __shfl_xor_sync(~0u, row_sum, bits);
      const float keep = expf(largest[r] - shift);
      total[r] = total[r] * keep + row_sum;
      largest[r] = top;
#pragma unroll
      for (int k = 0; k < Tiles::kWidth; ++k) sum[r][k] *= keep;
    }
    Tiles::StoreWeights(p, weights);
    __syncthreads();  // the keys have been used
    Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 2, h), s.QkvStride(), key, kColumns, others);
    __syncthreads();
    Tiles::AddWeighted(weights, others, sum);
  }
  float factor[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    factor[r] = 1 / total[r];
    const int64_t row = first + 4 * Tiles::Y() + r;
    if (Tiles::X() == 0 && row < s.tokens) StoreOne(logsumexp, s.Row(b, h, row), largest[r] + logf(total[r]));
  }
  Tiles::StoreRows(s, out, s.Out(b, 0, h), s.OutStride(), first, sum, factor);
}

struct Attention : Kernel {
  Attention(const Request& r, const AttentionShape& s)
      : Kernel(r), shape(s), attributes(r.Attributes<sy_attention_attributes>()) {}

  template <int kDepth, int kRows>
  cudaError_t Start(const Bound& b, const LaunchContext& context) const {
    using Tiles = AttentionTiles<kDepth, kRows, kColumns>;
    const AttentionTerms terms = {attributes.bias ? In(b, 1) : View(),
                                  attributes.mask ? In(b, inputs.size() - 1) : View()};
    const dim3 grid(static_cast<unsigned>(shape.batch * shape.heads),
                    static_cast<unsigned>(CeilDivide(shape.tokens, kRows)));
    return Launch(AttentionKernel<kDepth, kRows>, grid, dim3(Tiles::kThreads),
                  (Tiles::kOwn + Tiles::kOther + Tiles::kWeights) * sizeof(float), context.stream, shape, In(b, 0),
                  terms, Out(b, 0), Out(b, 1));
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    if (shape.depth <= 32) {
      SY_CUDA(error, Start<32, 64>(b, context));
    } else if (shape.depth <= 64) {
      SY_CUDA(error, Start<64, 64>(b, context));
    } else {
      SY_CUDA(error, Start<128, 32>(b, context));
    }
    return SY_OK;
  }
  const AttentionShape shape;
  const sy_attention_attributes attributes;
};

}  // namespace

KernelPointer PrepareAttention(const Request& r) {
  AttentionShape shape;
  if (!CheckAttention(r, 1, 2, &shape)) return nullptr;
  if (!r.RequireElements(r.outputs[0], shape.batch * shape.tokens * shape.heads * shape.depth, "out") ||
      !r.RequireElements(r.outputs[1], shape.batch * shape.heads * shape.tokens, "logsumexp"))
    return nullptr;
  return std::make_unique<Attention>(r, shape);
}

}  // namespace switchyard
