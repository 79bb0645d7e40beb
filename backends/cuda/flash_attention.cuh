// What attention and its gradient share: the layout of packed qkv (B, T, 3, H, D), and the tiles that a block computes
// with. A block has kRows rows of its own (queries, or keys and values) and runs over tiles of kColumns others, both in
// shared memory. Two kinds of tiles do the arithmetic, and the kernels are written for either:
//   ScalarTiles  f32 in ordinary multiply-adds, for f32
//   MatrixTiles  bf16 or f16 by tensor cores, sums in f32
// In either, a thread has kHeld rows and kScores columns of a product of two tiles, and of each of its rows kWidth
// elements of a sum over D; Row, Column and Depth say which.
#pragma once

#include <cmath>

#include "backends/cuda/tensor_core.cuh"
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

// x, of which the compiler knows nothing: what follows from it is computed anew in each round of a loop, where it would
// be kept in registers otherwise.
__device__ __forceinline__ int32_t Anew(int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// One element of a tensor whose dtype is known.
template <sy_dtype kDtype>
__device__ __forceinline__ float At(const char* data, int64_t i) {
  if constexpr (kDtype == SY_F32) {
    return reinterpret_cast<const float*>(data)[i];
  } else {
    const uint32_t bits = reinterpret_cast<const uint16_t*>(data)[i];
    return kDtype == SY_BF16 ? FromBf16(bits) : FromF16(bits);
  }
}

struct AttentionTerms {
  View bias, mask;  // (H, T, T) and (G, T, T); may be absent

  // score = scale·score + bias + mask for this thread's rows from `row` and columns from `column` on; −∞ beyond the
  // tokens, so that they weigh nothing. Rows are queries and columns keys, or the other way round.
  template <bool kRowsAreKeys, typename Tiles>
  __device__ __forceinline__ void Finish(const AttentionShape& s, int64_t b, int64_t h, int64_t row, int64_t column,
                                         float (&score)[Tiles::kHeld][Tiles::kScores]) const {
    const auto rows_left = static_cast<int32_t>(s.tokens - row) - Tiles::Row(0);
    const auto columns_left = static_cast<int32_t>(s.tokens - column) - Tiles::Column(0);
#pragma unroll
    for (int r = 0; r < Tiles::kHeld; ++r) {
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        const bool inside = RowStep<Tiles>(r) < rows_left && ColumnStep<Tiles>(c) < columns_left;
        score[r][c] = inside ? s.scale * score[r][c] : -INFINITY;
      }
    }
    const int64_t plane = s.tokens * s.tokens;
    if (bias) AddPlane<kRowsAreKeys, Tiles>(s, bias, h * plane, row, column, score);
    if (mask) AddPlane<kRowsAreKeys, Tiles>(s, mask, b % s.groups * plane, row, column, score);
  }

 private:
  // From the thread's first row or column: constants, so that addresses differ by constants too.
  template <typename Tiles>
  __device__ static __forceinline__ int32_t RowStep(int r) {
    return Tiles::Row(r) - Tiles::Row(0);
  }
  template <typename Tiles>
  __device__ static __forceinline__ int32_t ColumnStep(int c) {
    return Tiles::Column(c) - Tiles::Column(0);
  }
  // Asks for the dtype once, not for every element.
  template <bool kRowsAreKeys, typename Tiles>
  __device__ static __forceinline__ void AddPlane(const AttentionShape& s, const View& x, int64_t plane, int64_t row,
                                                  int64_t column, float (&score)[Tiles::kHeld][Tiles::kScores]) {
    if (x.dtype == SY_F32) {
      AddPlaneOf<SY_F32, kRowsAreKeys, Tiles>(s, x.data, plane, row, column, score);
    } else if (x.dtype == SY_BF16) {
      AddPlaneOf<SY_BF16, kRowsAreKeys, Tiles>(s, x.data, plane, row, column, score);
    } else {
      AddPlaneOf<SY_F16, kRowsAreKeys, Tiles>(s, x.data, plane, row, column, score);
    }
  }
  template <sy_dtype kDtype, bool kRowsAreKeys, typename Tiles>
  __device__ static __forceinline__ void AddPlaneOf(const AttentionShape& s, const char* x, int64_t plane, int64_t row,
                                                    int64_t column, float (&score)[Tiles::kHeld][Tiles::kScores]) {
    const int64_t own = row + Tiles::Row(0), other = column + Tiles::Column(0);
    const auto tokens = static_cast<int32_t>(s.tokens);  // a tile's places lie less than 2³¹ elements apart
    const auto rows_left = static_cast<int32_t>(s.tokens - own), columns_left = static_cast<int32_t>(s.tokens - other);
    const int64_t first = plane + (kRowsAreKeys ? other * s.tokens + own : own * s.tokens + other);
    const char* const from = x + first * static_cast<int64_t>(kDtype == SY_F32 ? 4 : 2);
#pragma unroll
    for (int r = 0; r < Tiles::kHeld; ++r) {
#pragma unroll
      for (int c = 0; c < Tiles::kScores; ++c) {
        const int32_t i = kRowsAreKeys ? ColumnStep<Tiles>(c) : RowStep<Tiles>(r);
        const int32_t j = kRowsAreKeys ? RowStep<Tiles>(r) : ColumnStep<Tiles>(c);
        if (RowStep<Tiles>(r) < rows_left && ColumnStep<Tiles>(c) < columns_left)
          score[r][c] += At<kDtype>(from, i * tokens + j);
      }
    }
  }
};

