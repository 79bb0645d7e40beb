// Attention within small windows (at most 64 tokens of at most 32 elements a head, bf16 or f16), as Swin has it: a
// whole window of one head is one tile. A block runs over windows of one head one behind the other; windows that share
// a plane of the mask are neighbours in its order, so that bias and mask stay in registers. Forward, the next window's
// tiles come while this one's are computed. Backward, one pass makes dq, dk and dv, and its share of dbias on the way
// (BatchParts); formulas: flash_attention_backward.cu. No atomics, the same bits every time. Tokens are read and
// written where they lie: of window_attention, at rows of maps.
#include <optional>

#include "backends/cuda/flash_attention.cuh"
#include "backends/cuda/team.cuh"

namespace switchyard {
namespace {

constexpr int kSide = 64, kMostDepth = 32, kWindowThreads = 128;  // four warps of 16 rows
constexpr int kForwardBlocks = 4, kBackwardBlocks = 3;            // that a multiprocessor has room for
constexpr int kWeightStride = kSide + 8;                          // of weights in shared memory, elements; banks apart

template <sy_dtype kDtype>
using WindowTiles = MatrixTiles<kDtype, kMostDepth, kSide, kSide>;
using Scores = float[2][kSide / 4];              // a thread's share of a product of two tiles
using Results = float[2][kMostDepth / 4];        // and of rows of results
constexpr int kTile = kSide * (kMostDepth + 8);  // elements of a tile

// The windows of a block: `samples` of them from blockIdx.x / H · samples on, of head blockIdx.x % H.
struct Windows {
  int32_t count, heads, samples, groups;
  Divider per_group;  // count = groups·per_group

  Windows(const AttentionShape& s, const BatchParts& parts)
      : count(static_cast<int32_t>(s.batch)),
        heads(static_cast<int32_t>(s.heads)),
        samples(static_cast<int32_t>(parts.samples)),
        groups(static_cast<int32_t>(s.groups)),
        per_group(s.batch / s.groups) {}
  __device__ __forceinline__ int Head() const { return static_cast<int>(blockIdx.x) % heads; }
  __device__ __forceinline__ int Part() const { return static_cast<int>(blockIdx.x) / heads; }
  __device__ __forceinline__ int First() const { return Part() * samples; }
  __device__ __forceinline__ int Last() const { return Least(count, First() + samples); }
  // Window n in this order: all of a plane of the mask, then the next plane's.
  __device__ __forceinline__ int Group(int n) const { return static_cast<int>(per_group.Quotient(n)); }
  __device__ __forceinline__ int At(int n) const {
    return (n - Group(n) * static_cast<int>(per_group.divisor)) * groups + Group(n);
  }
};

// Where the tokens of windows lie: rows (W, T) of a map of W windows; without them one behind the other.
struct WindowRows {
  const int32_t* rows = nullptr;
  Divider windows;
};
// The tokens of one window: the number of token i among those of all samples.
struct Tokens {
  const int32_t* rows;
  int32_t first, last;  // of the map, or of the window

  __device__ __forceinline__ Tokens(const WindowRows& r, const AttentionShape& s, int b) {
    const auto tokens = static_cast<int32_t>(s.tokens), windows = static_cast<int32_t>(r.windows.divisor);
    const int32_t of_map = static_cast<int32_t>(r.windows.Quotient(b)) * windows;
    rows = r.rows ? r.rows + (b - of_map) * tokens : nullptr;
    first = of_map * tokens;
    last = first + windows * tokens - 1;
  }
  __device__ __forceinline__ int32_t operator()(int token) const {
    return rows ? first + Largest(0, Least(rows[token], last - first)) : first + token;
  }
};

// scores = scale·scores + addend
__device__ __forceinline__ void AddTerms(float scale, const Scores& addend, Scores& scores) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kSide / 4; ++c) scores[r][c] = scale * scores[r][c] + addend[r][c];
  }
}

