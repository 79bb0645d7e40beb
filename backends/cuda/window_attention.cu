// Attention within small windows (at most 64 tokens of at most 32 elements a head, bf16 or f16), as Swin has it: a
// whole window of one head is one tile. A block runs over windows of one head one behind the other; windows that share
// a plane of the mask are neighbours in its order, so that bias and mask stay in registers. The next window's tiles
// come while this one's are computed. Backward, one pass makes dq, dk and dv, and its share of dbias on the way
// (BatchParts); formulas: flash_attention_backward.cu. Exponents have base 2 within a kernel. No atomics, the same bits
// every time. Tokens are read and written where they lie: of window_attention, at rows of maps.
#include <optional>

#include "backends/cuda/approximate.cuh"
#include "backends/cuda/flash_attention.cuh"
#include "backends/cuda/team.cuh"

namespace switchyard {
namespace {

constexpr int kSide = 64, kMostDepth = 32, kWindowThreads = 128;  // four warps of 16 rows
constexpr int kForwardBlocks = 4, kBackwardBlocks = 3;            // that a multiprocessor has room for
constexpr int kRow = kMostDepth * 2, kWeightRow = kSide * 2;      // bytes of a row of a tile and of weights
constexpr int kTile = kSide * kRow, kWeights = kSide * kWeightRow;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

using Scores = float[2][kSide / 4];        // a thread's share of a product of two tiles
using Results = float[2][kMostDepth / 4];  // its share of rows of results

// Tiles of 64 rows of 32 halves, by tensor cores (fragments: tensor_core.cuh). A warp has sixteen rows; a thread has of
// rows g and g + 8 sixteen neighbouring columns of a product, so that it stores eight at a time: column 8·j + 2·t + e
// of the fragments is key 16·t + 2·j + e, since the rows of keys may be read in any order. Rows are not padded: eight
// elements p of a row lie at eight p ^ turn, so that eight rows that are read together have banks apart: turn is
// (row / 2 % 4) in tiles of queries, (row / 2 ^ row / 16) % 4 in those of keys, which are read by neighbours and by
// rows 0, 1, 16, 17, …, and row % 8 in a matrix of weights.
template <sy_dtype kDtype>
struct WindowTiles : AttentionTiles<WindowTiles<kDtype>> {
  static constexpr int kScores = kSide / 4, kWidth = kMostDepth / 4, kSharers = 4;

  __device__ static int Lane() { return threadIdx.x % kWarp; }
  __device__ static int Warp() { return threadIdx.x / kWarp; }
  __device__ static int Row(int r) { return Warp() * 16 + Lane() / 4 + 8 * r; }
  __device__ static int Column(int c) { return Lane() % 4 * kScores + c; }

  // Bytes from a tile's begin to where the thread reads and writes, the same in every window.
  struct Places {
    // the address that it gives for four matrices: of queries, transposed (of its warp's rows: 64·warp further), of
    // keys in their order, plain and transposed, of weights, transposed, and of its warp's rows of weights
    int32_t down, key, key_down, weight_down, weight_own;
    int32_t query, weight, result;  // its 16 bytes of row Row(0) of queries, its weights and its results there
    int32_t warp;                   // 16·Warp()

    __device__ __forceinline__ Places() {
      const int row = Lane() % 8, matrix = Lane() / 8, low = matrix % 2, high = matrix / 2;
      warp = Anew(Warp() * 16);
      down = Anew(At(low * 8 + row, high ^ row / 2));
      key = Anew(At(row / 2 * 16 + high * 2 + row % 2, low ^ high ^ row / 2));
      key_down = At(row / 2 * 16 + low * 2 + row % 2, high ^ low ^ row / 2);
      weight_down = Anew((high * 8 + row) * kWeightRow + ((Warp() * 2 + low) ^ row) * 16);
      weight_own = Anew((Warp() * 16 + low * 8 + row) * kWeightRow + (high ^ row) * 16);
      query = Anew(At(Row(0), Lane() % 4 ^ Lane() / 8));
      weight = Anew(Row(0) * kWeightRow + (Lane() % 4 * 2 ^ Lane() / 4) * 16);
      result = Anew(At(Row(0), Lane() / 8) + Lane() % 4 * 4);
    }

