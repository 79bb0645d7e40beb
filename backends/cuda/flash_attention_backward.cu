// The gradient of attention: the probabilities are computed again from logsumexp (Dao et al., "FlashAttention", 2022,
// algorithm 4). With p = exp(s − logsumexp), δ = dout·out and ds = p·(dout·v − δ):
//   dq_i = scale·Σ_j ds·k_j    dk_j = scale·Σ_i ds·q_i    dv_j = Σ_i p·dout_i    dbias = Σ_b ds
// Each of the three kinds of result has blocks of its own, which own their rows: no atomics, the same bits every time.
#include <type_traits>

#include "backends/cuda/flash_attention.cuh"
#include "backends/cuda/team.cuh"

namespace switchyard {
namespace {

enum class Result { kQueries, kKeys, kBias };

struct Operands {
  View qkv, dout;
  const float *logsumexp, *delta;  // (B, H, T)
  AttentionTerms terms;
};

// δ (B, H, T) of out and dout (B, T, H, D); a team has one row of D.
__global__ void DeltaKernel(Teams teams, AttentionShape s, View out, View dout, float* delta) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  float sum = 0;
  teams.ForRow<1>(s.depth,
                  [&](int64_t d) { sum += LoadOne(out, row * s.depth + d) * LoadOne(dout, row * s.depth + d); });
  sum = teams.Sum(sum);
  if (teams.Rank() == 0) delta[s.Row(row / s.heads / s.tokens, row % s.heads, row / s.heads % s.tokens)] = sum;
}

// p and ds of this thread's rows and columns. Rows are queries and columns keys, or the other way round.
template <bool kRowsAreKeys, typename Tiles>
__device__ __forceinline__ void Weigh(const AttentionShape& s, const Operands& o, int64_t b, int64_t h, int64_t row,
                                      int64_t column, float (&p)[Tiles::kHeld][Tiles::kScores],
                                      float (&ds)[Tiles::kHeld][Tiles::kScores]) {
  o.terms.Finish<kRowsAreKeys, Tiles>(s, b, h, row, column, p);
  const auto tokens = static_cast<int32_t>(s.tokens), first = static_cast<int32_t>(kRowsAreKeys ? column : row);
  const float *const logsumexp = o.logsumexp + s.Row(b, h, 0), *const delta = o.delta + s.Row(b, h, 0);
#pragma unroll
  for (int r = 0; r < Tiles::kHeld; ++r) {
#pragma unroll
    for (int c = 0; c < Tiles::kScores; ++c) {
      const int32_t i = first + (kRowsAreKeys ? Tiles::Column(c) : Tiles::Row(r));  // the query
      // Beyond the tokens p is zero: exp(−∞), with any number in place of what is not there.
      p[r][c] = expf(p[r][c] - (i < tokens ? logsumexp[i] : 0));
      ds[r][c] = p[r][c] * (ds[r][c] - (i < tokens ? delta[i] : 0));
    }
  }
}

// Blocks that a multiprocessor is to have room for, as far as registers go. Without the number ptxas prefers a step of
// occupancy to a few values, which it then keeps on the stack; 0 leaves the choice to it, where it makes a better one.
template <typename Tiles, Result kResult>
constexpr int LeastBlocks() {
  if (Tiles::kThreads > 128 && kResult == Result::kBias) return 0;
  constexpr int kSize = Tiles::kMostDepth <= 32 ? 0 : Tiles::kMostDepth <= 64 ? 1 : 2;
  constexpr int kWarps[2][3] = {{20, 16, 12}, {16, 12, 8}};  // dk and dv take the registers of two results
  return kWarps[kResult == Result::kKeys][kSize] * kWarp / Tiles::kThreads;
}

// A block has kRows queries, or keys and values, of one head, and runs over tiles of the others: blockIdx.x = b·H + h.
// For dbias it has kRows × kColumns pairs of one head and runs over a part of the batch: blockIdx.x = part·H + h,
// blockIdx.z = which keys.
template <typename Tiles, Result kResult>
__global__ void __launch_bounds__(Tiles::kThreads, LeastBlocks<Tiles, kResult>())
    AttentionBackwardKernel(AttentionShape s, Operands o, View dqkv, BatchParts batch, float* slots) {
  using Element = typename Tiles::Element;
  constexpr bool kKeys = kResult == Result::kKeys, kBias = kResult == Result::kBias;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  SWITCHYARD_DYNAMIC_SHARED(char, shared);
  auto* own = reinterpret_cast<Element*>(shared);  // q and dout, or k and v …
  auto* own_gradient = reinterpret_cast<Element*>(shared + Tiles::kOwnBytes);
  auto* other = reinterpret_cast<Element*>(shared + 2 * Tiles::kOwnBytes);  // … and the others
  auto* other_gradient = reinterpret_cast<Element*>(shared + 2 * Tiles::kOwnBytes + Tiles::kOtherBytes);
  auto* weights = reinterpret_cast<float*>(shared + 2 * Tiles::kOwnBytes + 2 * Tiles::kOtherBytes);
  const auto heads = static_cast<uint32_t>(s.heads);
  const auto h = static_cast<int32_t>(blockIdx.x % heads), outer = static_cast<int32_t>(blockIdx.x / heads),
             first = static_cast<int32_t>(blockIdx.y) * kRows;
  float gradient[Tiles::kHeld][Tiles::kWidth] = {}, value_gradient[Tiles::kHeld][Tiles::kWidth] = {};
  float bias_gradient[Tiles::kHeld][Tiles::kScores] = {};

  const auto begin = static_cast<int32_t>(kBias ? outer * batch.samples : 0);
  const auto end = static_cast<int32_t>(kBias ? Least(s.batch, begin + batch.samples) : CeilDivide(s.tokens, kColumns));
  const auto sample = [&](int32_t step) { return kBias ? step : Anew(outer); };
  const auto column = [&](int32_t step) { return (kBias ? static_cast<int32_t>(blockIdx.z) : step) * kColumns; };
  // The tiles of q and k, and those of dout and v: the block's own of queries or keys once only.
  const auto load_scores = [&](int32_t step) {
    const int64_t b = sample(step);
    if (kBias || step == begin)
      Tiles::LoadTile(s, o.qkv, s.Qkv(b, 0, kKeys ? 1 : 0, h), s.QkvStride(), first, kRows, own);
    Tiles::LoadTile(s, o.qkv, s.Qkv(b, 0, kKeys ? 0 : 1, h), s.QkvStride(), column(step), kColumns, other);
    CommitCopies();
  };
  const auto load_gradients = [&](int32_t step) {
    if (step >= end) return;
    const int64_t b = sample(step), v = s.Qkv(b, 0, 2, h), dout = s.Out(b, 0, h);
    if (kBias || step == begin)
      Tiles::LoadTile(s, kKeys ? o.qkv : o.dout, kKeys ? v : dout, kKeys ? s.QkvStride() : s.OutStride(), first, kRows,
                      own_gradient);
    Tiles::LoadTile(s, kKeys ? o.dout : o.qkv, kKeys ? dout : v, kKeys ? s.OutStride() : s.QkvStride(), column(step),
                    kColumns, other_gradient);
    CommitCopies();
  };
  // q and k come while dout·v is computed, the next dout and v while the scores and what hangs on them are.
  load_gradients(begin);
  for (int32_t step = begin; step < end; ++step) {
    WaitForCopies<0>();
    __syncthreads();  // dout and v are there; the q and k of the step before have been used
    load_scores(step);
    float p[Tiles::kHeld][Tiles::kScores], ds[Tiles::kHeld][Tiles::kScores];
    Tiles::Multiply(own_gradient, other_gradient, ds);
    WaitForCopies<0>();
    __syncthreads();                                 // q and k are there …
    if constexpr (!kKeys) load_gradients(step + 1);  // … and dout and v have been used
    Tiles::Multiply(own, other, p);
    Weigh<kKeys, Tiles>(s, o, sample(step), h, first, column(step), p, ds);
    if constexpr (kBias) {
#pragma unroll
      for (int r = 0; r < Tiles::kHeld; ++r) {
#pragma unroll
        for (int c = 0; c < Tiles::kScores; ++c) bias_gradient[r][c] += ds[r][c];
      }
    } else {
      if constexpr (kKeys) {
        Tiles::AddWeighted(p, other_gradient, weights, value_gradient);
        __syncthreads();  // dout has been used
        load_gradients(step + 1);
      }
      Tiles::AddWeighted(ds, other, weights, gradient);
    }
  }

  if constexpr (kBias) {
#pragma unroll
    for (int r = 0; r < Tiles::kHeld; ++r) {
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        const int64_t i = first + Tiles::Row(r), j = column(0) + Tiles::Column(c);
        if (i < s.tokens && j < s.tokens)
          slots[outer * batch.elements + (h * s.tokens + i) * s.tokens + j] = bias_gradient[r][c];
      }
    }
  } else {
    float scale[Tiles::kHeld], one[Tiles::kHeld];
#pragma unroll
    for (int r = 0; r < Tiles::kHeld; ++r) scale[r] = s.scale, one[r] = 1;
    auto* const staging = reinterpret_cast<float*>(shared);
    Tiles::StoreRows(s, dqkv, s.Qkv(outer, 0, kKeys ? 1 : 0, h), s.QkvStride(), first, gradient, scale, staging);
    if constexpr (kKeys)
      Tiles::StoreRows(s, dqkv, s.Qkv(outer, 0, 2, h), s.QkvStride(), first, value_gradient, one, staging);
  }
}