// One row of a thread's two.
template <typename Tiles, int kRow>
struct OneRow {
  static constexpr int kHeld = 1, kScores = Tiles::kScores;
  __device__ static int Row(int) { return Tiles::Row(kRow); }
  __device__ static int Column(int c) { return Tiles::Column(c); }
};

// bias + mask of this thread's scores, −∞ beyond the tokens; a row at a time, or its loads would take so many registers
// that others are spilled.
template <typename Tiles>
__device__ __forceinline__ void LoadTerms(const AttentionShape& s, const AttentionTerms& terms, int64_t b, int64_t h,
                                          Scores& addend) {
  float row[1][kSide / 4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kSide / 4; ++c) row[0][c] = 0;
    if (r == 0) terms.Finish<false, OneRow<Tiles, 0>>(s, b, h, 0, 0, row);
    if (r == 1) terms.Finish<false, OneRow<Tiles, 1>>(s, b, h, 0, 0, row);
#pragma unroll
    for (int c = 0; c < kSide / 4; ++c) addend[r][c] = row[0][c];
  }
}

// Elements of a token in qkv and in out, and where head h begins in either: below 2³¹, as numbers of rows are, so that
// a thread keeps few registers for addresses.
__device__ __forceinline__ int32_t OutStep(const AttentionShape& s) {
  return static_cast<int32_t>(s.heads) * static_cast<int32_t>(s.depth);
}
__device__ __forceinline__ int32_t HeadAt(const AttentionShape& s, int h) { return h * static_cast<int32_t>(s.depth); }
__device__ __forceinline__ int64_t ElementAt(int32_t row, int32_t step, int32_t column) {
  return static_cast<int64_t>(row) * step + column;
}

// The tiles of q, k and v, one behind the other, of head h; the thread has to commit the copies and to wait for them.
// `row_of` gives the row of a token.
template <sy_dtype kDtype, typename RowOf>
__device__ __forceinline__ void LoadTiles(const AttentionShape& s, const View& qkv, const RowOf& row_of, int h,
                                          uint16_t* tiles) {
  constexpr int kPacks = kMostDepth / kPack;
  const auto* const from = reinterpret_cast<const uint16_t*>(qkv.data);
  const int32_t step = OutStep(s);
#pragma unroll
  for (int first = 0; first < kSide * kPacks; first += kWindowThreads) {
    const int i = first + Anew(threadIdx.x), row = i / kPacks, column = i % kPacks * kPack;
    const bool inside = row < s.tokens && column < s.depth;
    const auto* const at = inside ? from + ElementAt(row_of(row), 3 * step, HeadAt(s, h) + column) : from;
    uint16_t* const to = tiles + row * WindowTiles<kDtype>::kStride + column;
#pragma unroll
    for (int part = 0; part < 3; ++part) CopyAsync(to + part * kTile, at + part * step, inside);
  }
}

// x[base + row·step + d] = factor·sum for the rows of this warp's tokens; it alone uses its rows of the tile `staging`.
template <sy_dtype kDtype, typename RowOf>
__device__ __forceinline__ void StoreResults(const AttentionShape& s, const View& x, const RowOf& row_of, int32_t base,
                                             int32_t step, const Results& sum, const float (&factor)[2],
                                             uint16_t* staging) {
  using Tiles = WindowTiles<kDtype>;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int k = 0; k < kMostDepth / 4; k += 2)
      *reinterpret_cast<uint32_t*>(staging + Tiles::Row(r) * Tiles::kStride + Tiles::Depth(k)) =
          PackTwo(factor[r] * sum[r][k], factor[r] * sum[r][k + 1], kDtype);
  }
  __syncwarp();
  constexpr int kPacks = kMostDepth / kPack;
#pragma unroll
  for (int i = Tiles::Lane(); i < 16 * kPacks; i += kWarp) {
    const int row = Tiles::FirstRow() + i / kPacks, column = i % kPacks * kPack;
    if (row < s.tokens && column < s.depth)
      *reinterpret_cast<uint4*>(x.data + 2 * ElementAt(row_of(row), step, base + column)) =
          *reinterpret_cast<const uint4*>(staging + row * Tiles::kStride + column);
  }
}