   private:
    __device__ static int32_t At(int row, int eight) { return row * kRow + eight * 16; }
  };

  // product = start of the row + row of queries · row of keys
  __device__ static void Multiply(const Places& at, const char* queries, const char* keys, const float (&start)[2],
                                  Scores& product) {
    uint32_t a[2][4];
#pragma unroll
    for (int d = 0; d < 2; ++d) LoadMatrices(queries + at.warp * kRow + (at.down ^ d * 32), a[d]);
#pragma unroll
    for (int c = 0; c < kScores; c += 4) {
#pragma unroll
      for (int i = c; i < c + 4; ++i) product[0][i] = start[0], product[1][i] = start[1];
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        uint32_t b[4];
        LoadMatrices(keys + (at.key ^ (d ^ c / 4 % 2) * 32) + c * kRow, b);
        AddFragments<kDtype>(a[d], b, c, product);
      }
    }
  }
  // sum = Σ over keys of w·keys: w in registers
  __device__ static void MultiplyWeights(const Places& at, const Scores& w, const char* keys, Results& sum) {
    Clear(sum);
#pragma unroll
    for (int c = 0; c < kScores; c += 4) {
      const uint32_t a[4] = {PackTwo(w[0][c], w[0][c + 1], kDtype), PackTwo(w[1][c], w[1][c + 1], kDtype),
                             PackTwo(w[0][c + 2], w[0][c + 3], kDtype), PackTwo(w[1][c + 2], w[1][c + 3], kDtype)};
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        uint32_t b[4];
        LoadMatricesTransposed(keys + (at.key_down ^ (d ^ c / 4 % 2) * 32) + c * kRow, b);
        AddFragments<kDtype>(a, b, d * 4, sum);
      }
    }
  }
  // and as PutWeights wrote it; of this warp's rows alone
  __device__ static void MultiplyWeights(const Places& at, const char* weights, const char* keys, Results& sum) {
    Clear(sum);
#pragma unroll
    for (int step = 0; step < kSide / 16; ++step) {
      uint32_t a[4];
      LoadMatrices(weights + (at.weight_own ^ step * 32), a);
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        uint32_t b[4];
        LoadMatricesTransposed(keys + (at.down ^ (step ^ d * 2) * 16) + step * 16 * kRow, b);
        AddFragments<kDtype>(a, b, d * 4, sum);
      }
    }
  }
  // sum = Σ over queries of wᵀ·queries
  __device__ static void MultiplyTransposed(const Places& at, const char* weights, const char* queries, Results& sum) {
    Clear(sum);
#pragma unroll
    for (int step = 0; step < kSide / 16; ++step) {
      uint32_t a[4];
      LoadMatricesTransposed(weights + at.weight_down + step * 16 * kWeightRow, a);
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        uint32_t b[4];
        LoadMatricesTransposed(queries + (at.down ^ d * 32) + step * 16 * kRow, b);
        AddFragments<kDtype>(a, b, d * 4, sum);
      }
    }
  }
  __device__ static void PutWeights(const Places& at, const Scores& w, char* weights) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kScores; c += 8)
        *reinterpret_cast<uint4*>(weights + (at.weight ^ c * 2) + 8 * r * kWeightRow) =
            make_uint4(PackTwo(w[r][c], w[r][c + 1], kDtype), PackTwo(w[r][c + 2], w[r][c + 3], kDtype),
                       PackTwo(w[r][c + 4], w[r][c + 5], kDtype), PackTwo(w[r][c + 6], w[r][c + 7], kDtype));
    }
  }
  // The rows of results of this warp into a tile as queries lie in it; only this warp uses its rows there.
  __device__ static void PutResults(const Places& at, const Results& sum, const float (&factor)[2], char* tile) {
#pragma unroll
    for (int k = 0; k < kWidth; k += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<uint32_t*>(tile + (at.result ^ k * 8) + 8 * r * kRow) =
            PackTwo(factor[r] * sum[r][k], factor[r] * sum[r][k + 1], kDtype);
    }
  }

 private:
  __device__ static void Clear(Results& sum) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum[0][k] = sum[1][k] = 0;
  }
};

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

