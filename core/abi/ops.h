/* The ops: name, inputs → outputs, attributes, formula. This page is the specification that every backend implements and that
 * backends/reference spells out in plain C++ with fp64 accumulation.
 *
 * Conventions. Tensors are row-major contiguous. Images are NHWC, volumes NDHWC; `spatial` below is H,W or D,H,W. Reductions and products
 * accumulate at least in f32; a result of a half type is rounded to nearest, ties to even, what is too large becomes infinite, NaN stays
 * NaN. Floating tensors may be f32, bf16 or f16, mixed within one op where sensible (statistics, gammas and betas,
 * gains and loss values are f32; optimizer state is f32); labels and indices are i32. An input marked ? may be absent at the end of the list
 * or as the attribute says. "1" is a tensor of one element. A backend answers SY_UNSUPPORTED to whatever it does not take.
 *
 * Attributes are plain values: no pointers, no header (their size is sy_prepare_request.attributes_size), no padding. They may be compared
 * and hashed as bytes, and grow at their end as other structs do.
 */
#ifndef SWITCHYARD_ABI_OPS_H_
#define SWITCHYARD_ABI_OPS_H_

#include "core/abi/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SY_ACTIVATION_NONE = 0, SY_ACTIVATION_GELU = 1 /* x·Φ(x), exact erf */, SY_ACTIVATION_GELU_TANH = 2, SY_ACTIVATION_RELU = 3, SY_ACTIVATION_SILU = 4 };

/* matmul: a, b [, bias][, preactivation][, residual] → c [, preactivation | bias_gradient | column_sums]
 * a (…, M, K) or (…, K, M) if transpose_a; b (…, K, N) or (…, N, K) if transpose_b; equal leading dims; c (…, M, N).
 *   t = alpha·op(a)·op(b); if bias: t += bias (N)
 *   if activation_gradient: t *= act'(preactivation input (…, M, N)); else: if save_preactivation: output 1 = t; t = act(t)
 *   if residual: t += residual (…, M, N); c = t
 *   if bias_gradient: output 1 (M) f32 = Σ over K of op(a)   (the bias gradient beside a weight gradient dyᵀ·x)
 *   if column_sums: output 1 (N) f32 = Σ over all rows of c, before or after its rounding   (the bias gradient beside the dy that it sums) */
typedef struct sy_matmul_attributes {
  int32_t transpose_a, transpose_b;
  float alpha;
  int32_t bias, activation, save_preactivation, activation_gradient, residual, bias_gradient, column_sums; /* 0/1, activation SY_ACTIVATION_* */
} sy_matmul_attributes;

/* attention: qkv (B, T, 3, H, D) [, bias (H, T, T)][, mask (G, T, T)] → out (B, T, H, D), logsumexp (B, H, T) f32
 *   s = scale·q·kᵀ + bias[h] + mask[b mod G]; out = softmax(s)·v; logsumexp = log Σ exp(s)
 * attention_backward: qkv, out, logsumexp, dout (B, T, H, D) [, bias][, mask] → dqkv (B, T, 3, H, D) [, dbias (H, T, T) f32] */
typedef struct sy_attention_attributes {
  float scale;
  int32_t bias, mask; /* 0/1 */
} sy_attention_attributes;
/* window_attention: qkv, rows (W, T) i32 [, bias][, mask] → out, logsumexp: attention, with these attributes, of samples whose tokens lie
 *   scattered in maps of W samples. rows is a permutation of 0 … W·T − 1: token t of sample b is row ⌊b/W⌋·W·T + rows[b mod W, t] of qkv
 *   and of out, taken as B·T rows; an index is clamped to the map. logsumexp, bias and mask are as in attention. No graph has it before
 *   the program has made it of attention and moves of rows, where a plugin takes it: one that lacks it lacks nothing
 * window_attention_backward: qkv, out, logsumexp, dout, rows [, bias][, mask] → dqkv [, dbias]: dout and dqkv lie as out and qkv do */

/* layer_norm: x (…, C) [, residual (…, C)], gamma (C), beta (C) → y (…, C), mean (…), rstd (…) [, sum (…, C)]      statistics f32
 *   h = x or, if residual, what output 3 keeps of x + residual: it is rounded before it is normalised; y = (h − mean)·rstd·gamma + beta; rstd = 1/√(var + eps), biased variance
 * layer_norm_backward: h (…, C), gamma, mean, rstd, dy (…, C) [, dsum (…, C)] → dh (…, C), dgamma (C) f32, dbeta (C) f32 [, column_sums (C) f32]
 *   dh is the gradient through the norm, plus dsum if residual (so that dh serves x and residual alike); if column_sums: output 3 = Σ over
 *   all rows of dh, before or after its rounding (the gradient of the bias of a product whose result dh is the gradient of) */