template <sy_dtype kDtype>
__global__ void __launch_bounds__(kWindowThreads, kForwardBlocks)
    WindowAttentionKernel(AttentionShape s, Windows windows, WindowRows rows, View qkv, AttentionTerms terms, View out,
                          float* logsumexp) {
  using Tiles = WindowTiles<kDtype>;
  SWITCHYARD_DYNAMIC_SHARED(uint16_t, shared);  // twice q, k and v
  const int h = windows.Head(), last = windows.Last();
  const auto load = [&](int n, int buffer) {
    if (n < last) LoadTiles<kDtype>(s, qkv, Tokens(rows, s, windows.At(n)), h, shared + 3 * buffer * kTile);
    CommitCopies();
  };
  Scores addend;
  int group = -1, buffer = 0;
  load(windows.First(), buffer);
  for (int n = windows.First(); n < last; ++n, buffer ^= 1) {
    const int b = windows.At(n);
    load(n + 1, buffer ^ 1);
    if (windows.Group(n) != group) LoadTerms<Tiles>(s, terms, b, h, addend);
    group = windows.Group(n);
    uint16_t* const q = shared + 3 * buffer * kTile;
    WaitForCopies<1>();
    __syncthreads();  // this window's tiles are there
    Scores p;
    Tiles::Multiply(q, q + kTile, p);
    AddTerms(s.scale, addend, p);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY, total = 0;
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) top = Greater()(p[r][c], top);
      top = Tiles::ReduceRow(top, Greater());
      const float shift = top == -INFINITY ? 0 : top;  // a row that sees no key
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) {
        p[r][c] = expf(p[r][c] - shift);
        total += p[r][c];
      }
      total = Tiles::ReduceRow(total, Plus());
      factor[r] = 1 / total;
      if (Tiles::Column(0) == 0 && Tiles::Row(r) < s.tokens) logsumexp[s.Row(b, h, Tiles::Row(r))] = top + logf(total);
    }
    Results sum = {};
    Tiles::AddWeighted(p, q + 2 * kTile, nullptr, sum);
    StoreResults<kDtype>(s, out, Tokens(rows, s, b), HeadAt(s, h), OutStep(s), sum, factor, q);
    __syncthreads();  // these tiles have been used
  }
}

struct WindowOperands {
  WindowRows rows;
  View qkv, out, dout;
  const float* logsumexp;
  AttentionTerms terms;
};

// The tile of dout, and δ of its rows.
template <sy_dtype kDtype, typename RowOf>
__device__ __forceinline__ void LoadGradient(const AttentionShape& s, const WindowOperands& o, const RowOf& row_of,
                                             int h, uint16_t* tile, float* delta) {
  constexpr int kPacks = kMostDepth / kPack;
#pragma unroll
  for (int first = 0; first < kSide * kPacks; first += kWindowThreads) {
    const int i = first + Anew(threadIdx.x), row = i / kPacks, column = i % kPacks * kPack;
    uint4 gradient = make_uint4(0, 0, 0, 0), result = gradient;
    if (row < s.tokens && column < s.depth) {
      const int64_t at = 2 * ElementAt(row_of(row), OutStep(s), HeadAt(s, h) + column);
      gradient = *reinterpret_cast<const uint4*>(o.dout.data + at);
      result = *reinterpret_cast<const uint4*>(o.out.data + at);
    }
    *reinterpret_cast<uint4*>(tile + row * WindowTiles<kDtype>::kStride + column) = gradient;
    const uint32_t g[4] = {gradient.x, gradient.y, gradient.z, gradient.w},
                   y[4] = {result.x, result.y, result.z, result.w};
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += kDtype == SY_BF16 ? FromBf16(g[k] & 0xFFFF) * FromBf16(y[k] & 0xFFFF)
                               : FromF16(g[k] & 0xFFFF) * FromF16(y[k] & 0xFFFF);
      sum +=
          kDtype == SY_BF16 ? FromBf16(g[k] >> 16) * FromBf16(y[k] >> 16) : FromF16(g[k] >> 16) * FromF16(y[k] >> 16);
    }
#pragma unroll
    for (int bits = kPacks / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
    if (column == 0) delta[row] = sum;
  }
}