// One row of a thread's two.
template <typename Tiles, int kRow>
struct OneRow {
  static constexpr int kHeld = 1, kScores = Tiles::kScores;
  __device__ static int Row(int) { return Tiles::Row(kRow); }
  __device__ static int Column(int c) { return Tiles::Column(c); }
};

// log2(e)·(bias + mask) of this thread's scores, −∞ beyond the tokens; a row at a time, or its loads would take so many
// registers that others are spilled.
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
    for (int c = 0; c < kSide / 4; ++c) addend[r][c] = kLog2E * row[0][c];
  }
}

// What a thread moves between global and shared memory: 16 bytes of its two rows of each tile, the same rows and
// columns of every window.
template <typename Tiles>
struct Share {
  using Rows = int32_t[2];  // where its tokens lie, among those of all samples

  __device__ __forceinline__ Share(const AttentionShape& s, int h)
      : width(static_cast<uint32_t>(s.heads) * static_cast<uint32_t>(s.depth) * 2) {
    const auto depth = static_cast<int32_t>(s.depth), tokens = static_cast<int32_t>(s.tokens);
    const int column = Tiles::Lane() % 4 * kPack;
    first = static_cast<uint32_t>(h * depth + (column < depth ? column : 0)) * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) inside[r] = Tiles::Row(r) < tokens && column < depth;
  }
  // This thread's bytes of a row of x, whose tokens have `parts` such parts; read within bounds beyond the depth too.
  __device__ __forceinline__ const char* Element(const View& x, int parts, int32_t row) const {
    return x.data + first + static_cast<uint64_t>(static_cast<uint32_t>(row)) * (parts * width);
  }
  // Tiles one behind the other from the parts of x; zeros beyond the tokens and the depth.
  template <int kParts>
  __device__ __forceinline__ void Load(const View& x, const Rows& rows, const int32_t (&place)[kParts],
                                       char* tiles) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const char* from = Element(x, kParts, rows[r]);
#pragma unroll
      for (int part = 0; part < kParts; ++part, from += width)
        CopyAsync(tiles + part * kTile + place[part] + 8 * r * kRow, from, inside[r]);
    }
  }
  // factor·sum there, by way of the rows of this warp in `staging`.
  __device__ __forceinline__ void Store(const View& x, int parts, int part, const Rows& rows,
                                        const typename Tiles::Places& at, const Results& sum, const float (&factor)[2],
                                        char* staging) const {
    __syncwarp();
    Tiles::PutResults(at, sum, factor, staging);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 eight = *reinterpret_cast<const uint4*>(staging + at.query + 8 * r * kRow);
      if (inside[r]) *reinterpret_cast<uint4*>(const_cast<char*>(Element(x, parts, rows[r])) + part * width) = eight;
    }
  }

  uint32_t width;  // bytes of a token in out
  uint32_t first;  // and this thread's first
  bool inside[2];
};

// The row of token Row(r) of window b, of the last token where there are fewer.
template <typename Tiles>
__device__ __forceinline__ void NumberRows(const WindowRows& map, const AttentionShape& s, int b, int32_t (&rows)[2]) {
  const Tokens tokens(map, s, b);
#pragma unroll
  for (int r = 0; r < 2; ++r) rows[r] = tokens(Least(Tiles::Row(r), static_cast<int32_t>(s.tokens) - 1));
}

