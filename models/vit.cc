#include "models/vit.h"

#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/nn/layers.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// x + attn(norm1(x)), then x + mlp(norm2(x)); x (B, N+1, D).
Value Block(const VisionTransformerConfig& config, nn::Context& context, Value x, int index) {
  const Graph::Scope scope(context.graph, fmt::format("blocks.{}", index));
  const float drop_path =
      config.depth > 1 ? config.drop_path * static_cast<float>(index) / static_cast<float>(config.depth - 1) : 0;
  const auto hidden = static_cast<int64_t>(config.mlp_ratio * static_cast<float>(config.width));

  Value y = nn::LayerNorm(context, "norm1", x, config.layer_norm_eps);
  y = nn::Attention(context, "attn", y, config.heads, config.dropout);
  x = ops::Add(x, nn::DropPath(context, "drop_path1", y, drop_path));

  y = nn::LayerNorm(context, "norm2", x, config.layer_norm_eps);
  y = nn::Mlp(context, "mlp", y, hidden, config.dropout);
  return ops::Add(x, nn::DropPath(context, "drop_path2", y, drop_path));
}

}  // namespace

Status Check(const VisionTransformerConfig& c) {
  if (c.image_size < 1 || c.channels < 1 || c.classes < 1 || c.patch < 1 || c.width < 1 || c.depth < 1 || c.heads < 1 ||
      c.mlp_ratio * static_cast<float>(c.width) < 1) {
    return InvalidArgument("image size, channels, classes, patch, width, depth, heads and MLP ratio must be positive");
  }
  if (c.image_size % c.patch != 0) {
    return InvalidArgument("an image of {0}×{0} pixels does not divide into patches of {1}×{1}; try --image_size={2}",
                           c.image_size, c.patch, (c.image_size + c.patch - 1) / c.patch * c.patch);
  }
  if (c.width % c.heads != 0) {
    return InvalidArgument("width {} is no multiple of {} heads; try --width={}", c.width, c.heads,
                           (c.width + c.heads - 1) / c.heads * c.heads);
  }
  if (!(c.layer_norm_eps > 0 && c.layer_norm_eps < 1))
    return InvalidArgument("layer_norm_eps {} must lie in (0, 1)", c.layer_norm_eps);
  if (c.dropout < 0 || c.dropout >= 1 || c.drop_path < 0 || c.drop_path >= 1) {
    return InvalidArgument("dropout {} and drop path {} must lie in [0, 1)", c.dropout, c.drop_path);
  }
  return OkStatus();
}

Value VisionTransformer(const VisionTransformerConfig& config, nn::Context& context, const Value& images,
                        nn::Where where) {
  const int64_t batch = images.dim(0), width = config.width;
  if (images.shape() != Shape{batch, config.image_size, config.image_size, config.channels}) {
    ThrowBuildError("vit", fmt::format("images must be (B, {0}, {0}, {1})", config.image_size, config.channels),
                    {images}, where);
  }
  Value x = nn::PatchEmbed(context, "patch_embed", images, config.patch, width);
  const Value token = nn::Parameter(context, "cls_token", {1, 1, width}, {Initializer::kNormal, 1e-6f}, false);
  x = ops::Concat({ops::BroadcastTo(token, {batch, 1, width}), x}, 1);
  x = ops::Add(x, nn::Parameter(context, "pos_embed", {1, x.dim(1), width}, nn::kTransformerWeights, false));
  x = nn::Dropout(context, "pos_drop", x, config.dropout);

  for (int index = 0; index < config.depth; ++index) x = Block(config, context, x, index);

  // A norm works row by row, so that the class token may be taken out before it.
  x = ops::Reshape(ops::Slice(x, 1, 0, 1), {batch, width});
  return nn::Linear(context, "head", nn::LayerNorm(context, "norm", x, config.layer_norm_eps), config.classes);
}

}  // namespace switchyard