// dbias is a sum over the batch, made in two levels whose order the shape alone decides: each block adds the samples of
// its part one after another and writes its sums to the part's slot (H, T, T) f32 of the workspace; then the slots are
// added in order.
struct BatchParts {
  static constexpr int64_t kMultiprocessors = 132;  // of an H100 or H200, whichever GPU it is: the same order on each
  int64_t samples, parts, elements;  // samples of a part, parts, elements of dbias

  // `blocks`: of one part; `all`: about how many there should be.
  BatchParts(const AttentionShape& s, int64_t blocks, int64_t all = 8 * kMultiprocessors)
      : samples(CeilDivide(s.batch, Largest<int64_t>(1, all / blocks))),
        parts(CeilDivide(s.batch, samples)),
        elements(s.heads * s.tokens * s.tokens) {}
  uint64_t Bytes() const { return parts == 1 ? 0 : SlotBytes() + RowSumBytes(elements, parts, true); }
  // Where the blocks write: one part needs no slot.
  float* Slots(char* workspace, float* dbias) const { return parts == 1 ? dbias : reinterpret_cast<float*>(workspace); }
  cudaError_t Sum(char* workspace, float* dbias, cudaStream_t stream) const {
    if (parts == 1) return cudaSuccess;
    return LaunchRowSum(workspace, SY_F32, elements, parts, true, false, dbias, workspace + SlotBytes(), stream);
  }

 private:
  uint64_t SlotBytes() const { return (static_cast<uint64_t>(parts * elements) * sizeof(float) + 255) / 256 * 256; }
};

