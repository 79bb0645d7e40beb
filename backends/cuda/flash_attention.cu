// Scaled dot-product attention over packed qkv, for what the library's kernels do not take. One pass over the keys with
// running maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022), so that no (T, T) array is ever stored.
#include "backends/cuda/flash_attention.cuh"
#include "backends/cuda/team.cuh"

namespace switchyard {
namespace {

// A block has kRows queries of one head: blockIdx.x = b·H + h, blockIdx.y = which queries.
template <typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads)
    AttentionKernel(AttentionShape s, View qkv, AttentionTerms terms, View out, View logsumexp) {
  using Element = typename Tiles::Element;
  SWITCHYARD_DYNAMIC_SHARED(char, shared);
  auto* queries = reinterpret_cast<Element*>(shared);
  auto* keys = reinterpret_cast<Element*>(shared + Tiles::kOwnBytes);
  auto* values = reinterpret_cast<Element*>(shared + Tiles::kOwnBytes + Tiles::kOtherBytes);
  auto* weights = reinterpret_cast<float*>(shared + Tiles::kOwnBytes + 2 * Tiles::kOtherBytes);
  const int64_t b = blockIdx.x / s.heads, h = blockIdx.x % s.heads;
  const int64_t first = blockIdx.y * static_cast<int64_t>(Tiles::kRows);
  float largest[Tiles::kHeld], total[Tiles::kHeld], sum[Tiles::kHeld][Tiles::kWidth] = {};
#pragma unroll
  for (int r = 0; r < Tiles::kHeld; ++r) largest[r] = -INFINITY, total[r] = 0;
  Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 0, h), s.QkvStride(), first, Tiles::kRows, queries);
  Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 1, h), s.QkvStride(), 0, Tiles::kColumns, keys);
  CommitCopies();
  // Values come while scores are computed, the next keys while values are added up.
  for (int64_t key = 0; key < s.tokens; key += Tiles::kColumns) {
    __syncthreads();  // the values of the tile before have been used
    Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 2, h), s.QkvStride(), key, Tiles::kColumns, values);
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();  // the keys are there
    float p[Tiles::kHeld][Tiles::kScores];
    Tiles::Multiply(queries, keys, p);
    terms.Finish<false, Tiles>(s, b, h, first, key, p);
#pragma unroll
    for (int r = 0; r < Tiles::kHeld; ++r) {
      float top = largest[r], row_sum = 0;
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) top = Greater()(p[r][c], top);
      top = Tiles::ReduceRow(top, Greater());
      const float shift = top == -INFINITY ? 0 : top;  // a row with no key so far
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        p[r][c] = expf(p[r][c] - shift);
        row_sum += p[r][c];
      }
      const float keep = expf(largest[r] - shift);
      total[r] = total[r] * keep + Tiles::ReduceRow(row_sum, Plus());
      largest[r] = top;
#pragma unroll
      for (int k = 0; k < Tiles::kWidth; ++k) sum[r][k] *= keep;
    }
    __syncthreads();  // the keys have been used
    Tiles::LoadTile(s, qkv, s.Qkv(b, 0, 1, h), s.QkvStride(), key + Tiles::kColumns, Tiles::kColumns, keys);
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();  // the values are there
    Tiles::AddWeighted(p, values, weights, sum);
  }
  float factor[Tiles::kHeld];
#pragma unroll
  for (int r = 0; r < Tiles::kHeld; ++r) {
    factor[r] = 1 / total[r];
    const int64_t row = first + Tiles::Row(r);
    if (Tiles::Column(0) == 0 && row < s.tokens) StoreOne(logsumexp, s.Row(b, h, row), largest[r] + logf(total[r]));
  }
  WaitForCopies<0>();
  Tiles::StoreRows(s, out, s.Out(b, 0, h), s.OutStride(), first, sum, factor, reinterpret_cast<float*>(shared));
}

struct Attention : Kernel {
  Attention(const Request& r, const AttentionShape& s)
      : Kernel(r), shape(s), attributes(r.Attributes<sy_attention_attributes>()) {}

  template <typename Tiles>
  cudaError_t Start(const Bound& b, const LaunchContext& context) const {
    constexpr size_t kShared = Tiles::kOwnBytes + 2 * Tiles::kOtherBytes + Tiles::kWeightBytes;
    static_assert(kShared <= 48 << 10);
    const AttentionTerms terms = {attributes.bias ? In(b, 1) : View(),
                                  attributes.mask ? In(b, inputs.size() - 1) : View()};
    const dim3 grid(static_cast<unsigned>(shape.batch * shape.heads),
                    static_cast<unsigned>(CeilDivide(shape.tokens, Tiles::kRows)));
    return Launch(AttentionKernel<Tiles>, grid, dim3(Tiles::kThreads), kShared, context.stream, shape, In(b, 0), terms,
                  Out(b, 0), Out(b, 1));
  }
  template <sy_dtype kDtype>
  cudaError_t StartHalf(const Bound& b, const LaunchContext& context) const {
    if (shape.depth <= 32) return Start<MatrixTiles<kDtype, 32, 64, 64>>(b, context);
    if (shape.depth <= 64) return Start<MatrixTiles<kDtype, 64, 64, 64>>(b, context);
    return Start<MatrixTiles<kDtype, 128, 64, 32>>(b, context);
  }
  cudaError_t StartSingle(const Bound& b, const LaunchContext& context) const {
    if (shape.depth <= 32) return Start<ScalarTiles<32, 64, 32>>(b, context);
    if (shape.depth <= 64) return Start<ScalarTiles<64, 64, 32>>(b, context);
    return Start<ScalarTiles<128, 32, 16>>(b, context);
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    if (inputs[0].dtype == SY_BF16) {
      SY_CUDA(error, StartHalf<SY_BF16>(b, context));
    } else if (inputs[0].dtype == SY_F16) {
      SY_CUDA(error, StartHalf<SY_F16>(b, context));
    } else {
      SY_CUDA(error, StartSingle(b, context));
    }
    return SY_OK;
  }
  const AttentionShape shape;
  const sy_attention_attributes attributes;
};

KernelPointer PrepareAttention(const Request& r) {
  AttentionShape shape;
  if (!CheckAttentionForward(r, &shape)) return nullptr;
  return std::make_unique<Attention>(r, shape);
}

const Registration kAttention{"attention", PrepareAttention, sizeof(sy_attention_attributes)};

}  // namespace
}  // namespace switchyard
