// Attention of one head, whole rows of scores at a time, in the caches of one core. Forward: for each block of queries
// S = Q·Kᵀ, P = exp(scale·S + bias + mask − max), O = P·V / ΣP. Backward recomputes P from logsumexp and follows
// Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4: with D = rowsum(dO∘O),
//   dV = Pᵀ·dO,  dP = dO·Vᵀ,  dS = P∘(dP − D),  dQ = scale·dS·K,  dK = scale·dSᵀ·Q.
#include "backends/cpu/vector/attention_rows.h"
#include "backends/cpu/vector/gemm.h"
#include "backends/cpu/vector/tile_attention.h"
#include "backends/cpu/vector/tiles.h"
#include "backends/cpu/vector/transpose.h"

namespace switchyard::SY_ISA {
namespace {

// pairs: word (i, d) = elements (2i, d) and (2i + 1, d). Else a copy in f32. Columns padded to `width` with zeros, rows
// to a pair.
template <bool pairs>
void PackRows(const char* rows, int64_t count, int64_t dim, int64_t stride, sy_dtype dtype, int64_t width,
              float* words) {
  if constexpr (pairs) {
    const auto* from = reinterpret_cast<const uint16_t*>(rows);
    auto* to = reinterpret_cast<uint32_t*>(words);
    for (int64_t i = 0; i < count; i += 2, to += width) {
      const uint16_t *low = from + i * stride, *high = low + stride;
      if (i + 1 < count) {
        for (int64_t d = 0; d < dim; ++d) to[d] = low[d] | uint32_t{high[d]} << 16;
      } else {
        for (int64_t d = 0; d < dim; ++d) to[d] = low[d];
      }
      for (int64_t d = dim; d < width; ++d) to[d] = 0;
    }
  } else {
    for (int64_t i = 0; i < count; ++i, words += width) {
      to_float(dtype, rows + i * stride * ElementBytes(dtype), words, dim);
      for (int64_t d = dim; d < width; ++d) words[d] = 0;
    }
  }
}

constexpr int64_t kMostQueries = 96;  // a multiple of 6, as blocks are

// Sizes in words or rows. Blocks of queries are even (pairs) and sized so that a block of scores stays in the L2 cache.
struct Sizes {
  int64_t tokens, dim;       // as given
  int64_t keys, width;       // padded to whole vectors: row length of scores, and of (tokens, dim) matrices
  int64_t depth, key_words;  // words along dim, and along tokens
  int64_t block;             // queries
};

template <bool pairs>
Sizes SizesOf(int64_t tokens, int64_t dim) {
  Sizes s;
  s.tokens = tokens;
  s.dim = dim;
  s.keys = RoundUp(tokens, kLanes);
  if (s.keys % 256 == 0) s.keys += kLanes;  // rows a page apart would fall into one cache set
  s.width = RoundUp(dim, kLanes);
  s.depth = pairs ? dim / 2 : dim;
  s.key_words = pairs ? (tokens + 1) / 2 : tokens;
  const int64_t most = Min(kMostQueries, Max(12, 24576 / s.keys)), blocks = (tokens + most - 1) / most;
  s.block = RoundUp((tokens + blocks - 1) / blocks, 6);
  return s;
}

struct Workspace {
  float *keys, *values, *scores, *out;              // forward and backward
  float *key_rows, *dscores, *dscore_pairs;         // backward
  float *query_rows, *dout_rows, *dk, *dv;
  float *queries, *douts;  // widened copies where bf16 is computed in f32
};

template <bool pairs>
Workspace Layout(const Sizes& s, sy_dtype dtype, bool backward, Arena* arena) {
  Workspace w = {};
  const bool widen = dtype != SY_F32 && !pairs;
  w.keys = arena->Take(s.depth * s.keys);
  w.values = arena->Take(Max(s.key_words * s.width, s.depth * s.keys));
  w.scores = arena->Take(s.block * s.keys);
  w.out = arena->Take(s.block * s.width);
  if (widen) w.queries = arena->Take(s.tokens * s.dim);
  if (!backward) return w;
  w.key_rows = arena->Take(s.key_words * s.width);
  w.dscores = arena->Take(s.block * s.keys);
  if (pairs) w.dscore_pairs = arena->Take(s.block / 2 * s.keys);
  w.query_rows = arena->Take(s.block * s.width);
  w.dout_rows = arena->Take(s.block * s.width);
  w.dk = arena->Take(s.tokens * s.width);
  w.dv = arena->Take(s.tokens * s.width);
  if (widen) w.douts = arena->Take(s.tokens * s.dim);
  return w;
}

// Rows of (tokens, dim) as the A operand; `copy` receives them where they have to be widened.
template <bool pairs>
SmallMatrix Left(const char* rows, int64_t count, int64_t dim, int64_t stride, sy_dtype dtype, float* copy) {
  if (dtype == SY_F32) return {reinterpret_cast<const float*>(rows), stride, 1};
  if (pairs) return {reinterpret_cast<const float*>(rows), stride / 2, 1};
  for (int64_t t = 0; t < count; ++t) to_float(dtype, rows + t * stride * 2, copy + t * dim, dim);
  return {copy, dim, 1};
}

// Rows of (tokens, dim) that are matrices as they lie: f32 without padding.
template <bool pairs>
bool AreMatrices(const Sizes& s, sy_dtype dtype) {
  return !pairs && dtype == SY_F32 && s.dim == s.width;
}

// Rows of (tokens, dim) as the B operand: themselves, or `copy`, which receives them.
struct Packed {
  const float* words;
  int64_t row;
};
template <bool pairs>
Packed Right(const char* rows, int64_t count, int64_t stride, const Sizes& s, sy_dtype dtype, float* copy) {
  if (AreMatrices<pairs>(s, dtype)) return {reinterpret_cast<const float*>(rows), stride};
  PackRows<pairs>(rows, count, s.dim, stride, dtype, s.width, copy);
  return {copy, s.width};
}

// Where a product that is rows of (tokens, dim) is computed: where these lie, or in `copy`, from which Narrow takes it
// there.
struct Product {
  float* words;
  int64_t row;
};
template <bool pairs>
Product ProductIn(char* rows, int64_t stride, const Sizes& s, sy_dtype dtype, float* copy) {
  if (AreMatrices<pairs>(s, dtype)) return {reinterpret_cast<float*>(rows), stride};
  return {copy, s.width};
}
void Narrow(const Product& product, int64_t count, int64_t dim, int64_t stride, sy_dtype dtype, char* rows) {
  if (reinterpret_cast<char*>(product.words) == rows) return;
  for (int64_t t = 0; t < count; ++t)
    from_float(dtype, product.words + t * product.row, rows + t * stride * ElementBytes(dtype), dim);
}

// words (depth, keys) = the transpose of rows (tokens, depth words); zero beyond the tokens.
void PackTransposed(const SmallMatrix& rows, int64_t depth, int64_t tokens, int64_t keys, float* words) {
  constexpr int64_t kMostDepth = 128;
  const auto* from = reinterpret_cast<const int32_t*>(rows.words);
  auto* to = reinterpret_cast<int32_t*>(words);
  alignas(64) float rest[kLanes * kMostDepth];
  for (int64_t t = 0; t < keys; t += kLanes) {
    const int64_t count = Max(0, Min(kLanes, tokens - t));
    if (depth % kLanes == 0 && depth <= kMostDepth) {
      if (count < kLanes) {
        for (int64_t j = 0; j < kLanes; ++j)
          for (int64_t d = 0; d < depth; d += kLanes)
            Store(rest + j * depth + d, j < count ? Load(rows.words + (t + j) * rows.row + d) : Floats{});
        Transpose(rest, depth, kLanes, depth, words + t, keys);
      } else {
        Transpose(rows.words + t * rows.row, rows.row, kLanes, depth, words + t, keys);
      }
    } else {
      for (int64_t d = 0; d < depth; ++d)
        for (int64_t j = 0; j < kLanes; ++j) to[d * keys + t + j] = j < count ? from[(t + j) * rows.row + d] : 0;
    }
  }
}

// exp(scale·x − shift) over a row, zero from the last token to the end of its vector; returns the sum. Of pairs
// narrowed to bf16 at the row's own beginning.
template <bool pairs>
float Probabilities(float* row, const Sizes& s, float scale, float shift) {
  auto* halves = reinterpret_cast<uint16_t*>(row);
  const auto store = [&](int64_t i, Floats p) SY_INLINED {
    if constexpr (pairs) {
      StoreHalves(halves + i, ToFactor(p));
    } else {
      Store(row + i, p);  // rows are padded to whole vectors
    }
  };
  return SumOver(s.tokens, [&](int64_t i, int64_t lanes) SY_INLINED {
    const Floats p = Keep(Probability(Load(row + i) * scale - shift), lanes);
    store(i, p);
    return p;
  });
}

// P and dS of a query from its rows of scores and of dP, a vector at a time; dS is added to dbias.
struct QueryGradients {
  const AttentionHead& a;
  const float *row, *drow;
  const Addends addends;
  const float shift, sum;
  float* const dbias;