struct AttentionBackward : Kernel {
  // f(std::type_identity<Tiles>()) for the tiles of this dtype and depth.
  template <typename F>
  auto WithTiles(F f) const {
    if (inputs[0].dtype == SY_BF16) return WithHalfTiles<SY_BF16>(f);
    if (inputs[0].dtype == SY_F16) return WithHalfTiles<SY_F16>(f);
    if (shape.depth <= 32) return f(std::type_identity<ScalarTiles<32, 64, 32>>());
    if (shape.depth <= 64) return f(std::type_identity<ScalarTiles<64, 32, 32>>());
    return f(std::type_identity<ScalarTiles<128, 16, 16>>());
  }
  template <sy_dtype kDtype, typename F>
  auto WithHalfTiles(F f) const {
    if (shape.depth <= 32) return f(std::type_identity<MatrixTiles<kDtype, 32, 64, 32>>());
    if (shape.depth <= 64) return f(std::type_identity<MatrixTiles<kDtype, 64, 64, 32>>());
    return f(std::type_identity<MatrixTiles<kDtype, 128, 32, 32>>());
  }

  AttentionBackward(const Request& r, const AttentionShape& s)
      : Kernel(r), shape(s), attributes(r.Attributes<sy_attention_attributes>()), rows(s.batch * s.tokens * s.heads) {
    workspace_bytes = DeltaBytes();
    if (outputs.size() == 2)
      workspace_bytes += WithTiles([&](auto tiles) { return Parts<typename decltype(tiles)::type>().Bytes(); });
  }