typedef struct sy_layer_norm_attributes {
  float eps;
  int32_t residual;    /* 0/1; in layer_norm_backward: dsum is given */
  int32_t column_sums; /* 0/1; in layer_norm: 0 */
} sy_layer_norm_attributes;

/* softmax: x (…, C) → y: over the last axis.   softmax_backward: y, dy → dx = y·(dy − Σ y·dy).   No attributes. */

/* cross_entropy: logits (N, C), labels (N) i32 | targets (N, C) → loss (N) f32, logsumexp (N) f32
 *   y = onehot(label)·(1−s) + s/C (or targets·(1−s) + s/C); loss = −Σ y·logsoftmax(logits); a label equal to ignore_index or negative gives loss 0, one beyond C gives NaN
 * cross_entropy_backward: logits, labels|targets, logsumexp, dloss (N) f32 → dlogits (N, C) = dloss·(softmax(logits)·Σy − y), 0 where ignored */
typedef struct sy_cross_entropy_attributes {
  float label_smoothing;
  int32_t ignore_index;
  int32_t soft_targets; /* 0/1 */
} sy_cross_entropy_attributes;

/* label_rank: logits (N, C), labels (N) i32 → rank (N) i32: how many classes score higher than the label's (ties: the lower index wins; NaN on
 * either side counts as higher); C where the label is negative or ≥ C. top-k is rank < k. No attributes. */

/* pointwise: n inputs, each broadcastable to the common output dims (numpy rules) → 1 … 8 outputs: a straight-line program in f32.
 * Operand k < n is input k; operand n + j is the result of instruction j. outputs[o] is an operand. A program without instructions
 * copies, converts dtype, or broadcasts. */
enum {
  SY_PW_CONSTANT = 0, /* value */
  SY_PW_ADD, SY_PW_SUB, SY_PW_MUL, SY_PW_DIV, SY_PW_MAX, SY_PW_MIN, SY_PW_POW, /* a, b */
  SY_PW_NEG, SY_PW_ABS, SY_PW_EXP, SY_PW_LOG, SY_PW_SQRT, SY_PW_RSQRT, SY_PW_RECIPROCAL, SY_PW_TANH, SY_PW_SIGMOID, SY_PW_ERF, SY_PW_FLOOR, /* a */
  SY_PW_RELU, SY_PW_GELU, SY_PW_GELU_TANH, SY_PW_SILU,                     /* a */
  SY_PW_RELU_GRAD, SY_PW_GELU_GRAD, SY_PW_GELU_TANH_GRAD, SY_PW_SILU_GRAD, /* the derivative at a */
  SY_PW_LESS, SY_PW_LESS_EQUAL, SY_PW_EQUAL,                               /* 1 or 0 */
  SY_PW_SELECT,                                                            /* a ≠ 0 ? b : c */
  SY_PW_IS_FINITE,                                                         /* 1 or 0 */
  SY_PW_OP_COUNT
};
/* How many operands an instruction reads: none, a, a and b, or all three. */
static inline int32_t sy_pointwise_operands(int32_t op) {
  if (op == SY_PW_CONSTANT) return 0;
  if (op == SY_PW_SELECT) return 3;
  return (op >= SY_PW_ADD && op <= SY_PW_POW) || (op >= SY_PW_LESS && op <= SY_PW_EQUAL) ? 2 : 1;
}
typedef struct sy_instruction {
  int32_t op, a, b, c;
  float value;
} sy_instruction;
#define SY_PW_MAX_INSTRUCTIONS 32
#define SY_PW_MAX_OUTPUTS 8
typedef struct sy_pointwise_attributes {
  uint32_t instruction_count, output_count;
  int32_t outputs[SY_PW_MAX_OUTPUTS];
  sy_instruction instructions[SY_PW_MAX_INSTRUCTIONS];
} sy_pointwise_attributes;

/* reduce: x → y: over the axes whose bit is set, times `scale`. y has those axes with extent 1, or lacks them; where none is left it may
 * also be (1). max and min keep NaN. */
enum { SY_REDUCE_SUM = 0, SY_REDUCE_MAX = 1, SY_REDUCE_MIN = 2, SY_REDUCE_SUM_OF_SQUARES = 3 };
typedef struct sy_reduce_attributes {
  int32_t reduction;
  uint32_t axes; /* bit mask */
  float scale;   /* mean: 1/count */
} sy_reduce_attributes;

