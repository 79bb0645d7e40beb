// The products of attention.cc on tiles, whose left factors are rows of bf16 and whose right factors are words of pairs
// along the inner dimension. Q·Kᵀ and dO·Vᵀ take K and V transposed as words, P·V and dS·K take pairs of their rows.
// The gradients of K and V are computed transposed, dVᵀ = dOᵀ·P and dKᵀ = Qᵀ·dS: P and dS are then right factors, pairs
// of neighbouring rows, and only what is as small as a head is ever transposed, never scores. Everything is copied once
// per head into scratch, padded with zeros to whole tiles, so that no tile needs a size of its own.
//
// Products of a head of 197 tokens and 64 elements, in tiles: 13·13·2 for Q·Kᵀ or dO·Vᵀ, 13·4·7 for each of the others;
// 702 forward and 1768 backward, 11 and 28 thousand cycles at 16 each; a product on tiles is 256 vdpbf16ps. The rest,
// above all an exponential per score in each direction (2561 vectors of them, some 12 cycles each), then takes longer
// than the products do.
#include "backends/cpu/vector/tile_attention.h"

#include "backends/cpu/vector/attention_rows.h"
#include "backends/cpu/vector/tile_gemm.h"
#include "backends/cpu/vector/transpose.h"

namespace switchyard::SY_ISA {
namespace {

constexpr int64_t kGroup = 32;  // queries whose scores are f32 at a time: two tiles

// Words between rows of `n` words: not a multiple of the distance at which rows fall into few sets of the cache.
SY_INLINE int64_t Pitch(int64_t n) { return n % 256 == 0 ? n + kTileWords : n; }

struct TileSizes {
  int64_t tokens, dim;   // as given
  int64_t rows, depth;   // tokens padded to whole tiles as rows or columns (16), and as pairs of an inner dimension
  int64_t width, pairs;  // dim likewise
  int64_t keys;          // pitch of rows along the keys, a word each
  int64_t halves;        // pitch of rows along the tokens, two a word
  int64_t block;         // backward: queries whose P and dS are kept for dK and dV, within half a megabyte
};

TileSizes SizesOf(int64_t tokens, int64_t dim) {
  TileSizes s;
  s.tokens = tokens;
  s.dim = dim;
  s.rows = RoundUp(tokens, kTileWords);
  s.depth = RoundUp(tokens, kGroup) / 2;
  s.width = RoundUp(dim, kTileWords);
  s.pairs = RoundUp(dim, 32) / 2;
  s.keys = Pitch(s.rows);
  s.halves = Pitch(s.depth);
  s.block = Min(2 * s.depth, Max(1, (1 << 19) / (s.keys * 4 * kGroup)) * kGroup);
  return s;
}

struct TileWorkspace {
  float* rows;                                  // (rows, pairs): Q in rows, before that K
  float* keys;                                  // (pairs, rows): Kᵀ
  float* values;                                // forward: (depth, width), pairs of V; backward: (pairs, rows), Vᵀ
  float* scores;                                // (32, rows) in f32
  float* narrow;                                // (32, tokens) in bf16: P, or backward dS
  float* out;                                   // (32, width) in f32
  float* key_pairs;                             // backward: (depth, width)
  float* dout;                                  // (rows, pairs)
  float *queries_transposed, *dout_transposed;  // (width, tokens) in bf16
  float* dscores;                               // (32, rows) in f32
  float *score_pairs, *dscore_pairs;            // (block/2, rows)
  float *dkeys, *dvalues;                       // (width, rows) in f32: dKᵀ, dVᵀ
};

TileWorkspace Layout(const TileSizes& s, bool backward, Arena* arena) {
  TileWorkspace w = {};
  w.rows = arena->Take(s.rows * s.pairs);
  w.keys = arena->Take(s.pairs * s.keys);
  w.values = arena->Take(Max(s.depth * s.width, s.pairs * s.keys));
  w.scores = arena->Take(kGroup * s.keys);
  w.narrow = arena->Take(kGroup * s.halves);
  w.out = arena->Take(kGroup * s.width);
  if (!backward) return w;
  w.key_pairs = arena->Take(s.depth * s.width);
  w.dout = arena->Take(s.rows * s.pairs);
  w.queries_transposed = arena->Take(s.width * s.halves);
  w.dout_transposed = arena->Take(s.width * s.halves);
  w.dscores = arena->Take(kGroup * s.keys);
  w.score_pairs = arena->Take(s.block / 2 * s.keys);
  w.dscore_pairs = arena->Take(s.block / 2 * s.keys);
  w.dkeys = arena->Take(s.width * s.keys);
  w.dvalues = arena->Take(s.width * s.keys);
  return w;
}

// Into the second-level cache: rows lie far apart, and one after another they would be waited for.
void FetchRows(const char* from, int64_t stride, const TileSizes& s) {
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t i = 0; i < s.dim * 2; i += 64) __builtin_prefetch(from + t * stride * 2 + i, 0, 2);
}

void Clear(float* words, int64_t n) {
  for (int64_t i = 0; i < n; ++i) words[i] = 0;
}

// Rows of the head, padded with zeros: (rows, pairs).
void CopyRows(const char* from, int64_t stride, const TileSizes& s, float* to) {
  for (int64_t t = 0; t < s.tokens; ++t) {
    const auto* row = reinterpret_cast<const uint16_t*>(from) + t * stride;
    auto* words = reinterpret_cast<uint16_t*>(to + t * s.pairs);
    int64_t i = 0;
    for (; i + kLanes <= s.dim; i += kLanes) StoreHalves(words + i, LoadHalves(row + i));
    for (; i < 2 * s.pairs; i += kLanes) StoreHalves(words + i, i < s.dim ? LoadHalves(row + i, s.dim - i) : Halves{});
  }
  Clear(to + s.tokens * s.pairs, (s.rows - s.tokens) * s.pairs);
}

// Rows of the head as pairs along the tokens, padded with zeros: (depth, width).
void PackPairs(const char* from, int64_t stride, const TileSizes& s, float* to) {
  const auto* rows = reinterpret_cast<const uint16_t*>(from);
  for (int64_t t = 0; t < 2 * s.depth; t += 2, to += s.width)
    for (int64_t i = 0; i < s.width; i += kLanes) {
      const int64_t lanes = Max(0, Min(kLanes, s.dim - i));
      const Halves low = t < s.tokens ? LoadHalves(rows + t * stride + i, lanes) : Halves{};
      StorePairs(to + i, low, t + 1 < s.tokens ? LoadHalves(rows + (t + 1) * stride + i, lanes) : Halves{});
    }
}

SY_INLINE void StoreNarrow(float* words, int64_t i, Halves h) {
  StoreHalves(reinterpret_cast<uint16_t*>(words) + i, h);
}

// Zero bf16 after the keys, up to the end of an inner dimension.
SY_INLINE void ClearRest(float* words, const TileSizes& s) {
  for (int64_t i = RoundUp(s.tokens, kLanes); i < 2 * s.depth; i += kLanes) StoreNarrow(words, i, Halves{});
}

// dS of one query from its P and dP, added to dbias.
struct ScoreGradient {
  float sum, *dbias;
  SY_INLINE Floats At(const AttentionHead& a, Floats p, const float* dp, int64_t i, int64_t lanes) const {
    const Floats ds = p * (Load(dp + i) - sum);
    if (dbias) Store(dbias + i, Load(dbias + i, lanes) + ds, lanes);
    return ds * a.scale;
  }
};

// P and dS of queries `query` and `query` + 1 (only the first if `single`), which are rows r and r + 1 of their group,
// as pairs and, for dS, in rows.
void ScorePair(const AttentionHead& a, const TileSizes& s, const TileWorkspace& w, int64_t query, int64_t r,
               bool single, float* pairs, float* dpairs) {
  const bool biased = a.bias || a.mask;
  const float scale = biased ? 1.0f : a.scale;
  float *row = w.scores + r * s.keys, *drow = w.dscores + r * s.keys, *narrow = w.narrow + r * s.halves;
  const int64_t next = single ? 0 : 1;
  ScoreGradient gradients[2];
  for (int64_t j = 0; j <= next; ++j) {
    if (biased) Bias(a, query + j, row + j * s.keys);
    gradients[j].sum = OutTimesGradient(a, query + j);
    gradients[j].dbias = a.dbias ? a.dbias + (query + j) * s.tokens : nullptr;
  }
  const float shifts[] = {a.logsumexp[query], a.logsumexp[query + next]};
  for (int64_t i = 0; i < s.rows; i += kLanes) {
    const int64_t lanes = Max(0, Min(kLanes, s.tokens - i));
    const Floats p = Keep(Probability(Load(row + i) * scale - shifts[0]), lanes);
    const Floats dp = gradients[0].At(a, p, drow, i, lanes);
    Floats q = {}, dq = {};
    if (!single) {
      q = Keep(Probability(Load(row + s.keys + i) * scale - shifts[1]), lanes);
      dq = gradients[1].At(a, q, drow + s.keys, i, lanes);
    }
    Store(pairs + i, ToFactors(p, q).words);
    const FactorPair d = ToFactors(dp, dq);
    Store(dpairs + i, d.words);
    StoreNarrow(narrow, i, d.low);
    StoreNarrow(narrow + s.halves, i, d.high);
  }
  ClearRest(narrow, s);
  ClearRest(narrow + s.halves, s);
}

// A gradient of the head from its transpose (width, rows) in f32, sums that have no subnormal numbers. pairs (pairs,
// rows) and rows (rows, pairs): scratch.
void StoreTransposed(const float* transposed, const TileSizes& s, float* pairs, float* rows, char* to, int64_t stride) {
  for (int64_t d = 0; d < s.width; d += 2) {
    const float *low = transposed + d * s.keys, *high = low + s.keys;
    for (int64_t i = 0; i < s.rows; i += kLanes)
      Store(pairs + d / 2 * s.keys + i, ToFactors(Load(low + i), Load(high + i)).words);
  }
  Clear(pairs + s.width / 2 * s.keys, (s.pairs - s.width / 2) * s.keys);
  Transpose(pairs, s.keys, s.pairs, s.rows, rows, s.pairs);
  for (int64_t t = 0; t < s.tokens; ++t) {
    const auto* row = reinterpret_cast<const uint16_t*>(rows + t * s.pairs);
    auto* gradient = reinterpret_cast<uint16_t*>(to) + t * stride;
    ForEachVector(s.dim, [&](int64_t i, int64_t lanes)
                             SY_INLINED { StoreHalves(gradient + i, LoadHalves(row + i, lanes), lanes); });
  }
}

}  // namespace