  uint64_t DeltaBytes() const { return (static_cast<uint64_t>(rows) * sizeof(float) + 255) / 256 * 256; }
  template <typename Tiles>
  BatchParts Parts() const {
    return {shape, shape.heads * CeilDivide(shape.tokens, Tiles::kRows) * CeilDivide(shape.tokens, Tiles::kColumns)};
  }

  template <typename Tiles, Result kResult>
  cudaError_t Start(const Operands& o, const Bound& b, const BatchParts& parts, float* slots,
                    cudaStream_t stream) const {
    constexpr size_t kShared = 2 * Tiles::kOwnBytes + 2 * Tiles::kOtherBytes + Tiles::kWeightBytes;
    static_assert(kShared <= 48 << 10);
    const auto tiles = static_cast<unsigned>(CeilDivide(shape.tokens, Tiles::kRows));
    const dim3 grid = kResult == Result::kBias ? dim3(static_cast<unsigned>(parts.parts * shape.heads), tiles,
                                                      static_cast<unsigned>(CeilDivide(shape.tokens, Tiles::kColumns)))
                                               : dim3(static_cast<unsigned>(shape.batch * shape.heads), tiles);
    return Launch(AttentionBackwardKernel<Tiles, kResult>, grid, dim3(Tiles::kThreads), kShared, stream, shape, o,
                  Out(b, 0), parts, slots);
  }
  template <typename Tiles>
  cudaError_t StartAll(const Operands& o, const Bound& b, cudaStream_t stream) const {
    const BatchParts parts = Parts<Tiles>();
    cudaError_t code = Start<Tiles, Result::kQueries>(o, b, parts, nullptr, stream);
    if (code == cudaSuccess) code = Start<Tiles, Result::kKeys>(o, b, parts, nullptr, stream);
    if (code != cudaSuccess || outputs.size() == 1) return code;
    char* const workspace = b.workspace + DeltaBytes();
    auto* const dbias = b.Output<float>(1);
    code = Start<Tiles, Result::kBias>(o, b, parts, parts.Slots(workspace, dbias), stream);
    return code == cudaSuccess ? parts.Sum(workspace, dbias, stream) : code;
  }

  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    auto* const delta = b.Workspace<float>();
    const Teams teams(rows, shape.depth);
    SY_CUDA(error, Launch(DeltaKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, shape, In(b, 1),
                          In(b, 3), delta));
    const Operands o = {In(b, 0),
                        In(b, 3),
                        b.Input<float>(2),
                        delta,
                        {attributes.bias ? In(b, 4) : View(), attributes.mask ? In(b, inputs.size() - 1) : View()}};
    SY_CUDA(error,
            WithTiles([&](auto tiles) { return StartAll<typename decltype(tiles)::type>(o, b, context.stream); }));
    return SY_OK;
  }
  const AttentionShape shape;
  const sy_attention_attributes attributes;
  const int64_t rows;
};

KernelPointer PrepareAttentionBackward(const Request& r) {
  AttentionShape shape;
  if (!CheckAttentionBackward(r, &shape)) return nullptr;
  return std::make_unique<AttentionBackward>(r, shape);
}

const Registration kAttentionBackward{"attention_backward", PrepareAttentionBackward, sizeof(sy_attention_attributes)};

}  // namespace
}  // namespace switchyard