template <sy_dtype kDtype>
__global__ void __launch_bounds__(kWindowThreads, kForwardBlocks)
    WindowAttentionKernel(AttentionShape s, Windows windows, WindowRows map, View qkv, AttentionTerms terms, View out,
                          float* logsumexp) {
  using Tiles = WindowTiles<kDtype>;
  SWITCHYARD_DYNAMIC_SHARED(char, shared);  // twice q, k and v
  const int h = windows.Head(), first = windows.First(), last = windows.Last();
  const Share<Tiles> share(s, h);
  const typename Tiles::Places at;
  const auto load = [&](const int32_t(&rows)[2], char* q) {
    share.template Load<3>(qkv, rows, {at.query, at.query ^ at.warp, at.query ^ at.warp}, q);
    CommitCopies();
  };
  const float scale = kLog2E * s.scale;
  Scores addend;
  int32_t rows[2], next_rows[2];
  int group = -1, tiles = 0;
  NumberRows<Tiles>(map, s, windows.At(first), rows);
  load(rows, shared);
  NumberRows<Tiles>(map, s, windows.At(Least(first + 1, last - 1)), next_rows);
  for (int n = first; n < last; ++n) {
    const int b = windows.At(n);
    char* const q = shared + tiles;
    tiles ^= 3 * kTile;
    if (windows.Group(n) != group) LoadTerms<Tiles>(s, terms, b, h, addend);
    group = windows.Group(n);
    WaitForCopies<0>();
    __syncthreads();  // this window's tiles are there, those of the window before have been used
    if (n + 1 < last) load(next_rows, shared + tiles);
    Scores p;
    const float zero[2] = {0, 0};
    Tiles::Multiply(at, q, q + kTile, zero, p);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY, total = 0;
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) {
        p[r][c] = scale * p[r][c] + addend[r][c];
        top = fmaxf(top, p[r][c]);  // of what is not a number, `total` will tell
      }
      top = Tiles::ReduceRow(top, [](float x, float y) { return fmaxf(x, y); });
      const float shift = top == -INFINITY ? 0 : top;  // a row that sees no key
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) {
        p[r][c] = ApproximateExp2(p[r][c] - shift);
        total += p[r][c];
      }
      total = Tiles::ReduceRow(total, Plus());
      factor[r] = ApproximateReciprocal(total);
      if (Tiles::Column(0) == 0 && Tiles::Row(r) < s.tokens)
        logsumexp[s.Row(b, h, Tiles::Row(r))] = kLn2 * (top + ApproximateLog2(total));
    }
    int32_t later_rows[2];
    NumberRows<Tiles>(map, s, windows.At(Least(n + 2, last - 1)), later_rows);
    Results sum;
    Tiles::MultiplyWeights(at, p, q + 2 * kTile, sum);
    share.Store(out, 1, 0, rows, at, sum, factor, q);
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = next_rows[r], next_rows[r] = later_rows[r];
  }
}

// The product of two sixteen bytes of halves.
template <sy_dtype kDtype>
__device__ __forceinline__ float Dot(const uint4& a, const uint4& b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += kDtype == SY_BF16 ? FromBf16(x[i] & 0xFFFF) * FromBf16(y[i] & 0xFFFF)
                             : FromF16(x[i] & 0xFFFF) * FromF16(y[i] & 0xFFFF);
    sum += kDtype == SY_BF16 ? BitCast<float>(x[i] & 0xFFFF0000u) * BitCast<float>(y[i] & 0xFFFF0000u)
                             : FromF16(x[i] >> 16) * FromF16(y[i] >> 16);
  }
  return sum;
}

struct WindowOperands {
  WindowRows rows;
  View qkv, out, dout;
  const float* logsumexp;
  AttentionTerms terms;
};

constexpr size_t kForwardBytes = 6 * kTile, kBackwardBytes = 8 * kTile + 2 * kWeights;
static_assert(kForwardBytes <= 48 << 10 && kBackwardBytes <= 48 << 10);