// The thread's weights as halves into the rows of its own.
template <sy_dtype kDtype>
__device__ __forceinline__ void PutWeights(const Scores& w, uint16_t* to) {
  using Tiles = WindowTiles<kDtype>;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kSide / 4; c += 2)
      *reinterpret_cast<uint32_t*>(to + Tiles::Row(r) * kWeightStride + Tiles::Column(c)) =
          PackTwo(w[r][c], w[r][c + 1], kDtype);
  }
}

constexpr int kWeights = kSide * kWeightStride;  // elements of a matrix of weights
constexpr size_t kForwardBytes = 6 * kTile * sizeof(uint16_t);
constexpr size_t kBackwardBytes = (4 * kTile + 2 * kWeights) * sizeof(uint16_t) + 4 * kSide * sizeof(float);
static_assert(kForwardBytes <= 48 << 10 && kBackwardBytes <= 48 << 10);

// `slots` (parts, H, T, T); null: no dbias.
template <sy_dtype kDtype>
__global__ void __launch_bounds__(kWindowThreads, kBackwardBlocks)
    WindowAttentionBackwardKernel(AttentionShape s, Windows windows, WindowOperands o, View dqkv, float* slots) {
  using Tiles = WindowTiles<kDtype>;
  SWITCHYARD_DYNAMIC_SHARED(uint16_t, shared);
  uint16_t *const q = shared, *const k = q + kTile, *const v = k + kTile, *const dout = v + kTile;
  uint16_t *const p_halves = dout + kTile, *const ds_halves = p_halves + kWeights;
  auto *const logsumexp = reinterpret_cast<float*>(ds_halves + kWeights), *const delta = logsumexp + kSide;
  auto* const rows = reinterpret_cast<int32_t*>(delta + kSide);  // of this window's tokens and of the next one's
  const int h = windows.Head(), last = windows.Last();
  const auto number = [&](int n) {
    const auto token = static_cast<int>(threadIdx.x);
    if (n < last && token < s.tokens) rows[n % 2 * kSide + token] = Tokens(o.rows, s, windows.At(n))(token);
  };
  Scores addend, bias_gradient = {};
  int group = -1;
  number(windows.First());
  for (int n = windows.First(); n < last; ++n) {
    const int b = windows.At(n);
    const auto row_of = [&](int token) { return rows[n % 2 * kSide + token]; };
    __syncthreads();  // the tiles of the window before have been used; the rows are there
    LoadTiles<kDtype>(s, o.qkv, row_of, h, q);
    CommitCopies();
    LoadGradient<kDtype>(s, o, row_of, h, dout, delta);
    number(n + 1);
    if (threadIdx.x < kSide) {
      const auto row = static_cast<int>(threadIdx.x);
      logsumexp[row] = row < s.tokens ? o.logsumexp[s.Row(b, h, row)] : 0;
    }
    if (windows.Group(n) != group) LoadTerms<Tiles>(s, o.terms, b, h, addend);
    group = windows.Group(n);
    WaitForCopies<0>();
    __syncthreads();  // this window's tiles are there
    Scores w, dp;     // w: p, then ds
    Tiles::Multiply(q, k, w);
    AddTerms(s.scale, addend, w);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_row = logsumexp[Tiles::Row(r)];
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) w[r][c] = expf(w[r][c] - of_row);
    }
    PutWeights<kDtype>(w, p_halves);
    Tiles::Multiply(dout, v, dp);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float delta_of_row = delta[Tiles::Row(r)];
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) {
        w[r][c] *= dp[r][c] - delta_of_row;
        bias_gradient[r][c] += w[r][c];
      }
    }
    PutWeights<kDtype>(w, ds_halves);
    const float scale[2] = {s.scale, s.scale}, one[2] = {1, 1};
    Results dq = {};
    Tiles::AddWeighted(w, k, nullptr, dq);
    __syncthreads();  // the weights are there; v has been used and takes results on their way
    StoreResults<kDtype>(s, dqkv, row_of, HeadAt(s, h), 3 * OutStep(s), dq, scale, v);
    Results dv = {};
    Tiles::AddTransposed(p_halves, kWeightStride, dout, dv);
    StoreResults<kDtype>(s, dqkv, row_of, HeadAt(s, h) + 2 * OutStep(s), 3 * OutStep(s), dv, one, v);
    Results dk = {};
    Tiles::AddTransposed(ds_halves, kWeightStride, q, dk);
    StoreResults<kDtype>(s, dqkv, row_of, HeadAt(s, h) + OutStep(s), 3 * OutStep(s), dk, scale, v);
  }
  if (slots == nullptr) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kSide / 4; ++c) {
      const int64_t i = Tiles::Row(r), j = Tiles::Column(c);
      if (i < s.tokens && j < s.tokens)
        slots[((windows.Part() * s.heads + h) * s.tokens + i) * s.tokens + j] = bias_gradient[r][c];
    }
  }
}