// What both kinds do alike, given Row and Depth of `Tiles`.
template <typename Tiles>
struct AttentionTiles {
  // tile[r·stride + d] = x[base + (first + r)·step + d], zero beyond the tokens and the depth.
  template <int kDepth, int kThreads, typename Put>
  __device__ static void ForTile(const AttentionShape& s, const View& x, int64_t base, int64_t step, int64_t first,
                                 int rows, Put put) {
    constexpr int kPacks = kDepth / kPack;
    const int64_t from = base + first * step;  // the same for the whole block
    const auto left = static_cast<int32_t>(s.tokens - first), each = static_cast<int32_t>(step);
    for (int i = Anew(threadIdx.x); i < rows * kPacks; i += kThreads) {
      const int row = i / kPacks, column = i % kPacks * kPack;
      const int64_t at = from + static_cast<int64_t>(row) * each + column;
      float v[kPack] = {};
      if (row < left && column < s.depth) {
        if (s.depth % kPack == 0) {
          Load<kPack>(x, at, v);
        } else {
#pragma unroll
          for (int k = 0; k < kPack; ++k) v[k] = column + k < s.depth ? LoadOne(x, at + k) : 0;
        }
      }
      put(row, column, v);
    }
  }
  // The same where x has the tile's elements and rows of whole 16 bytes: without passing registers.
  template <int kDepth, int kThreads, int kStride, typename Element>
  __device__ static void CopyTile(const AttentionShape& s, const View& x, int64_t base, int64_t step, int64_t first,
                                  int rows, Element* tile) {
    constexpr int kEach = 16 / sizeof(Element), kCopies = kDepth / kEach;
    const auto* const all = reinterpret_cast<const Element*>(x.data);
    const auto* const from = all + base + first * step;  // the same for the whole block
    const auto left = static_cast<int32_t>(s.tokens - first), each = static_cast<int32_t>(step);
    for (int i = Anew(threadIdx.x); i < rows * kCopies; i += kThreads) {
      const int row = i / kCopies, column = i % kCopies * kEach;
      const bool inside = row < left && column < s.depth;
      CopyAsync(tile + row * kStride + column, inside ? from + static_cast<int64_t>(row) * each + column : all, inside);
    }
  }
  // x[base + (first + row)·step + d] = factor·sum, by way of shared memory, from where each thread takes eight elements
  // at a time. `shared` has room for kRows·(kMostDepth + 4) floats; the block has no copies under way there.
  template <int kHeld, int kWidth>
  __device__ static void StoreRows(const AttentionShape& s, const View& x, int64_t base, int64_t step, int64_t first,
                                   const float (&sum)[kHeld][kWidth], const float (&factor)[kHeld], float* shared) {
    constexpr int kStride = Tiles::kMostDepth + 4, kPacks = Tiles::kMostDepth / kPack;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kHeld; ++r) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) shared[Tiles::Row(r) * kStride + Tiles::Depth(k)] = factor[r] * sum[r][k];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < Tiles::kRows * kPacks; i += Tiles::kThreads) {
      const int row = i / kPacks, column = i % kPacks * kPack;
      if (first + row >= s.tokens || column >= s.depth) continue;
      const float* from = shared + row * kStride + column;
      const int64_t at = base + (first + row) * step + column;
      if (s.depth % kPack == 0) {
        const auto *low = reinterpret_cast<const float4*>(from), *high = low + 1;
        const float v[kPack] = {low->x, low->y, low->z, low->w, high->x, high->y, high->z, high->w};
        Store<kPack>(x, at, v);
      } else {
        for (int k = 0; k < kPack && column + k < s.depth; ++k) StoreOne(x, at + k, from[k]);
      }
    }
  }
  // Over the threads that share a row.
  template <typename Combine>
  __device__ static float ReduceRow(float x, Combine combine) {
#pragma unroll
    for (int bits = Tiles::kSharers / 2; bits > 0; bits /= 2) x = combine(x, __shfl_xor_sync(~0u, x, bits));
    return x;
  }
};

// Threads form a grid of 16 × kRows/4, each with four rows (4·y …) and every sixteenth column (x, x + 16, …).
template <int kDepth, int kRowCount, int kColumnCount>
struct ScalarTiles : AttentionTiles<ScalarTiles<kDepth, kRowCount, kColumnCount>> {
  using Element = float;
  using Base = AttentionTiles<ScalarTiles>;
  static constexpr int kMostDepth = kDepth;
  static constexpr int kRows = kRowCount, kColumns = kColumnCount, kSharers = 16, kThreads = kSharers * kRows / 4;
  static constexpr int kStride = kDepth + 4;  // of a row of a tile: 16-byte aligned, banks apart
  static constexpr int kWeightStride = kColumns + 4;
  static constexpr size_t kOwnBytes = kRows * kStride * sizeof(float), kOtherBytes = kColumns * kStride * sizeof(float);
  static constexpr size_t kWeightBytes = kRows * kWeightStride * sizeof(float);
  static constexpr int kHeld = 4, kScores = kColumns / kSharers, kWidth = kDepth / kSharers;

  __device__ static int X() { return threadIdx.x % kSharers; }
  __device__ static int Row(int r) { return threadIdx.x / kSharers * 4 + r; }
  __device__ static int Column(int c) { return X() + c * kSharers; }
  __device__ static int Depth(int k) { return X() + k * kSharers; }

  // Also asks for copies, which the thread has to commit and wait for.
  __device__ static void LoadTile(const AttentionShape& s, const View& x, int64_t base, int64_t step, int64_t first,
                                  int rows, float* tile) {
    if (x.dtype == SY_F32 && s.depth % kPack == 0) {
      Base::template CopyTile<kDepth, kThreads, kStride>(s, x, base, step, first, rows, tile);
      return;
    }
    Base::template ForTile<kDepth, kThreads>(s, x, base, step, first, rows, [&](int row, int column, const float* v) {
      auto* to = reinterpret_cast<float4*>(tile + row * kStride + column);
      to[0] = make_float4(v[0], v[1], v[2], v[3]);
      to[1] = make_float4(v[4], v[5], v[6], v[7]);
    });
  }

