// The gradient of attention: the probabilities are computed again from logsumexp (Dao et al., "FlashAttention", 2022,
// algorithm 4). With p = exp(s − logsumexp), δ = dout·out and ds = p·(dout·v − δ):
//   dq_i = scale·Σ_j ds·k_j    dk_j = scale·Σ_i ds·q_i    dv_j = Σ_i p·dout_i    dbias = Σ_b ds
// Each of the three kinds of result has blocks of its own, which own their rows: no atomics, the same bits every time.
#include "backends/cuda/flash_attention.cuh"
#include "backends/cuda/team.cuh"

namespace switchyard {
namespace {

enum class Result { kQueries, kKeys, kBias };

struct Operands {
  View qkv, logsumexp, dout, delta;
  AttentionTerms terms;
};

// δ (B, H, T) of out and dout (B, T, H, D); a team has one row of D.
__global__ void DeltaKernel(Teams teams, AttentionShape s, View out, View dout, View delta) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  float sum = 0;
  teams.ForRow<1>(s.depth, [&](int64_t d) { sum += LoadOne(out, row * s.depth + d) * LoadOne(dout, row * s.depth + d); });
  sum = teams.Sum(sum);
  if (teams.Rank() == 0) StoreOne(delta, s.Row(row / s.heads / s.tokens, row % s.heads, row / s.heads % s.tokens), sum);
}

// p and ds of this thread's rows and columns. Rows are queries and columns keys, or the other way round.
template <bool kRowsAreKeys, typename Tiles>
__device__ __forceinline__ void Weights(const AttentionShape& s, const Operands& o, int64_t b, int64_t h, int64_t row,
                                        int64_t column, float (&p)[4][Tiles::kScores], float (&ds)[4][Tiles::kScores]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int c = 0; c < Tiles::kScores; ++c) {
      const int64_t y = row + 4 * Tiles::Y() + r, x = column + Tiles::X() + c * kAttentionLanes;
      const int64_t i = kRowsAreKeys ? x : y, j = kRowsAreKeys ? y : x;
      if (i < s.tokens && j < s.tokens) {
        p[r][c] = expf(o.terms.Score(s, b, h, i, j, p[r][c]) - LoadOne(o.logsumexp, s.Row(b, h, i)));
        ds[r][c] = p[r][c] * (ds[r][c] - LoadOne(o.delta, s.Row(b, h, i)));
      } else {
        p[r][c] = ds[r][c] = 0;
      }
    }
  }
}

// A block has kRows queries, or keys and values, of one head, and runs over tiles of the others: blockIdx.x = b·H + h.
// For dbias it has kRows × kColumns pairs of one head and runs over the batch: blockIdx.x = h, blockIdx.z = which keys.
template <int kDepth, int kRows, int kColumns, Result kResult>
__global__ void AttentionBackwardKernel(AttentionShape s, Operands o, View dqkv, View dbias) {
  using Tiles = AttentionTiles<kDepth, kRows, kColumns>;
  constexpr bool kKeys = kResult == Result::kKeys, kBias = kResult == Result::kBias;
  SWITCHYARD_DYNAMIC_SHARED(float, shared);
  float *own = shared, *own_gradient = own + Tiles::kOwn;  // q and dout, or k and v …
  float *other = own_gradient + Tiles::kOwn, *other_gradient = other + Tiles::kOther;  // … and the others
  float* weights = other_gradient + Tiles::kOther;
  const int64_t h = kBias ? blockIdx.x : blockIdx.x % s.heads, first = blockIdx.y * static_cast<int64_t>(kRows);
  const int64_t qkv_stride = s.QkvStride(), out_stride = s.OutStride();
  float gradient[4][Tiles::kWidth] = {}, value_gradient[4][Tiles::kWidth] = {}, bias_gradient[4][Tiles::kScores] = {};

  const int64_t steps = kBias ? s.batch : CeilDivide(s.tokens, kColumns);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t b = kBias ? step : blockIdx.x / s.heads;
    const int64_t column = (kBias ? blockIdx.z : step) * kColumns;
    const int64_t q = s.Qkv(b, 0, 0, h), k = s.Qkv(b, 0, 1, h), v = s.Qkv(b, 0, 2, h), out = s.Out(b, 0, h);
    __syncthreads();  // the tiles of the step before have been used
    if (kBias || step == 0) {
      Tiles::LoadTile(s, o.qkv, kKeys ? k : q, qkv_stride, first, kRows, own);
      Tiles::LoadTile(s, kKeys ? o.qkv : o.dout, kKeys ? v : out, kKeys ? qkv_stride : out_stride, first, kRows,
                      own_gradient);
    }
    Tiles::LoadTile(s, o.qkv, kKeys ? q : k, qkv_stride, column, kColumns, other);
    Tiles::LoadTile(s, kKeys ? o.dout : o.qkv, kKeys ? out : v, kKeys ? out_stride : qkv_stride, column, kColumns,
                    other_gradient);
    __syncthreads();
    float p[4][Tiles::kScores], ds[4][Tiles::kScores];
    Tiles::Multiply(own, other, p);
    Tiles::Multiply(own_gradient, other_gradient, ds);
    Weights<kKeys, Tiles>(s, o, b, h, first, column, p, ds);
    if constexpr (kBias) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < Tiles::kScores; ++c) bias_gradient[r][c] += ds[r][c];
      }
    } else {
      if constexpr (kKeys) {
        Tiles::StoreWeights(p, weights);
        __syncthreads();
        Tiles::AddWeighted(weights, other_gradient, value_gradient);
        __syncthreads();
      }
      Tiles::StoreWeights(ds, weights);
      __syncthreads();
      Tiles::AddWeighted(weights, other, gradient);
    }
  }

  const float scale[4] = {s.scale, s.scale, s.scale, s.scale}, one[4] = {1, 1, 1, 1};
  if constexpr (kBias) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        const int64_t i = first + 4 * Tiles::Y() + r;
        const int64_t j = blockIdx.z * static_cast<int64_t>(kColumns) + Tiles::X() + c * kAttentionLanes;
        if (i < s.tokens && j < s.tokens) StoreOne(dbias, (h * s.tokens + i) * s.tokens + j, bias_gradient[r][c]);
      }
    }
  } else {
    const int64_t b = blockIdx.x / s.heads;
    Tiles::StoreRows(s, dqkv, s.Qkv(b, 0, kKeys ? 1 : 0, h), qkv_stride, first, gradient, scale);
    if constexpr (kKeys) Tiles::StoreRows(s, dqkv, s.Qkv(b, 0, 2, h), qkv_stride, first, value_gradient, one);
  }
}