// rows_at: the input with the rows of windows, 0: none. As many blocks as a GPU of 132 multiprocessors has room for at
// once (at_once each): windows take the same time each, so a few blocks more would double it.
struct WindowAttention : Kernel {
  WindowAttention(const Request& r, const AttentionShape& s, size_t rows_input, int64_t at_once = kForwardBlocks)
      : Kernel(r),
        shape(s),
        rows_at(rows_input),
        attributes(r.Attributes<sy_attention_attributes>()),
        parts(s, s.heads, at_once * BatchParts::kMultiprocessors),
        blocks(static_cast<unsigned>(parts.parts * s.heads)) {}

  WindowRows Rows(const Bound& b) const {
    if (rows_at == 0) return {};
    return {b.Input<int32_t>(rows_at), Divider(inputs[rows_at].dims[0])};
  }
  // `last`: of the inputs before them, but for the rows.
  AttentionTerms Terms(const Bound& b, size_t last) const {
    const size_t first = last + (rows_at == 0 ? 1 : 2);
    return {attributes.bias ? In(b, first) : View(), attributes.mask ? In(b, inputs.size() - 1) : View()};
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto kernel = inputs[0].dtype == SY_BF16 ? WindowAttentionKernel<SY_BF16> : WindowAttentionKernel<SY_F16>;
    SY_CUDA(error, Launch(kernel, dim3(blocks), dim3(kWindowThreads), kForwardBytes, context.stream, shape,
                          Windows(shape, parts), Rows(b), In(b, 0), Terms(b, 0), Out(b, 0), b.Output<float>(1)));
    return SY_OK;
  }
  const AttentionShape shape;
  const size_t rows_at;
  const sy_attention_attributes attributes;
  const BatchParts parts;
  const unsigned blocks;
};

struct WindowAttentionBackward : WindowAttention {
  WindowAttentionBackward(const Request& r, const AttentionShape& s, size_t rows_input)
      : WindowAttention(r, s, rows_input, kBackwardBlocks) {
    if (outputs.size() == 2) workspace_bytes = parts.Bytes();
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto kernel =
        inputs[0].dtype == SY_BF16 ? WindowAttentionBackwardKernel<SY_BF16> : WindowAttentionBackwardKernel<SY_F16>;
    const WindowOperands o = {Rows(b), In(b, 0), In(b, 1), In(b, 3), b.Input<float>(2), Terms(b, 3)};
    auto* const dbias = outputs.size() == 2 ? b.Output<float>(1) : nullptr;
    SY_CUDA(error, Launch(kernel, dim3(blocks), dim3(kWindowThreads), kBackwardBytes, context.stream, shape,
                          Windows(shape, parts), o, Out(b, 0), dbias ? parts.Slots(b.workspace, dbias) : nullptr));
    if (dbias) SY_CUDA(error, parts.Sum(b.workspace, dbias, context.stream));
    return SY_OK;
  }
};