  // product = own row · other row
  __device__ static void Multiply(const float* own, const float* other, float (&product)[kHeld][kScores]) {
#pragma unroll
    for (int r = 0; r < kHeld; ++r) {
#pragma unroll
      for (int c = 0; c < kScores; ++c) product[r][c] = 0;
    }
#pragma unroll 4
    for (int d = 0; d < kDepth; d += 4) {
      float4 a[kHeld], b[kScores];
#pragma unroll
      for (int r = 0; r < kHeld; ++r) a[r] = *reinterpret_cast<const float4*>(own + Row(r) * kStride + d);
#pragma unroll
      for (int c = 0; c < kScores; ++c) b[c] = *reinterpret_cast<const float4*>(other + Column(c) * kStride + d);
#pragma unroll
      for (int r = 0; r < kHeld; ++r) {
#pragma unroll
        for (int c = 0; c < kScores; ++c)
          product[r][c] += a[r].x * b[c].x + a[r].y * b[c].y + a[r].z * b[c].z + a[r].w * b[c].w;
      }
    }
  }

  // sum += Σ over the other rows of w·other. The weights pass through shared memory, within the warp that has the rows.
  __device__ static void AddWeighted(const float (&w)[kHeld][kScores], const float* other, float* weights,
                                     float (&sum)[kHeld][kWidth]) {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kHeld; ++r) {
#pragma unroll
      for (int c = 0; c < kScores; ++c) weights[Row(r) * kWeightStride + Column(c)] = w[r][c];
    }
    __syncwarp();
    for (int j = 0; j < kColumns; j += 4) {
      float4 four[kHeld];
#pragma unroll
      for (int r = 0; r < kHeld; ++r) four[r] = *reinterpret_cast<const float4*>(weights + Row(r) * kWeightStride + j);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float* column = other + j * kStride + Depth(k);
        const float b[4] = {column[0], column[kStride], column[2 * kStride], column[3 * kStride]};
#pragma unroll
        for (int r = 0; r < kHeld; ++r)
          sum[r][k] += four[r].x * b[0] + four[r].y * b[1] + four[r].z * b[2] + four[r].w * b[3];
      }
    }
  }
};

// `to` += a·b, of two neighbouring fragments of eight columns, which are four elements of each of the thread's two rows
// from `first` on.
template <sy_dtype kDtype, int kCount>
__device__ __forceinline__ void AddFragments(const uint32_t (&a)[4], const uint32_t (&b)[4], int first,
                                             float (&to)[2][kCount]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int c = first + 2 * half;
    float sum[4] = {to[0][c], to[0][c + 1], to[1][c], to[1][c + 1]};
    MultiplyFragments<kDtype>(a, b[2 * half], b[2 * half + 1], sum);
    to[0][c] = sum[0], to[0][c + 1] = sum[1], to[1][c] = sum[2], to[1][c + 1] = sum[3];
  }
}

// A warp has sixteen rows; a thread has its fragments' (tensor_core.cuh): rows g and g + 8, columns 2t and 2t + 1 of
// every eight.
template <sy_dtype kDtype, int kDepth, int kRowCount, int kColumnCount>
struct MatrixTiles : AttentionTiles<MatrixTiles<kDtype, kDepth, kRowCount, kColumnCount>> {
  using Element = uint16_t;
  using Base = AttentionTiles<MatrixTiles>;
  static constexpr int kMostDepth = kDepth;
  static constexpr int kRows = kRowCount, kColumns = kColumnCount, kSharers = 4, kThreads = 2 * kRows;
  static constexpr int kStride = kDepth + 8;  // of a row of a tile: 16-byte aligned, banks apart
  static constexpr size_t kOwnBytes = kRows * kStride * sizeof(Element);
  static constexpr size_t kOtherBytes = kColumns * kStride * sizeof(Element), kWeightBytes = 0;
  static constexpr int kHeld = 2, kScores = kColumns / 4, kWidth = kDepth / 4;
  static_assert(kDepth % 16 == 0 && kRows % 16 == 0 && kColumns % 16 == 0);