struct AttentionBackward : Kernel {
  AttentionBackward(const Request& r, const AttentionShape& s)
      : Kernel(r),
        shape(s),
        attributes(r.Attributes<sy_attention_attributes>()),
        rows(s.batch * s.tokens * s.heads) {
    workspace_bytes = static_cast<uint64_t>(rows) * sizeof(float);
  }

  template <int kDepth, int kRows, int kColumns, Result kResult>
  cudaError_t Start(const Operands& o, const Bound& b, const LaunchContext& context) const {
    using Tiles = AttentionTiles<kDepth, kRows, kColumns>;
    constexpr size_t kShared = (2 * Tiles::kOwn + 2 * Tiles::kOther + Tiles::kWeights) * sizeof(float);
    static_assert(kShared <= 48 << 10);
    const auto tiles = static_cast<unsigned>(CeilDivide(shape.tokens, kRows));
    const dim3 grid = kResult == Result::kBias
                          ? dim3(static_cast<unsigned>(shape.heads), tiles,
                                 static_cast<unsigned>(CeilDivide(shape.tokens, kColumns)))
                          : dim3(static_cast<unsigned>(shape.batch * shape.heads), tiles);
    return Launch(AttentionBackwardKernel<kDepth, kRows, kColumns, kResult>, grid, dim3(Tiles::kThreads), kShared,
                  context.stream, shape, o, Out(b, 0), outputs.size() == 2 ? Out(b, 1) : View());
  }
  template <int kDepth, int kRows, int kColumns>
  cudaError_t StartAll(const Operands& o, const Bound& b, const LaunchContext& context) const {
    cudaError_t code = Start<kDepth, kRows, kColumns, Result::kQueries>(o, b, context);
    if (code == cudaSuccess) code = Start<kDepth, kRows, kColumns, Result::kKeys>(o, b, context);
    if (code != cudaSuccess || outputs.size() == 1) return code;
    return Start<kDepth, kRows, kColumns, Result::kBias>(o, b, context);
  }

  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const View delta = {b.workspace, SY_F32};
    const Teams teams(rows, shape.depth);
    SY_CUDA(error, Launch(DeltaKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, shape, In(b, 1),
                          In(b, 3), delta));
    const Operands o = {In(b, 0), In(b, 2), In(b, 3), delta,
                        {attributes.bias ? In(b, 4) : View(), attributes.mask ? In(b, inputs.size() - 1) : View()}};
    if (shape.depth <= 32) {
      SY_CUDA(error, StartAll<32, 64, 32>(o, b, context));
    } else if (shape.depth <= 64) {
      SY_CUDA(error, StartAll<64, 32, 32>(o, b, context));
    } else {
      SY_CUDA(error, StartAll<128, 16, 16>(o, b, context));
    }
    return SY_OK;
  }
  const AttentionShape shape;
  const sy_attention_attributes attributes;
  const int64_t rows;
};

}  // namespace

KernelPointer PrepareAttentionBackward(const Request& r) {
  const bool dbias = r.outputs.size() == 2;
  AttentionShape shape;
  if (!CheckAttention(r, 4, dbias ? 2 : 1, &shape)) return nullptr;
  const int64_t rows = shape.batch * shape.tokens * shape.heads;
  if (!r.RequireElements(r.inputs[1], rows * shape.depth, "out") ||
      !r.RequireElements(r.inputs[2], rows, "logsumexp") ||
      !r.RequireElements(r.inputs[3], rows * shape.depth, "dout") ||
      !r.RequireDims(r.outputs[0], r.inputs[0], "dqkv"))
    return nullptr;
  if (dbias && (!r.Attributes<sy_attention_attributes>().bias ||
                !r.RequireElements(r.outputs[1], shape.heads * shape.tokens * shape.tokens, "dbias")))
    return SY_REFUSE(r, "attention_backward: dbias without a bias, or of other dims");
  return std::make_unique<AttentionBackward>(r, shape);
}

}  // namespace switchyard
