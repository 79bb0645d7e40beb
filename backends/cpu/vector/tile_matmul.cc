// Products of large bf16 matrices on tiles: the loops of one thread. What lies where in the caches decides here. A step
// of the inner loop needs 2 KiB of either factor in the 64 cycles of its four products; the first-level cache gives
// that, the second-level one some two thirds of it, what cores share an eighth. So a product goes along the inner
// dimension in blocks of 256: the 16 KiB of a right panel of 32 columns stay in the first-level cache while the rows
// pass it, and those, with the sums, stay in the second-level one, into which the next block is fetched meanwhile.
// Measured on one core of a Xeon with AMX (2 MiB of second-level cache, 29 GB/s from what cores share): 2.0 TFLOP/s
// so; 1.5 with the whole inner dimension of 768 at a time, where neither factor stays; 3.4 without any loads.
//
// Packed, a factor is tiles of 1 KiB. Block by block of the inner dimension (256 elements, the last one shorter), in it
// panel by panel (32 rows of a left factor, 32 columns of a right one), in it step by step (32 elements): two tiles.
// What is missing of the last panel and of the last step is zeros.
#include "backends/cpu/vector/matmul_rows.h"
#include "backends/cpu/vector/tile_gemm.h"
#include "backends/cpu/vector/transpose.h"

namespace switchyard::SY_ISA {
namespace {

constexpr int64_t kTile = kTileWords * kTileWords;  // words
constexpr int64_t kBlockSteps = 8;

int64_t Steps(int64_t depth) { return (depth + kTileStep - 1) / kTileStep; }
int64_t Panels(int64_t lines) { return (lines + kTilePanel - 1) / kTilePanel; }

// Steps of the block that begins at step `first`.
int64_t StepsOfBlock(int64_t steps, int64_t first) { return Min(kBlockSteps, steps - first); }

// Words in front of the two tiles of a step and a panel.
int64_t TilesAt(int64_t steps, int64_t panels, int64_t step, int64_t panel) {
  const int64_t first = step / kBlockSteps * kBlockSteps;
  return (first * panels + panel * StepsOfBlock(steps, first) + step - first) * 2 * kTile;
}

// 16 rows of 32 elements, `rows` and `elements` of which there are, as rows of words.
SY_INLINE void CopyLines(const char* from, int64_t stride, int64_t rows, int64_t elements, float* to) {
  if (rows >= kTileWords && elements >= kTileStep) {
    for (int64_t r = 0; r < kTileWords; ++r) __builtin_memcpy(to + r * kTileWords, from + r * stride * 2, 64);
    return;
  }
  __builtin_memset(to, 0, kTile * 4);
  for (int64_t r = 0; r < Min(rows, kTileWords); ++r)
    __builtin_memcpy(to + r * kTileWords, from + r * stride * 2, static_cast<size_t>(Min(elements, kTileStep) * 2));
}

// 32 rows of 16 elements, `rows` and `elements` of which there are, as 16 rows of words: pairs of neighbouring rows.
SY_INLINE void CopyPairs(const char* from, int64_t stride, int64_t rows, int64_t elements, float* to) {
  const auto* first = reinterpret_cast<const uint16_t*>(from);
  if (rows >= kTileStep && elements >= kTileWords) {
    for (int64_t r = 0; r < kTileStep; r += 2, first += 2 * stride)
      for (int64_t i = 0; i < kTileWords; i += kLanes, to += kLanes)
        StorePairs(to, LoadHalves(first + i), LoadHalves(first + stride + i));
    return;
  }
  const auto load = [&](int64_t r, int64_t i) SY_INLINED {
    const int64_t lanes = Max(0, Min(kLanes, elements - i));
    return r < rows && lanes > 0 ? LoadHalves(first + r * stride + i, lanes) : Halves{};
  };
  for (int64_t r = 0; r < kTileStep; r += 2)
    for (int64_t i = 0; i < kTileWords; i += kLanes, to += kLanes) StorePairs(to, load(r, i), load(r + 1, i));
}

// The two tiles of a step and a panel.
void PackTiles(const TilePacking& a, int64_t step, int64_t panel) {
  float* to = a.to + TilesAt(Steps(a.depth), Panels(a.lines), step, panel);
  const bool transposed = a.right == a.depth_is_contiguous;
  const int64_t inner = step * kTileStep, depth = a.depth - inner;
  for (int64_t line = panel * kTilePanel; line < (panel + 1) * kTilePanel; line += kTileWords, to += kTile) {
    alignas(64) float scratch[kTile];
    float* words = transposed ? scratch : to;
    const int64_t lines = Max(0, a.lines - line);
    if (a.depth_is_contiguous) {
      CopyLines(a.from + (line * a.stride + inner) * 2, a.stride, lines, depth, words);
    } else {
      CopyPairs(a.from + (inner * a.stride + line) * 2, a.stride, depth, lines, words);
    }
    if (transposed) Transpose(scratch, kTileWords, kTileWords, kTileWords, to, kTileWords);
  }
}

}  // namespace

bool has_tiles() { return kHasTiles; }

void tile_pack(const TilePacking& a, int64_t piece) {
  const int64_t steps = Steps(a.depth), panels = Panels(a.lines);
  if (a.depth_is_contiguous) {
    for (int64_t step = 0; step < steps; ++step) PackTiles(a, step, piece);
  } else {
    for (int64_t panel = 0; panel < panels; ++panel) PackTiles(a, piece, panel);
  }
}

namespace {

constexpr int64_t kLinesOfStep = 2 * kTile * 4 / 64;  // of the caches, of two tiles

// Brings what is needed later into the second-level cache, some lines at a time: `count` runs of `bytes`.
struct Fetch {
  const char* at;
  int64_t bytes, stride, count, lines;
  int64_t done = 0;