  __device__ static int Lane() { return threadIdx.x % 32; }
  __device__ static int FirstRow() { return threadIdx.x / 32 * 16; }
  __device__ static int Row(int r) { return FirstRow() + Lane() / 4 + 8 * r; }
  __device__ static int Column(int c) { return c / 2 * 8 + Lane() % 4 * 2 + c % 2; }
  __device__ static int Depth(int k) { return Column(k); }

  __device__ static void LoadTile(const AttentionShape& s, const View& x, int64_t base, int64_t step, int64_t first,
                                  int rows, Element* tile) {
    if (x.dtype == kDtype && s.depth % kPack == 0) {
      Base::template CopyTile<kDepth, kThreads, kStride>(s, x, base, step, first, rows, tile);
      return;
    }
    Base::template ForTile<kDepth, kThreads>(s, x, base, step, first, rows, [&](int row, int column, const float* v) {
      *reinterpret_cast<uint4*>(tile + row * kStride + column) =
          make_uint4(PackTwo(v[0], v[1], kDtype), PackTwo(v[2], v[3], kDtype), PackTwo(v[4], v[5], kDtype),
                     PackTwo(v[6], v[7], kDtype));
    });
  }

  __device__ static void Multiply(const Element* own, const Element* other, float (&product)[kHeld][kScores]) {
    const int row = Lane() % 8, matrix = Lane() / 8;
#pragma unroll
    for (int c = 0; c < kScores; ++c) product[0][c] = product[1][c] = 0;
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      uint32_t a[4];
      LoadMatrices(own + (FirstRow() + matrix % 2 * 8 + row) * kStride + d + matrix / 2 * 8, a);
#pragma unroll
      for (int column = 0; column < kColumns; column += 16) {
        uint32_t b[4];
        LoadMatrices(other + (column + matrix / 2 * 8 + row) * kStride + d + matrix % 2 * 8, b);
        AddFragments<kDtype>(a, b, column / 4, product);
      }
    }
  }

  // The weights are rounded to the dtype; a product's fragments are those of the next one's A.
  __device__ static void AddWeighted(const float (&w)[kHeld][kScores], const Element* other, float*,
                                     float (&sum)[kHeld][kWidth]) {
    const int row = Lane() % 8, matrix = Lane() / 8;
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
      const int c = column / 4;
      const uint32_t a[4] = {PackTwo(w[0][c], w[0][c + 1], kDtype), PackTwo(w[1][c], w[1][c + 1], kDtype),
                             PackTwo(w[0][c + 2], w[0][c + 3], kDtype), PackTwo(w[1][c + 2], w[1][c + 3], kDtype)};
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t b[4];
        LoadMatricesTransposed(other + (column + matrix % 2 * 8 + row) * kStride + d + matrix / 2 * 8, b);
        AddFragments<kDtype>(a, b, d / 4, sum);
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
  constexpr int64_t kMostTokens = 65535 * 16;  // blocks of a grid's second and third axis, of at least 16 rows
  if (shape->batch * shape->heads > kMostIndices || shape->tokens > kMostTokens)
    return complain("too many tokens or heads");
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

inline bool CheckAttentionForward(const Request& r, AttentionShape* shape) {
  return CheckAttention(r, 1, 2, shape) &&
         r.RequireElements(r.outputs[0], shape->batch * shape->tokens * shape->heads * shape->depth, "out") &&
         r.RequireElements(r.outputs[1], shape->batch * shape->heads * shape->tokens, "logsumexp");
}
inline bool CheckAttentionBackward(const Request& r, AttentionShape* shape) {
  const bool dbias = r.outputs.size() == 2;
  if (!CheckAttention(r, 4, dbias ? 2 : 1, shape)) return false;
  const int64_t rows = shape->batch * shape->tokens * shape->heads;
  if (!r.RequireElements(r.inputs[1], rows * shape->depth, "out") ||
      !r.RequireElements(r.inputs[2], rows, "logsumexp") || !r.RequireDtype(r.inputs[2], SY_F32, "logsumexp") ||
      !r.RequireElements(r.inputs[3], rows * shape->depth, "dout") ||
      !r.RequireDimsOf(r.outputs[0], r.inputs[0], "dqkv"))
    return false;
  if (!dbias) return true;
  if (!r.Attributes<sy_attention_attributes>().bias)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: dbias without a bias", r.op), false;
  return r.RequireElements(r.outputs[1], shape->heads * shape->tokens * shape->tokens, "dbias") &&
         r.RequireDtype(r.outputs[1], SY_F32, "dbias");
}

}  // namespace switchyard