  QueryGradients(const AttentionHead& a, int64_t query, const float* row, const float* drow)
      : a(a),
        row(row),
        drow(drow),
        addends(a, query),
        shift(a.logsumexp[query]),
        sum(OutTimesGradient(a, query)),
        dbias(a.dbias ? a.dbias + query * a.tokens : nullptr) {}

  struct Vectors {
    Floats p, ds;
  };
  SY_INLINE Vectors At(int64_t i, int64_t lanes) const {
    const Floats p = Keep(Probability(addends.To(Load(row + i) * a.scale, i, lanes) - shift), lanes);
    const Floats ds = p * (Load(drow + i) - sum);
    if (dbias) Store(dbias + i, Load(dbias + i, lanes) + ds, lanes);
    return {p, ds * a.scale};
  }
};

// P and dS of `rows` queries from `first` on, from scores and dP. In f32 both take their places. Of pairs P takes the
// place of the scores as words of neighbouring queries, (rows/2, keys), and dS becomes such words in dscore_pairs, and
// rows of bf16 in dscores.
template <bool pairs>
void ScoreGradients(const AttentionHead& a, const Sizes& s, const Workspace& w, int64_t first, int64_t rows) {
  for (int64_t r = 0; r < rows; r += pairs ? 2 : 1) {
    float *row = w.scores + r * s.keys, *drow = w.dscores + r * s.keys;
    FetchNext(a, first + r, true);
    const QueryGradients low(a, first + r, row, drow);
    if constexpr (pairs) {
      float *words = w.scores + r / 2 * s.keys, *dwords = w.dscore_pairs + r / 2 * s.keys;
      auto *narrow = reinterpret_cast<uint16_t*>(drow), *narrow_next = reinterpret_cast<uint16_t*>(drow + s.keys);
      const auto store = [&](int64_t i, const QueryGradients::Vectors& x, const QueryGradients::Vectors& y) SY_INLINED {
        Store(words + i, ToFactors(x.p, y.p).words);
        const FactorPair d = ToFactors(x.ds, y.ds);
        Store(dwords + i, d.words);
        StoreHalves(narrow + i, d.low);
        StoreHalves(narrow_next + i, d.high);
      };
      if (r + 1 < rows) {
        FetchNext(a, first + r + 1, true);
        const QueryGradients high(a, first + r + 1, row + s.keys, drow + s.keys);
        ForEachVector(s.tokens,
                      [&](int64_t i, int64_t lanes) SY_INLINED { store(i, low.At(i, lanes), high.At(i, lanes)); });
      } else {
        ForEachVector(s.tokens, [&](int64_t i, int64_t lanes)
                                    SY_INLINED { store(i, low.At(i, lanes), QueryGradients::Vectors()); });
      }
    } else {
      ForEachVector(s.tokens, [&](int64_t i, int64_t lanes) SY_INLINED {
        const auto [p, ds] = low.At(i, lanes);
        Store(row + i, p);
        Store(drow + i, ds);
      });
    }
  }
}

template <bool pairs>
void Forward(const AttentionHead& a) {
  const Sizes s = SizesOf<pairs>(a.tokens, a.head_dim);
  Arena arena = {reinterpret_cast<uintptr_t>(a.scratch)};
  const Workspace w = Layout<pairs>(s, a.dtype, false, &arena);
  const int64_t bytes = ElementBytes(a.dtype);
  const float scale = a.bias || a.mask ? 1.0f : a.scale;

  PackTransposed(Left<pairs>(a.k, s.tokens, s.dim, a.stride, a.dtype, w.queries), s.depth, s.tokens, s.keys, w.keys);
  const Packed values = Right<pairs>(a.v, s.tokens, a.stride, s, a.dtype, w.values);
  const SmallMatrix queries = Left<pairs>(a.q, s.tokens, s.dim, a.stride, a.dtype, w.queries);

  for (int64_t first = 0; first < s.tokens; first += s.block) {
    const int64_t rows = Min(s.block, s.tokens - first);
    const SmallMatrix block = {queries.words + first * queries.row, queries.row, queries.step};
    MultiplySmall<pairs>(rows, RoundUp(s.tokens, kLanes), s.depth, block, w.keys, s.keys, w.scores, s.keys, false);
    float largest[kMostQueries], sums[kMostQueries];
    for (int64_t r = 0; r < rows; ++r) {
      float* row = w.scores + r * s.keys;
      FetchNext(a, first + r, false);
      largest[r] = LargestScore(a, first + r, row);
      sums[r] = Probabilities<pairs>(row, s, scale, largest[r]);
    }
    ForEachVector(rows, [&](int64_t i, int64_t lanes) SY_INLINED {
      Store(a.logsumexp + first + i, Load(largest + i, lanes) + Log(Load(sums + i, lanes)), lanes);
    });
    MultiplySmall<pairs>(rows, s.width, s.key_words, {w.scores, s.keys, 1}, values.words, values.row, w.out, s.width,
                         false);
    for (int64_t r = 0; r < rows; ++r)
      StoreScaled(a.dtype, w.out + r * s.width, 1.0f / sums[r], a.out + (first + r) * a.out_stride * bytes, s.dim);
  }
}

template <bool pairs>
void Backward(const AttentionHead& a) {
  const Sizes s = SizesOf<pairs>(a.tokens, a.head_dim);
  Arena arena = {reinterpret_cast<uintptr_t>(a.scratch)};
  const Workspace w = Layout<pairs>(s, a.dtype, true, &arena);
  const int64_t bytes = ElementBytes(a.dtype), columns = RoundUp(s.tokens, kLanes);

  PackTransposed(Left<pairs>(a.k, s.tokens, s.dim, a.stride, a.dtype, w.queries), s.depth, s.tokens, s.keys, w.keys);
  PackTransposed(Left<pairs>(a.v, s.tokens, s.dim, a.stride, a.dtype, w.queries), s.depth, s.tokens, s.keys, w.values);
  const Packed keys = Right<pairs>(a.k, s.tokens, a.stride, s, a.dtype, w.key_rows);
  const SmallMatrix queries = Left<pairs>(a.q, s.tokens, s.dim, a.stride, a.dtype, w.queries);
  const SmallMatrix douts = Left<pairs>(a.dout, s.tokens, s.dim, a.out_stride, a.dtype, w.douts);
  const Product dk = ProductIn<pairs>(a.dk, a.stride, s, a.dtype, w.dk);
  const Product dv = ProductIn<pairs>(a.dv, a.stride, s, a.dtype, w.dv);

  for (int64_t first = 0; first < s.tokens; first += s.block) {
    const int64_t rows = Min(s.block, s.tokens - first), depth = pairs ? (rows + 1) / 2 : rows;
    const char *q = a.q + first * a.stride * bytes, *dout = a.dout + first * a.out_stride * bytes;
    MultiplySmall<pairs>(rows, columns, s.depth, {queries.words + first * queries.row, queries.row, 1}, w.keys, s.keys,
                         w.scores, s.keys, false);
    MultiplySmall<pairs>(rows, columns, s.depth, {douts.words + first * douts.row, douts.row, 1}, w.values, s.keys,
                         w.dscores, s.keys, false);
    ScoreGradients<pairs>(a, s, w, first, rows);
    const Packed query_rows = Right<pairs>(q, rows, a.stride, s, a.dtype, w.query_rows);
    const Packed dout_rows = Right<pairs>(dout, rows, a.out_stride, s, a.dtype, w.dout_rows);
    const SmallMatrix scores_transposed = {w.scores, 1, s.keys};
    const SmallMatrix dscores_transposed = {pairs ? w.dscore_pairs : w.dscores, 1, s.keys};
    MultiplySmall<pairs>(s.tokens, s.width, depth, scores_transposed, dout_rows.words, dout_rows.row, dv.words, dv.row,
                         first > 0);
    MultiplySmall<pairs>(s.tokens, s.width, depth, dscores_transposed, query_rows.words, query_rows.row, dk.words,
                         dk.row, first > 0);
    char* const to = a.dq + first * a.stride * bytes;
    const Product dq = ProductIn<pairs>(to, a.stride, s, a.dtype, w.out);
    MultiplySmall<pairs>(rows, s.width, s.key_words, {w.dscores, s.keys, 1}, keys.words, keys.row, dq.words, dq.row,
                         false);
    Narrow(dq, rows, s.dim, a.stride, a.dtype, to);
  }
  Narrow(dk, s.tokens, s.dim, a.stride, a.dtype, a.dk);
  Narrow(dv, s.tokens, s.dim, a.stride, a.dtype, a.dv);
}

bool UsesTiles(sy_dtype dtype) { return kHasTiles && dtype == SY_BF16; }
bool UsesPairs(sy_dtype dtype, int64_t head_dim) { return kHasPairs && dtype == SY_BF16 && head_dim % 2 == 0; }

}  // namespace

uint64_t attention_scratch(int64_t tokens, int64_t head_dim, sy_dtype dtype, bool backward) {
  if (UsesTiles(dtype)) return TileAttentionScratch(tokens, head_dim, backward);
  Arena arena;
  if (UsesPairs(dtype, head_dim)) {
    Layout<kHasPairs>(SizesOf<kHasPairs>(tokens, head_dim), dtype, backward, &arena);
  } else {
    Layout<false>(SizesOf<false>(tokens, head_dim), dtype, backward, &arena);
  }
  return arena.at;
}

void attention(const AttentionHead& a) {
  if (UsesTiles(a.dtype)) return TileAttention(a);
  if (UsesPairs(a.dtype, a.head_dim)) return Forward<kHasPairs>(a);
  Forward<false>(a);
}

void attention_backward(const AttentionHead& a) {
  if (UsesTiles(a.dtype)) return TileAttentionBackward(a);
  if (UsesPairs(a.dtype, a.head_dim)) return Backward<kHasPairs>(a);
  Backward<false>(a);
}

}  // namespace switchyard::SY_ISA
