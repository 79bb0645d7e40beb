#include "core/nn/layers.h"

#include <cmath>

#include "core/base/random.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/random.h"
#include "fmt/format.h"

namespace switchyard::nn {
namespace {

constexpr Initializer kZeros = {Initializer::kZeros, 0};
constexpr Initializer kOnes = {Initializer::kConstant, 1};

}  // namespace

Start TorchStart(int64_t fan_in) {
  const Initializer uniform = {Initializer::kUniform, 1 / std::sqrt(static_cast<float>(fan_in))};
  return {uniform, uniform};
}

Value Linear(Context& context, const std::string& name, const Value& x, int64_t out, const LinearOptions& options,
             Where where) {
  const Graph::Scope scope(context.graph, name);
  const Value weight = Parameter(context, "weight", {out, x.dim(-1)}, options.start.weight, true, where);
  const Value bias = options.bias ? Parameter(context, "bias", {out}, options.start.bias, false, where) : Value();
  if (const auto& [what, units, packs] = options.sharing; what == Sharing::kResults) {
    const DividedAxis axis = {0, packs, units, out / (packs * units)};
    MayDivide(weight, axis);
    if (bias) MayDivide(bias, axis);
  } else if (what == Sharing::kInputs) {
    MayDivide(weight, {1, 1, units, x.dim(-1) / units});
  }
  return ops::Activation(ops::Linear(x, weight, bias, where), options.activation, where);
}

Value LayerNorm(Context& context, const std::string& name, const Value& x, float eps, Where where) {
  const Graph::Scope scope(context.graph, name);
  const Value gamma = Parameter(context, "weight", {x.dim(-1)}, kOnes, false, where);
  const Value beta = Parameter(context, "bias", {x.dim(-1)}, kZeros, false, where);
  return ops::LayerNorm(x, gamma, beta, eps, where);
}

Value Dropout(Context& context, const std::string& name, const Value& x, float p, Where where) {
  if (!context.training || p == 0) return x;
  const Graph::Scope scope(context.graph, name);
  UseSampleInputs(context, x.dim(0), where);
  const uint64_t key = Key(context.seed, HashName(context.graph.ScopedName("dropout")));
  return ops::Dropout(x, context.sample_ids, context.step, p, key, where);
}

Value DropPath(Context& context, const std::string& name, const Value& x, float p, Where where) {
  if (!context.training || p == 0) return x;
  const Graph::Scope scope(context.graph, name);
  UseSampleInputs(context, x.dim(0), where);
  const uint64_t key = Key(context.seed, HashName(context.graph.ScopedName("dropout")));
  return ops::DropPath(x, context.sample_ids, context.step, p, key, where);
}

Value PatchEmbed(Context& context, const std::string& name, const Value& images, int64_t patch, int64_t width,
                 Where where) {
  if (images.rank() != 4 || patch < 1 || images.dim(1) % patch != 0 || images.dim(2) % patch != 0) {
    ThrowBuildError("patch_embed", fmt::format("images must be (B, H, W, C) with H and W multiples of {}", patch),
                    {images}, where);
  }
  const int64_t rows = images.dim(1) / patch, columns = images.dim(2) / patch, channels = images.dim(3);
  const Graph::Scope scope(context.graph, name);
  const Graph::Scope projection(context.graph, "proj");
  const Start start = TorchStart(patch * patch * channels);
  const Value weight = Parameter(context, "weight", {width, patch, patch, channels}, start.weight, true, where);
  const Value bias = Parameter(context, "bias", {width}, start.bias, false, where);
  const Value grid = ops::Reshape(images, {images.dim(0), rows, patch, columns, patch, channels}, where);
  const Value patches = ops::Reshape(ops::Transpose(grid, {0, 1, 3, 2, 4, 5}, where),
                                     {images.dim(0), rows * columns, patch * patch * channels}, where);
  return ops::Linear(patches, ops::Reshape(weight, {width, -1}, where), bias, where);
}

Value Attention(Context& context, const std::string& name, const Value& x, int64_t heads, float dropout, Where where) {
  if (x.rank() != 3 || heads < 1 || x.dim(2) % heads != 0) {
    ThrowBuildError("attention", fmt::format("x must be (B, T, D) with D a multiple of {} heads", heads), {x}, where);
  }
  const int64_t width = x.dim(2);
  const Graph::Scope scope(context.graph, name);
  const Value qkv = Linear(context, "qkv", x, 3 * width, {.sharing = {Sharing::kResults, heads, 3}}, where);
  const Value packed = ops::Reshape(qkv, {x.dim(0), x.dim(1), 3, heads, width / heads}, where);
  const Value mixed = ops::Reshape(ops::Attention(packed, {}, {}, 0, where), x.shape(), where);
  return Dropout(context, "proj_drop",
                 Linear(context, "proj", mixed, width, {.sharing = {Sharing::kInputs, heads}}, where), dropout, where);
}

Value Mlp(Context& context, const std::string& name, const Value& x, int64_t hidden, float dropout, Where where) {
  const Graph::Scope scope(context.graph, name);
  Value h = Linear(context, "fc1", x, hidden, {.activation = SY_ACTIVATION_GELU, .sharing = {Sharing::kResults, hidden}},
                   where);
  h = Dropout(context, "drop1", h, dropout, where);
  h = Linear(context, "fc2", h, x.dim(-1), {.sharing = {Sharing::kInputs, hidden}}, where);
  return Dropout(context, "drop2", h, dropout, where);
}

}  // namespace switchyard::nn
