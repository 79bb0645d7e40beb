// Layers as functions: each takes values, adds nodes under its name and returns values. Parameters are named as timm
// names them (<name>.weight, <name>.bias), so that files of weights need no translation but what their family's format
// does (models/). Activations stand alone behind their product; the fusion pass joins them where the backend can.
//
// Not thread-safe. Shapes are outermost first; B samples, T tokens, D width. Wrong shapes throw BuildError with the
// line that called the layer.
#pragma once

#include <string>

#include "core/abi/ops.h"
#include "core/nn/context.h"

namespace switchyard::nn {

// The standard deviation that timm's vision transformers start their matrices with (cut at ±2).
inline constexpr Initializer kTransformerWeights = {Initializer::kTruncatedNormal, 0.02f};

// How a weight and its bias start.
struct Start {
  Initializer weight = kTransformerWeights, bias = {Initializer::kZeros, 0};
};
// torch.nn's own for a weight whose results read `fan_in` elements each: kaiming_uniform with a = √5, which is uniform
// within ±1/√fan_in, and the bias the same.
Start TorchStart(int64_t fan_in);

// How tensor-parallel ranks may share a product: its results (rows of the weight) or what it reads (columns), in
// `units` that stay together, such as heads; results may be `packs` such lists one behind the other, as q, k and v.
struct Sharing {
  enum { kNot, kResults, kInputs } what = kNot;
  int64_t units = 0, packs = 1;
};

struct LinearOptions {
  bool bias = true;
  Start start = {};
  int activation = SY_ACTIVATION_NONE;  // SY_ACTIVATION_*, applied to the sum
  Sharing sharing = {};
};
// x (…, K) → (…, out). Parameters weight (out, K), bias (out).
Value Linear(Context& context, const std::string& name, const Value& x, int64_t out, const LinearOptions& options = {},
             Where where = Where::current());

// x (…, D) → the same shape (Ba et al. 2016). Parameters weight (D) from 1, bias (D) from 0, without weight decay.
Value LayerNorm(Context& context, const std::string& name, const Value& x, float eps, Where where = Where::current());

// Zeroes elements with probability p and scales the rest by 1/(1−p); x (B, …). x itself where p is 0 or nothing is
// trained. The mask's key is Key(seed, HashName(scoped name)).
Value Dropout(Context& context, const std::string& name, const Value& x, float p, Where where = Where::current());
// The same for whole samples: stochastic depth (Huang et al. 2016), on the branch of a residual sum.
Value DropPath(Context& context, const std::string& name, const Value& x, float p, Where where = Where::current());

// Images (B, H, W, C) → (B, H/p · W/p, width), one row per p×p patch, row-major. Parameters proj.weight (width, p, p,
// C) and proj.bias (width), which start as torch.nn's convolutions do: timm and Swin's authors start matrices as a
// transformer's and leave this one alone. Files hold the weight as a convolution's, (width, C, p, p):
// models/vit_weights.h permutes it at import and export.
Value PatchEmbed(Context& context, const std::string& name, const Value& images, int64_t patch, int64_t width,
                 Where where = Where::current());

// Multi-head self-attention (Vaswani et al. 2017) on x (B, T, D): proj(softmax(q·kᵀ/√(D/heads))·v), then dropout.
// Parameters qkv.weight (3·D, D) with the rows of q, k, v in turn, qkv.bias, proj.weight (D, D), proj.bias. D must be a
// multiple of heads.
Value Attention(Context& context, const std::string& name, const Value& x, int64_t heads, float dropout,
                Where where = Where::current());

// fc2(gelu(fc1(x))) on x (…, D), with dropout after each product; exact GELU. Parameters fc1.weight (hidden, D),
// fc2.weight (D, hidden), biases.
Value Mlp(Context& context, const std::string& name, const Value& x, int64_t hidden, float dropout,
          Where where = Where::current());

}  // namespace switchyard::nn