// Whether the shape is one of these; `halves` are the operands that need qkv's dtype.
bool IsWindow(const Request& r, const AttentionShape& s, std::initializer_list<const sy_tensor*> halves) {
  const auto complain = [&](const char* what) { return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: %s", r.op, what), false; };
  const sy_dtype dtype = r.inputs[0].dtype;
  if (dtype != SY_BF16 && dtype != SY_F16) return complain("the kernel for windows takes bf16 and f16");
  if (s.tokens > kSide || s.depth > kMostDepth || !Packs(s.depth))
    return complain("the kernel for windows takes at most 64 tokens, and heads of 8, 16, 24 or 32 elements");
  if (s.batch * s.tokens > kMostIndices || s.heads > kMostIndices / 128) return complain("too many tokens or heads");
  if (s.batch % s.groups != 0)
    return complain("the kernel for windows takes as many windows for each plane of the mask");
  for (const sy_tensor* x : halves) {
    if (x->dtype != dtype) return complain("the kernel for windows takes one dtype");
  }
  return true;
}

// The request of attention that window_attention is but for its rows, input `at`; none, with a message, where those do
// not fit.
std::optional<Request> WithoutRows(const Request& r, size_t at) {
  if (!r.HasCounts(at + 1, at + 3, r.outputs.size()) || !r.RequireDtype(r.inputs[at], SY_I32, "rows"))
    return std::nullopt;
  const sy_tensor &rows = r.inputs[at], &qkv = r.inputs[0];
  if (rows.rank != 2 || qkv.rank != 5 || rows.dims[1] != qkv.dims[1] || rows.dims[0] < 1 ||
      qkv.dims[0] % rows.dims[0] != 0) {
    SY_FAIL(r.error, SY_UNSUPPORTED, "%s: rows is not (W, T) with B a multiple of W", r.op);
    return std::nullopt;
  }
  Request plain = r;
  plain.inputs.erase(plain.inputs.begin() + static_cast<ptrdiff_t>(at));
  return plain;
}

KernelPointer Forward(const Request& r, const Request& plain, size_t rows_at) {
  AttentionShape shape;
  if (!CheckAttentionForward(plain, &shape) || !r.RequireDtype(r.outputs[1], SY_F32, "logsumexp") ||
      !IsWindow(plain, shape, {&plain.outputs[0]}))
    return nullptr;
  return std::make_unique<WindowAttention>(r, shape, rows_at);
}
KernelPointer Backward(const Request& r, const Request& plain, size_t rows_at) {
  AttentionShape shape;
  if (!CheckAttentionBackward(plain, &shape) ||
      !IsWindow(plain, shape, {&plain.inputs[1], &plain.inputs[3], &plain.outputs[0]}))
    return nullptr;
  return std::make_unique<WindowAttentionBackward>(r, shape, rows_at);
}

KernelPointer PrepareTailored(const Request& r) { return Forward(r, r, 0); }
KernelPointer PrepareTailoredBackward(const Request& r) { return Backward(r, r, 0); }
KernelPointer PrepareWindowAttention(const Request& r) {
  const std::optional<Request> plain = WithoutRows(r, 1);
  return plain ? Forward(r, *plain, 1) : nullptr;
}
KernelPointer PrepareWindowAttentionBackward(const Request& r) {
  const std::optional<Request> plain = WithoutRows(r, 4);
  return plain ? Backward(r, *plain, 4) : nullptr;
}

constexpr size_t kAttributes = sizeof(sy_attention_attributes);
const Registration kTailoredAttention{"attention", PrepareTailored, kAttributes, kTailored};
const Registration kTailoredBackward{"attention_backward", PrepareTailoredBackward, kAttributes, kTailored};
const Registration kWindowAttention{"window_attention", PrepareWindowAttention, kAttributes};
const Registration kWindowAttentionBackward{"window_attention_backward", PrepareWindowAttentionBackward, kAttributes};

}  // namespace
}  // namespace switchyard