// `slots` (parts, H, T, T); null: no dbias.
template <sy_dtype kDtype>
__global__ void __launch_bounds__(kWindowThreads, kBackwardBlocks)
    WindowAttentionBackwardKernel(AttentionShape s, Windows windows, WindowOperands o, View dqkv, float* slots) {
  using Tiles = WindowTiles<kDtype>;
  SWITCHYARD_DYNAMIC_SHARED(char, shared);  // twice q, k, v and dout; then weights
  char *const p_halves = shared + 8 * kTile, *const ds_halves = p_halves + kWeights;
  const int h = windows.Head(), first = windows.First(), last = windows.Last();
  const Share<Tiles> share(s, h);
  const typename Tiles::Places at;
  const auto load = [&](const int32_t(&rows)[2], char* q) {
    share.template Load<3>(o.qkv, rows, {at.query, at.query ^ at.warp, at.query ^ at.warp}, q);
    share.template Load<1>(o.dout, rows, {at.query}, q + 3 * kTile);
    CommitCopies();
  };
  float logsumexp[2];
  const auto load_logsumexp = [&](int n) {
    const int b = windows.At(n);
    const auto tokens = static_cast<int32_t>(s.tokens), heads = static_cast<int32_t>(s.heads);
    const float* const from =
        o.logsumexp + static_cast<uint64_t>(static_cast<uint32_t>(b * heads + h)) * static_cast<uint32_t>(tokens);
#pragma unroll
    for (int r = 0; r < 2; ++r) logsumexp[r] = from[Least(Tiles::Row(r), tokens - 1)];
  };
  uint4 result[2];  // of out, what this thread moves of it
  const auto load_result = [&](const int32_t(&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      result[r] = make_uint4(0, 0, 0, 0);
      if (share.inside[r]) result[r] = *reinterpret_cast<const uint4*>(share.Element(o.out, 1, rows[r]));
    }
  };
  const float scale = kLog2E * s.scale;
  Scores addend, bias_gradient = {};
  int32_t rows[2], next_rows[2];
  int group = -1, tiles = 0;
  NumberRows<Tiles>(o.rows, s, windows.At(first), rows);
  load(rows, shared);
  load_logsumexp(first);
  load_result(rows);
  NumberRows<Tiles>(o.rows, s, windows.At(Least(first + 1, last - 1)), next_rows);
  for (int n = first; n < last; ++n) {
    char* const q = shared + tiles;
    char *const k = q + kTile, *const v = k + kTile, *const dout = v + kTile;
    tiles ^= 4 * kTile;
    WaitForCopies<0>();
    __syncthreads();  // this window's tiles are there, those of the window before and its weights have been used
    if (n + 1 < last) load(next_rows, shared + tiles);
    if (windows.Group(n) != group) LoadTerms<Tiles>(s, o.terms, windows.At(n), h, addend);
    group = windows.Group(n);
    float minus_delta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      minus_delta[r] = -Tiles::ReduceRow(
          Dot<kDtype>(*reinterpret_cast<const uint4*>(dout + at.query + 8 * r * kRow), result[r]), Plus());
    const float zero[2] = {0, 0};
    Scores w, dp;  // w: p, then ds; dp: without δ
    Tiles::Multiply(at, q, k, zero, w);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_row = kLog2E * logsumexp[r];
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) w[r][c] = ApproximateExp2(scale * w[r][c] + addend[r][c] - of_row);
    }
    Tiles::PutWeights(at, w, p_halves);
    Tiles::Multiply(at, dout, v, minus_delta, dp);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kSide / 4; ++c) {
        w[r][c] *= dp[r][c];
        bias_gradient[r][c] += w[r][c];
      }
    }
    Tiles::PutWeights(at, w, ds_halves);
    const float factor[2] = {s.scale, s.scale}, one[2] = {1, 1};
    Results sum;
    __syncwarp();
    Tiles::MultiplyWeights(at, ds_halves, k, sum);
    int32_t later_rows[2];
    NumberRows<Tiles>(o.rows, s, windows.At(Least(n + 2, last - 1)), later_rows);
    __syncthreads();  // the weights are there; v has been used and takes results on their way
    load_logsumexp(Least(n + 1, last - 1));
    load_result(next_rows);
    share.Store(dqkv, 3, 0, rows, at, sum, factor, v);
    Tiles::MultiplyTransposed(at, p_halves, dout, sum);
    share.Store(dqkv, 3, 2, rows, at, sum, one, v);
    Tiles::MultiplyTransposed(at, ds_halves, q, sum);
    share.Store(dqkv, 3, 1, rows, at, sum, factor, v);
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = next_rows[r], next_rows[r] = later_rows[r];
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
