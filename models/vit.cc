#include "models/vit.h"

#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/nn/layers.h"
#include "core/settings/fields.h"
#include "fmt/format.h"
#include "models/position_tables.h"
#include "models/vit_formats.h"
#include "models/vit_weights.h"

namespace switchyard {
namespace {

// x + attn(norm1(x)), then x + mlp(norm2(x)); x (B, N+1, D).
Value Block(const VisionTransformerConfig& config, nn::Context& context, Value x, int index) {
  const Graph::Scope scope(context.graph, fmt::format("blocks.{}", index));
  const Graph::Block block(context.graph, index);
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

using Vit = VisionTransformerConfig;

const std::vector<Field<Vit>>& Fields() {
  static const auto& fields = *new std::vector<Field<Vit>>{
      FieldOf<&Vit::patch>(
          "patch", {.help = "side of a patch", .unit = "pixels", .range = Within(1, 8192), .architecture = true}),
      FieldOf<&Vit::width>("width", {.help = "hidden width", .range = Within(1, 1 << 20), .architecture = true}),
      FieldOf<&Vit::depth>("depth", {.help = "number of layers", .range = Within(1, 4096), .architecture = true}),
      FieldOf<&Vit::heads>("heads", {.help = "attention heads", .range = Within(1, 1 << 16), .architecture = true}),
      FieldOf<&Vit::mlp_ratio>(
          "mlp_ratio",
          {.help = "width of a block's MLP over the hidden width", .range = Within(0, 1024), .architecture = true}),
      FieldOf<&Vit::layer_norm_eps>(
          "layer_norm_eps",
          {.help = "eps of the layer norms; that of pretrained weights", .range = Within(0, 1), .architecture = true}),
      FieldOf<&Vit::dropout>("dropout", {.help = "dropout probability", .range = WithinBelow(0, 1)}),
      FieldOf<&Vit::drop_path>(
          "drop_path", {.help = "stochastic depth probability of the last block, rising linearly over the depth",
                        .range = WithinBelow(0, 1)}),
  };
  return fields;
}

const ModelFamily& VitFamily() {
  static const auto& family = *new ModelFamily{
      .name = "vit",
      .words = "Vision Transformer",
      .settings = [] { return RowsOf(Fields()); },
      .check = [](const ResolvedModel& model) { return Check(VisionTransformerConfigOf(model)); },
      .build = [](const ResolvedModel& model, nn::Context& context,
                  const Value& images) { return VisionTransformer(VisionTransformerConfigOf(model), context, images); },
      .layers = [](const ResolvedModel& model) { return VisionTransformerConfigOf(model).depth; },
      .from_file = VitWeightsFromFile,
      .resample = ResamplePositions,
      .resampled = {"image_size"},
      .of_shapes = {"mlp_ratio"},
      .formats = VitFormats};
  return family;
}

ModelInfo Variant(const std::string& name, const std::string& help, const Vit& config, SettingValues recipe) {
  return {.name = name,
          .help = help,
          .family = &VitFamily(),
          .image_size = config.image_size,
          .channels = config.channels,
          .classes = config.classes,
          .own = OwnSettings(config),
          .recipe = std::move(recipe),
          .preprocessing = {{"mean", nlohmann::json::array({"0.5"})}, {"std", nlohmann::json::array({"0.5"})}}};
}

}  // namespace

std::vector<ModelInfo> VisionTransformers() {
  const SettingValues imagenet = {
      {"epochs", 300},    {"global_batch_size", 512}, {"lr", 5e-4}, {"warmup_lr", 1e-6},     {"min_lr", 1e-5},
      {"warmup", "0.05"}, {"weight_decay", 0.05},     {"clip", 1},  {"label_smoothing", 0.1}};
  const SettingValues small_images = {{"epochs", 14},
                                      {"global_batch_size", 128},
                                      {"lr", 3e-3},
                                      {"min_lr", 1e-5},
                                      {"warmup", "0.0714"},  // one epoch
                                      {"weight_decay", 0.05},
                                      {"clip", 1},
                                      {"label_smoothing", 0.1},
                                      {"augmentation", "none"}};
  const Vit micro = {
      .image_size = 28, .channels = 1, .classes = 10, .patch = 7, .width = 64, .depth = 4, .heads = 4, .mlp_ratio = 2};
  std::vector<ModelInfo> list = {Variant(
      "vit_micro", "Vision Transformer for 28×28 grey images, patch 7: minutes on a laptop", micro, small_images)};
  const auto add = [&](const std::string& name, const std::string& help, const Vit& config) {
    list.push_back(Variant(name, help, config, imagenet));
  };
  add("vit_tiny", "Vision Transformer Ti/16, 5.7 M parameters", {.patch = 16, .width = 192, .depth = 12, .heads = 3});
  add("vit_small", "Vision Transformer S/16, 22 M parameters", {.patch = 16, .width = 384, .depth = 12, .heads = 6});
  add("vit_base", "Vision Transformer B/16, 87 M parameters", {.patch = 16, .width = 768, .depth = 12, .heads = 12});
  add("vit_large", "Vision Transformer L/16, 304 M parameters", {.patch = 16, .width = 1024, .depth = 24, .heads = 16});
  add("vit_tiny_patch32", "Vision Transformer Ti/32", {.patch = 32, .width = 192, .depth = 12, .heads = 3});
  add("vit_small_patch32", "Vision Transformer S/32", {.patch = 32, .width = 384, .depth = 12, .heads = 6});
  add("vit_base_patch32", "Vision Transformer B/32", {.patch = 32, .width = 768, .depth = 12, .heads = 12});
  add("vit_large_patch32", "Vision Transformer L/32", {.patch = 32, .width = 1024, .depth = 24, .heads = 16});
  return list;
}

VisionTransformerConfig VisionTransformerConfigOf(const ResolvedModel& model) {
  Vit config = {.image_size = model.image_size, .channels = model.channels, .classes = model.classes};
  Assign(Fields(), model.own, &config).IgnoreError();  // ResolveModel has looked at the types
  return config;
}

SettingValues OwnSettings(const VisionTransformerConfig& config) { return ValuesOf(Fields(), config); }

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
  return nn::Linear(context, "head", nn::LayerNorm(context, "norm", x, config.layer_norm_eps), config.classes,
                    {.sharing = {nn::Sharing::kResults, config.classes}});
}

}  // namespace switchyard