  SY_INLINE void Some() {
    for (int64_t i = 0; i < lines && count > 0; ++i) {
      __builtin_prefetch(at + done, 0, 2);
      done += 64;
      if (done < bytes) continue;
      done = 0;
      at += stride;
      --count;
    }
  }
};

// The left factor of a product from panel `first` on, packed or where it lies.
struct LeftPanels {
  const TileProduct& a;
  int64_t steps, first;

  bool InPlace(int64_t panel) const { return first + panel < a.whole_rows / kTilePanel; }
  TileMatrix At(int64_t step, int64_t panel) const {
    if (InPlace(panel)) {
      const char* from = a.rows_in_place + ((first + panel) * kTilePanel * a.row_stride + step * kTileStep) * 2;
      const int64_t row = a.row_stride / 2;
      return {reinterpret_cast<const float*>(from), row, kTileWords, kTileWords * row};
    }
    const int64_t packed = first + panel - a.whole_rows / kTilePanel;
    return {a.left + TilesAt(steps, Panels(a.left_rows - a.whole_rows), step, packed), kTileWords, 2 * kTile, kTile};
  }
  // The block at `step`, brought in while its panels are passed `passes` times.
  Fetch Ahead(int64_t step, int64_t panels, int64_t passes) const {
    const int64_t depth = StepsOfBlock(steps, step), lines = (kLinesOfStep + passes - 1) / passes;
    const auto* from = reinterpret_cast<const char*>(At(step, 0).words);
    if (InPlace(0)) return {from, depth * kTileStep * 2, a.row_stride * 2, panels * kTilePanel, lines};
    return {from, panels * depth * kLinesOfStep * 64, 0, 1, lines};
  }
};

}  // namespace

void tile_product(const TileProduct& a) {
  const int64_t steps = Steps(a.depth), row_panels = Panels(a.rows), column_panels = Panels(a.columns);
  const LeftPanels left = {a, steps, a.row / kTilePanel};
  const auto right_at = [&](int64_t step) {
    return a.right + TilesAt(steps, Panels(a.right_columns), step, a.column / kTilePanel);
  };
  Tiles tiles;
  for (int64_t step = 0; step < steps; step += kBlockSteps) {
    const int64_t depth = StepsOfBlock(steps, step), following = step + kBlockSteps;
    const float* right = right_at(step);
    Fetch next_left = {}, next_right = {};
    if (following < steps) {
      next_left = left.Ahead(following, row_panels, column_panels);
      next_right = {reinterpret_cast<const char*>(right_at(following)),
                    column_panels * StepsOfBlock(steps, following) * kLinesOfStep * 64, 0, 1,
                    (kLinesOfStep + row_panels - 1) / row_panels};
    } else {
      // What finishing reads.
      const Rows& read = a.out.preactivation.data ? a.out.preactivation : a.out.residual;
      const int64_t bytes = a.columns * ElementBytes(read.dtype), passes = row_panels * column_panels * depth;
      if (read.data)
        next_right = {read.data, bytes, a.out.stride * ElementBytes(read.dtype), a.rows,
                      (a.rows * (bytes / 64 + 1) + passes - 1) / passes};
      const LeftPanels next = {a, steps, a.next_row / kTilePanel};
      if (a.next_row >= 0) next_left = next.Ahead(0, Min(row_panels, Panels(a.left_rows) - next.first), column_panels);
    }
    for (int64_t n = 0; n < column_panels; ++n)
      for (int64_t m = 0; m < row_panels; ++m)
        TileBlock<2, 2>(tiles, depth, left.At(step, m), {right + n * depth * 2 * kTile, kTileWords, 2 * kTile, kTile},
                        a.sums + m * kTilePanel * a.sums_stride + n * kTilePanel, a.sums_stride, step > 0,
                        [&]() SY_INLINED {
                          next_left.Some();
                          next_right.Some();
                        });
  }
  FinishMatmul(a.out, a.rows, a.sums, a.sums_stride);
#if defined(__AVX512F__)
  if (a.out.streamed) _mm_sfence();
#endif
}

}  // namespace switchyard::SY_ISA
