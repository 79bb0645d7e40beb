// The functions that are compiled once per instruction set, and the table through which the ops call them. A range
// function works on rows [begin, end) in one thread; the op files of the folder above split the rows over threads, so
// that everything here is plain, serial and without state. Float tensors are (pointer, dtype) pairs: rows are widened
// to f32 in `scratch`, computed, and rounded on the way out; f32 rows are used where they lie.
#pragma once

#include <stdint.h>

#include "core/abi/base.h"
#include "core/abi/ops.h"

namespace switchyard {

// A float tensor of rows: f32, bf16 or f16; data == nullptr where the op lacks it.
struct Rows {
  char* data;
  sy_dtype dtype;
};

// h = x [+ residual]; y = (h − mean)·rstd·gamma + beta over rows of `columns`. scratch: 3·columns floats.
struct LayerNormRows {
  int64_t columns;
  float eps;
  Rows x, residual, gamma, beta, y, mean, rstd, sum;
};
// dh, and sums of dγ and dβ over the rows into the f32 arrays passed along. scratch: 4·columns floats.
struct LayerNormGradientRows {
  int64_t columns;
  Rows h, gamma, mean, rstd, dy, dsum, dh;
};
// y = softmax(x), or dx = y·(dy − Σ y·dy). scratch: 3·columns floats.
struct SoftmaxRows {
  int64_t columns;
  Rows x, y, dy, dx;
};
// scratch: 2·columns floats. labels XOR targets.
struct CrossEntropyRows {
  int64_t columns;
  float smoothing;
  int32_t ignore_index;
  const int32_t* labels;
  Rows logits, targets, loss, logsumexp, dloss, dlogits;
};
// y = act((x − mean)·scale + beta [+ residual]) over rows of `columns`; mean, scale and beta are f32 (columns).
struct BatchNormRows {
  int64_t columns;
  int32_t relu;
  const float *mean, *scale, *beta;
  Rows x, residual, y;
};
// g = dy, or 0 where y ≤ 0 if y is given; dx = scale·(g − mean_g − (x − mean)·slope); dresidual = g.
struct BatchNormGradientRows {
  int64_t columns;
  const float *mean, *scale, *mean_g, *slope;
  Rows x, dy, y, dx, dresidual;
};
// A row of `columns` channels, at element `at` of `to`, that is made of `count` rows of `from`, at their elements `at`.
struct WindowTerm {
  int64_t at;
  float weight;
  int32_t tap;
};
struct WindowRow {
  int64_t columns, at, count;
  const WindowTerm* terms;
  Rows from, to;
  uint16_t* taps;
};
// `count` elements of one tensor; m and v may be nullptr. Steps: see optimizer_update in core/abi/ops.h.
struct OptimizerStep {
  int32_t kind, nesterov;
  int32_t first;  // 1 at the first update
  float lr, weight_decay, momentum, dampening, beta1, beta2, eps, gradient_scale;
  float step_size, inverse_root_correction2;  // lr/(1−β1ᵗ) and 1/√(1−β2ᵗ)
  float inverse_correction1;                  // 1/(1−β1ᵗ)
  float gradient_share;                       // LAMB: what of g is added to m
  int32_t decoupled;                          // LAMB: adam_w_mode
};
struct OptimizerChunk {
  const float *p, *m, *v;
  const char* g;
  sy_dtype g_dtype;
  float *p_out, *m_out, *v_out;
  Rows h_out;   // a half type, or none
  float ratio;  // LAMB, LARS: r of the chunk's tensor
  int64_t count;
};
// The rows of a, or of `drawn` (or none) where they are zero, made orthonormal; q may be a.
struct OrthonormalizeMatrix {
  int64_t rows, columns;
  const float *a, *drawn;
  float* q;
};
// Elements [begin, end) of one sample. scratch: 2·1024 floats.
struct DropoutSample {
  uint64_t key;
  uint32_t sample, step0, step1;
  float p;
  int32_t per_sample;
  Rows x, y;  // at element 0 of the sample
};

// Attention for one (batch, head): q, k, v, … are (tokens, head_dim) with rows `stride` elements apart; all of one
// dtype, f32 or bf16. bias and mask are (tokens, tokens) or nullptr. `scratch` holds attention_scratch bytes, aligned
// to 64. `next`: what the thread computes afterwards, of the same sizes, whose rows the kernels on vectors bring into
// the caches meanwhile; or nullptr.
struct AttentionHead {
  int64_t tokens, head_dim, stride, out_stride;
  float scale;
  sy_dtype dtype;
  const char *q, *k, *v, *bias, *mask;
  sy_dtype bias_dtype, mask_dtype;
  char* out;           // forward: written; backward: read
  float* logsumexp;    // (tokens)
  const char* dout;    // backward, out_stride
  char *dq, *dk, *dv;  // backward, stride
  float* dbias;        // backward: (tokens, tokens), added to; or nullptr
  char* scratch;
  const AttentionHead* next;
};

// Products on tiles: a bf16 factor, packed for them (tile_matmul.cc says how) into panels of 32 lines, which are rows
// of a left factor and columns of a right one, and steps of 32 elements along the inner dimension.
constexpr int64_t kTilePanel = 32, kTileStep = 32;
struct TilePacking {
  const char* from;          // the first element of the first line
  int64_t stride;            // elements from line to line if the depth is contiguous, else along the depth
  bool depth_is_contiguous;  // pieces are then panels, else steps
  bool right;
  int64_t lines, depth;
  float* to;  // 2 bytes an element of whole panels and steps
};
// What follows the sums of a matmul: out = act(alpha·sums + bias) + residual [+ out], saved what the activation takes;
// or with a preactivation (alpha·sums + bias)·act'(preactivation) instead of act(…). Rows are `stride` elements apart.
// streamed: what is written goes past the caches, whose lines are not read first then; a store fence is to follow.
struct MatmulRows {
  int64_t columns, stride;
  float alpha;
  int32_t activation;
  bool accumulate, streamed;
  Rows bias, preactivation, saved, residual, out;
};
// Rows [row, row + rows) and columns [column, column + columns) of left·right, both of which begin with a panel; `out`
// begins there too. sums: as many rows and columns, of whole panels. next_row: where the rows begin that are multiplied
// after these, or −1; they are fetched in advance.
struct TileProduct {
  const char* rows_in_place;  // the first `whole_rows` rows of the left factor, whole panels, as they lie, …
  int64_t row_stride, whole_rows;
  const float *left, *right;  // … the rest of them, packed; the right factor, packed
  int64_t left_rows, right_columns, depth;
  int64_t row, rows, column, columns, next_row;
  float* sums;
  int64_t sums_stride;
  MatmulRows out;
};

// clang-format off
#define SY_VECTOR_KERNELS(K)                                                                                              \
  K(void, to_float, (sy_dtype dtype, const void* from, float* to, int64_t n))                                             \
  K(void, from_float, (sy_dtype dtype, const float* from, void* to, int64_t n))                                           \
  K(void, instruction, (const sy_instruction& i, float* out, const float* a, const float* b, const float* c, int64_t n))  \
  /* y = act(x); y *= act'(x) */                                                                                          \
  K(void, activate, (int32_t activation, Rows x, Rows y, int64_t begin, int64_t end))                                     \
  K(void, scale_by_activation_gradient, (int32_t activation, Rows x, Rows y, int64_t begin, int64_t end))                 \
  /* One number out of n, and n numbers updated with n more; SY_REDUCE_* */                                               \
  K(float, reduce, (int32_t reduction, const float* x, int64_t n))                                                        \
  K(void, reduce_into, (int32_t reduction, float* accumulator, const float* x, int64_t n))                                \
  /* accumulator[c] += Σ over `rows` rows of `stride` elements, columns [0, n) */                                         \
  K(void, add_columns, (Rows x, int64_t rows, int64_t stride, int64_t n, float* accumulator))                             \
  /* accumulator[c] += Σ x·y over `rows` rows, those of x and y some elements apart, columns [0, n) */                     \
  K(void, add_products, (Rows x, int64_t x_stride, Rows y, int64_t y_stride, int64_t rows, int64_t n, float* accumulator)) \
  K(void, layer_norm, (const LayerNormRows& a, int64_t begin, int64_t end, float* scratch))                               \
  K(void, layer_norm_backward, (const LayerNormGradientRows& a, int64_t begin, int64_t end, float* dgamma, float* dbeta,  \
                                float* scratch))                                                                          \
  /* Per column of rows [begin, end): the mean, and Σ (x − mean)² */                                                     \
  K(void, batch_norm_statistics, (Rows x, int64_t columns, int64_t begin, int64_t end, float* mean, float* squares))      \
  K(void, batch_norm, (const BatchNormRows& a, int64_t begin, int64_t end))                                               \
  /* with_x[c] += Σ g·(x − mean); plain[c] += Σ g */                                                                      \
  K(void, batch_norm_sums, (const BatchNormGradientRows& a, int64_t begin, int64_t end, float* with_x, float* plain))     \
  K(void, batch_norm_backward, (const BatchNormGradientRows& a, int64_t begin, int64_t end))                              \
  /* to = Σ weight·from */                                                                                                \
  K(void, window_sum, (const WindowRow& a))                                                                               \
  /* to (or none) = the largest of from; taps (or none), like to, = the tap of the first one; at least one term */        \
  K(void, window_largest, (const WindowRow& a))                                                                           \
  /* to = Σ from where taps, like from, say the term's tap */                                                             \
  K(void, window_chosen, (const WindowRow& a))                                                                            \
  K(void, softmax, (const SoftmaxRows& a, int64_t begin, int64_t end, float* scratch))                                    \
  K(void, softmax_backward, (const SoftmaxRows& a, int64_t begin, int64_t end, float* scratch))                           \
  K(void, cross_entropy, (const CrossEntropyRows& a, int64_t begin, int64_t end, float* scratch))                         \
  K(void, cross_entropy_backward, (const CrossEntropyRows& a, int64_t begin, int64_t end, float* scratch))                \
  K(void, optimizer_update, (const OptimizerStep& step, const OptimizerChunk& chunk))                                     \
  /* LAMB: m' and v', which optimizer_update then reads; Σp² and Σu². LARS: Σp² and Σg² */                                \
  K(void, optimizer_norms, (const OptimizerStep& step, const OptimizerChunk& chunk, float* squares))                      \
  K(void, orthonormalize, (const OrthonormalizeMatrix& a))                                                                \
  K(void, dropout, (const DropoutSample& a, int64_t begin, int64_t end, float* scratch))                                  \
  K(uint64_t, attention_scratch, (int64_t tokens, int64_t head_dim, sy_dtype dtype, bool backward))                       \
  K(void, attention, (const AttentionHead& a))                                                                            \
  K(void, attention_backward, (const AttentionHead& a))                                                                   \
  K(bool, has_tiles, ())                                                                                                  \
  K(void, tile_pack, (const TilePacking& a, int64_t piece))                                                               \
  K(void, tile_product, (const TileProduct& a))                                                                           \
  K(void, finish_matmul, (const MatmulRows& a, int64_t rows, const float* sums, int64_t sums_stride))
// clang-format on

struct VectorKernels {
  const char* isa;
#define SY_VECTOR_KERNEL(result, name, arguments) result(*name) arguments;
  SY_VECTOR_KERNELS(SY_VECTOR_KERNEL)
#undef SY_VECTOR_KERNEL
};

// The table for the best instruction set that this machine has, or the one that SWITCHYARD_CPU_ISA named when the
// plugin was loaded.
const VectorKernels& Vector();

#if defined(SY_ISA)
namespace SY_ISA {
#define SY_VECTOR_KERNEL(result, name, arguments) result name arguments;
SY_VECTOR_KERNELS(SY_VECTOR_KERNEL)
#undef SY_VECTOR_KERNEL
}  // namespace SY_ISA
#endif

}  // namespace switchyard