/* squared_norm: t0 … tn-1 (any shapes) → 1 f32: Σ over all tensors and elements of t²; inf or nan inputs make it inf or nan. No attributes. */

/* transpose: x → y, y.dims[i] = x.dims[axes[i]].   slice: y[i] = x[start + i·step] per axis.   pad: y = x with `before` and `after` filled.
 * roll: y[i] = x[(i − shift) mod n] per axis (as torch.roll).   concat: x0 … xn-1 → y along axis[0]. */
typedef struct sy_axes_attributes { /* transpose: axes; roll: shift; concat, flip: values[0] is the axis */
  int32_t values[SY_MAX_RANK];
} sy_axes_attributes;
typedef struct sy_slice_attributes {
  int64_t start[SY_MAX_RANK], step[SY_MAX_RANK];
} sy_slice_attributes;
typedef struct sy_pad_attributes {
  int64_t before[SY_MAX_RANK], after[SY_MAX_RANK];
  float value;
  uint32_t reserved; /* 0 */
} sy_pad_attributes;

/* gather: table (V, …R), indices i32 (…I) → y (…I, …R): rows; an index outside [0, V) is clamped.
 * scatter_add: indices (…I), updates (…I, …R) → table (V, …R), zero where nothing is added; indices are clamped as in gather, so that each is
 * the other's gradient. Both without attributes. */

/* dropout: x (N·k rows in all, any shape), sample_ids (S) i32, step (2) i32 → y. A sample is numel/S consecutive elements.
 *   element e of sample s: word = Philox4x32-10(key, counter {e/4, sample_ids[s], step[0], step[1]})[e mod 4]; keep iff (word >> 8)·2⁻²⁴ ≥ p
 *   y = keep ? x/(1−p) : 0. per_sample (drop_path): e = 0 for the whole sample. Its gradient is itself, applied to dy. */
typedef struct sy_dropout_attributes {
  uint64_t key;
  float p;
  int32_t per_sample;
} sy_dropout_attributes;

/* optimizer_update: lr (1), update (1), gradient_scale (1), finite (1), then for each tensor k: p, g [, m][, v]
 *   → for each tensor k: p' [, m'][, v'][, h'].  All f32 but g, which may be half, and h', which is half. If finite is 0 the outputs equal the inputs.
 *   h' if half_copies: p' in the dtype of h'. ‖·‖ is the Euclidean norm of one tensor
 * update: updates made, a whole number below 2^24; t = update + 1; g *= gradient_scale
 *   SGD:   g += wd·p; with momentum: m = momentum·m + (1−dampening)·g (m = g at t = 1), g = nesterov ? g + momentum·m : m; p −= lr·g
 *   ADAM:  g += wd·p;   ADAMW: p −= lr·wd·p first;   m = β1·m + (1−β1)·g; v = β2·v + (1−β2)·g²;
 *          p −= lr·(m/(1−β1ᵗ)) / (√(v/(1−β2ᵗ)) + eps)
 *   LAMB:  g += wd·p unless adam_w_mode; m = β1·m + (grad_averaging ? 1−β1 : 1)·g; v as ADAM;
 *          u = (m/(1−β1ᵗ)) / (√(v/(1−β2ᵗ)) + eps), + wd·p if adam_w_mode; p −= lr·r·u
 *          r = ‖p‖/‖u‖ where neither is 0 and (wd ≠ 0 or use_nvlamb), else 1                       (You et al. 2020)
 *   LARS:  r = trust_coefficient·‖p‖ / (‖g‖ + wd·‖p‖ + eps) where neither ‖p‖ nor ‖g‖ is 0 and wd ≠ 0, else 1; g = lr·r·(g + wd·p);
 *          m = momentum·m + g (m = g at t = 1); p −= nesterov ? g + momentum·m : m                 (You et al. 2017) */
enum { SY_OPTIMIZER_SGD = 0, SY_OPTIMIZER_ADAM = 1, SY_OPTIMIZER_ADAMW = 2, SY_OPTIMIZER_LAMB = 3, SY_OPTIMIZER_LARS = 4 };
typedef struct sy_optimizer_attributes {
  int32_t kind;
  float momentum, dampening; /* SGD, LARS: m exists iff momentum ≠ 0 */
  int32_t nesterov;
  float beta1, beta2, eps, weight_decay;
  int32_t adam_w_mode, grad_averaging, use_nvlamb; /* 0/1, of LAMB */
  float trust_coefficient;                         /* of LARS */
  int32_t half_copies;                             /* 0/1 */
} sy_optimizer_attributes;