uint64_t TileAttentionScratch(int64_t tokens, int64_t head_dim, bool backward) {
  Arena arena;
  Layout(SizesOf(tokens, head_dim), backward, &arena);
  return arena.at;
}

void TileAttention(const AttentionHead& a) {
  const TileSizes s = SizesOf(a.tokens, a.head_dim);
  Arena arena = {reinterpret_cast<uintptr_t>(a.scratch)};
  const TileWorkspace w = Layout(s, false, &arena);
  const bool biased = a.bias || a.mask;
  const float scale = biased ? 1.0f : a.scale;
  const int64_t keys = s.rows / kTileWords, width = s.width / kTileWords;
  Tiles tiles;

  const char* const fetched[] = {a.k, a.v, a.q};
  for (const char* rows : fetched) FetchRows(rows, a.stride, s);
  CopyRows(a.k, a.stride, s, w.rows);
  Transpose(w.rows, s.pairs, s.rows, s.pairs, w.keys, s.keys);
  PackPairs(a.v, a.stride, s, w.values);
  CopyRows(a.q, a.stride, s, w.rows);
  for (int64_t first = 0; first < s.tokens; first += kGroup) {
    const int64_t rows = Min(kGroup, s.tokens - first), m = RoundUp(rows, kTileWords) / kTileWords;
    MultiplyTiles(tiles, m, keys, s.pairs / kTileWords, LeftFactor(w.rows + first * s.pairs, s.pairs),
                  RightFactor(w.keys, s.keys), w.scores, s.keys, false);
    float largest[kGroup], sums[kGroup] = {};
    for (int64_t r = 0; r < rows; ++r) {
      float *row = w.scores + r * s.keys, *narrow = w.narrow + r * s.halves;
      const float shift = largest[r] = LargestScore(a, first + r, row);
      sums[r] = SumOver(s.tokens, [&](int64_t i, int64_t lanes) SY_INLINED {
        const Floats e = Keep(Probability(Load(row + i, lanes) * scale - shift), lanes);
        StoreNarrow(narrow, i, ToFactor(e));
        return e;
      });
      ClearRest(narrow, s);
    }
    ForEachVector(rows, [&](int64_t i, int64_t lanes) SY_INLINED {
      Store(a.logsumexp + first + i, Load(largest + i, lanes) + Log(Load(sums + i, lanes)), lanes);
    });
    MultiplyTiles(tiles, m, width, s.depth / kTileWords, LeftFactor(w.narrow, s.halves), RightFactor(w.values, s.width),
                  w.out, s.width, false);
    for (int64_t r = 0; r < rows; ++r)
      StoreScaled(SY_BF16, w.out + r * s.width, 1.0f / sums[r], a.out + (first + r) * a.out_stride * 2, s.dim);
  }
}