/* convolution: x (N, spatial, C), w (K, kernel, C/groups) [, bias (K)] → y (N, spatial', K)
 * convolution_backward_data: dy, w → dx.   convolution_backward_weights: x, dy → dw.
 * spatial' = ⌊(n + before + after − dilation·(k−1) − 1)/stride⌋ + 1 */
typedef struct sy_convolution_attributes {
  int32_t spatial_rank; /* 2 or 3 */
  int32_t stride[3], dilation[3], before[3], after[3];
  int32_t groups, bias;
} sy_convolution_attributes;

/* pool: x (N, spatial, C) → y (N, spatial', C).   pool_backward: x, dy → dx (max: the first maximum of a window in row-major order takes it).
 * average divides by the window, or only by its part inside the image unless count_include_pad. */
typedef struct sy_pool_attributes {
  int32_t spatial_rank, average, count_include_pad;
  int32_t kernel[3], stride[3], before[3], after[3];
} sy_pool_attributes;

/* batch_norm (training): x (…, C), gamma, beta, running_mean, running_var [, residual (…, C)] → y, mean (C), rstd (C), running_mean', running_var'
 *   statistics over all but the last axis; y = act((x − mean)·rstd·gamma + beta [+ residual]) by biased variance;
 *   running' = (1−momentum)·running + momentum·(mean | unbiased variance)
 * batch_norm_inference: x, gamma, beta, running_mean, running_var [, residual] → y
 * batch_norm_backward: x, gamma, mean, rstd, dy [, y if activation] → dx, dgamma f32, dbeta f32 [, dresidual (…, C)]
 *   g = dy, or with RELU dy where y > 0 and 0 elsewhere; dx, dgamma and dbeta are those of g, and dresidual = g */
typedef struct sy_batch_norm_attributes {
  float eps, momentum;
  int32_t activation, residual; /* SY_ACTIVATION_NONE or RELU; 0/1 */
} sy_batch_norm_attributes;

/* resize: x (N, spatial, C) → y (N, spatial', C).   resize_backward: dy (N, spatial', C) → dx (N, spatial, C).   As torch.nn.functional.interpolate. */
enum { SY_RESIZE_NEAREST = 0, SY_RESIZE_LINEAR = 1 };
typedef struct sy_resize_attributes {
  int32_t spatial_rank, mode, align_corners;
} sy_resize_attributes;

/* all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, receive are nodes of the graph too; a collective plugin runs them, never a kernel. */
typedef struct sy_collective_attributes {
  int32_t reduction;
  int32_t root;   /* of broadcast; the other rank of send and receive */
  int32_t group;  /* which communicator: an index into the run's groups */
  float scale;    /* applied to the result: 1/W for a mean */
} sy_collective_attributes;

/* group_norm: x (N, …, C), gamma (C), beta (C) → y (N, …, C), mean (N, groups), rstd (N, groups)      statistics f32
 *   group j of a sample is its channels [j·C/groups, (j+1)·C/groups) at all places; `groups` divides C
 *   y = (x − mean)·rstd·gamma + beta, with mean and rstd = 1/√(var + eps) of the element's group, biased variance
 * group_norm_backward: x, gamma, mean, rstd, dy (N, …, C) → dx (N, …, C), dgamma (C) f32, dbeta (C) f32 */
typedef struct sy_group_norm_attributes {
  float eps;
  int32_t groups;
} sy_group_norm_attributes;

/* orthonormalize: a0 … an-1 [, d0 … dn-1] → q0 … qn-1, dᵢ and qᵢ in the dims (r, k) of aᵢ: the rows of each matrix made orthonormal, in their order. All f32.
 * Of row i of a matrix: v = that of a, or if `drawn` that of d where Σ a² = 0; s = Σ v²; then
 *   twice: v −= Σ over j < i of (v·qⱼ)·qⱼ               (Gram and Schmidt, classical or modified; "twice is enough", Kahan and Parlett)
 *   t = Σ v²; q = v/√t, or v·(0·t) where t ≤ 10⁻¹⁰·s: zero where the row depends on those before it, NaN where squares are not finite.
 *   Σ a², s and t are f32 numbers: what is beyond their range is infinite, or 0 */
typedef struct sy_orthonormalize_attributes {
  int32_t drawn; /* 0/1 */
} sy_orthonormalize_attributes;

/* flip: x (B, …), flips u8 (B) → y: where flips[b] is not 0, sample b has its elements along axis values[0] of x, 1 or
 * more, in reverse order (as torch.flip); else it is that of x. Bits move, nothing is converted. Attributes:
 * sy_axes_attributes. */

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_OPS_H_ */