void TileAttentionBackward(const AttentionHead& a) {
  const TileSizes s = SizesOf(a.tokens, a.head_dim);
  Arena arena = {reinterpret_cast<uintptr_t>(a.scratch)};
  const TileWorkspace w = Layout(s, true, &arena);
  const int64_t keys = s.rows / kTileWords, width = s.width / kTileWords, depth = s.pairs / kTileWords;
  Tiles tiles;

  const char* const fetched[] = {a.k, a.v, a.q, a.dq, a.dk, a.dv};
  for (const char* rows : fetched) FetchRows(rows, a.stride, s);
  FetchRows(a.dout, a.out_stride, s);
  FetchRows(a.out, a.out_stride, s);
  CopyRows(a.k, a.stride, s, w.rows);
  Transpose(w.rows, s.pairs, s.rows, s.pairs, w.keys, s.keys);
  CopyRows(a.v, a.stride, s, w.rows);
  Transpose(w.rows, s.pairs, s.rows, s.pairs, w.values, s.keys);
  PackPairs(a.q, a.stride, s, w.key_pairs);
  Transpose(w.key_pairs, s.width, s.depth, s.width, w.queries_transposed, s.halves);
  PackPairs(a.dout, a.out_stride, s, w.key_pairs);
  Transpose(w.key_pairs, s.width, s.depth, s.width, w.dout_transposed, s.halves);
  PackPairs(a.k, a.stride, s, w.key_pairs);
  CopyRows(a.q, a.stride, s, w.rows);
  CopyRows(a.dout, a.out_stride, s, w.dout);

  for (int64_t begin = 0; begin < s.tokens; begin += s.block) {
    const int64_t end = Min(begin + s.block, s.tokens);
    for (int64_t first = begin; first < end; first += kGroup) {
      const int64_t rows = Min(kGroup, end - first), m = RoundUp(rows, kTileWords) / kTileWords;
      MultiplyTiles(tiles, m, keys, depth, LeftFactor(w.rows + first * s.pairs, s.pairs), RightFactor(w.keys, s.keys),
                    w.scores, s.keys, false);
      MultiplyTiles(tiles, m, keys, depth, LeftFactor(w.dout + first * s.pairs, s.pairs), RightFactor(w.values, s.keys),
                    w.dscores, s.keys, false);
      float *pairs = w.score_pairs + (first - begin) / 2 * s.keys,
            *dpairs = w.dscore_pairs + (first - begin) / 2 * s.keys;
      for (int64_t r = 0; r < kGroup; r += 2, pairs += s.keys, dpairs += s.keys) {
        if (r < rows) {
          ScorePair(a, s, w, first + r, r, r + 1 == rows, pairs, dpairs);
        } else {
          Clear(pairs, s.rows);
          Clear(dpairs, s.rows);
        }
      }
      MultiplyTiles(tiles, m, width, s.depth / kTileWords, LeftFactor(w.narrow, s.halves),
                    RightFactor(w.key_pairs, s.width), w.out, s.width, false);
      for (int64_t r = 0; r < rows; ++r)
        from_float(SY_BF16, w.out + r * s.width, a.dq + (first + r) * a.stride * 2, s.dim);
    }
    const int64_t steps = RoundUp(end - begin, kGroup) / kGroup;
    MultiplyTiles(tiles, width, keys, steps, LeftFactor(w.dout_transposed + begin / 2, s.halves),
                  RightFactor(w.score_pairs, s.keys), w.dvalues, s.keys, begin > 0);
    MultiplyTiles(tiles, width, keys, steps, LeftFactor(w.queries_transposed + begin / 2, s.halves),
                  RightFactor(w.dscore_pairs, s.keys), w.dkeys, s.keys, begin > 0);
  }
  StoreTransposed(w.dkeys, s, w.keys, w.rows, a.dk, a.stride);
  StoreTransposed(w.dvalues, s, w.keys, w.rows, a.dv, a.stride);
}

}  // namespace switchyard::SY_ISA
