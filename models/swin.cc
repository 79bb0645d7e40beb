#include "models/swin.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/layers.h"
#include "core/settings/fields.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "models/position_tables.h"
#include "models/resnet.h"
#include "models/swin_formats.h"
#include "models/swin_weights.h"

namespace switchyard {
namespace {

using Swin = SwinTransformerConfig;

constexpr int64_t kMostTableElements = int64_t{1} << 26;  // of positions and masks, which are made in host memory
constexpr float kApart = -100;                            // added to the scores of places that a shift brought together
constexpr int kMostStages = 8, kDeepest = 4096;

// A stage: maps of side × side places, with windows of window × window.
struct Stage {
  int64_t width = 0, heads = 0, side = 0, window = 0;
  Value index, mask;  // (M², M²) i32; (windows, M², M²), none where nothing is shifted
};

// x (B, S², C) → (B·windows, M², C), windows row by row.
Value ToWindows(const Value& x, const Stage& s) {
  const int64_t batch = x.dim(0), width = x.dim(2), m = s.window, count = s.side / m;
  if (count == 1) return x;
  const Value grid = ops::Reshape(x, {batch, count, m, count, m, width});
  return ops::Reshape(ops::Transpose(grid, {0, 1, 3, 2, 4, 5}), {batch * count * count, m * m, width});
}
Value FromWindows(const Value& x, const Stage& s) {
  const int64_t width = x.dim(2), m = s.window, count = s.side / m;
  if (count == 1) return x;
  const Value grid = ops::Reshape(x, {-1, count, count, m, m, width});
  return ops::Reshape(ops::Transpose(grid, {0, 1, 3, 2, 4, 5}), {grid.dim(0), s.side * s.side, width});
}

// x (B, S², C), moved by `shift` places along both sides, around the edges.
Value Shifted(const Value& x, const Stage& s, int shift) {
  const Value map = ops::Reshape(x, {x.dim(0), s.side, s.side, x.dim(2)});
  return ops::Reshape(ops::Roll(map, {0, shift, shift, 0}), x.shape());
}

// Multi-head self-attention within windows (B·windows, M², C), with a bias by relative position.
Value WindowAttention(nn::Context& context, const Value& x, const Stage& s, const Value& mask) {
  const Graph::Scope scope(context.graph, "attn");
  const int64_t places = x.dim(1), rows = (2 * s.window - 1) * (2 * s.window - 1);
  const Value table =
      nn::Parameter(context, "relative_position_bias_table", {rows, s.heads}, nn::kTransformerWeights, false);
  nn::MayDivide(table, {1, 1, s.heads, 1});
  const Value bias = ops::Transpose(ops::Gather(table, s.index), {2, 0, 1});  // (heads, M², M²)
  const Value qkv =
      ops::Reshape(nn::Linear(context, "qkv", x, 3 * s.width, {.sharing = {nn::Sharing::kResults, s.heads, 3}}),
                   {x.dim(0), places, 3, s.heads, s.width / s.heads});
  return nn::Linear(context, "proj", ops::Reshape(ops::Attention(qkv, bias, mask), x.shape()), s.width,
                    {.sharing = {nn::Sharing::kInputs, s.heads}});
}

// x + attention(norm1(x)), then x + mlp(norm2(x)); x (B, S², C). `index` counts over all stages.
Value SwinBlock(const Swin& config, nn::Context& context, Value x, const Stage& s, bool shifts, int index, int blocks) {
  const Graph::Block block(context.graph, index);
  const float drop_path =
      blocks > 1 ? config.drop_path * static_cast<float>(index) / static_cast<float>(blocks - 1) : 0;
  const auto hidden = static_cast<int64_t>(config.mlp_ratio * static_cast<float>(s.width));
  const int shift = shifts ? static_cast<int>(s.window / 2) : 0;

  Value y = nn::LayerNorm(context, "norm1", x, kSwinEps);
  if (shift > 0) y = Shifted(y, s, -shift);
  y = FromWindows(WindowAttention(context, ToWindows(y, s), s, shift > 0 ? s.mask : Value()), s);
  if (shift > 0) y = Shifted(y, s, shift);
  x = ops::Add(x, nn::DropPath(context, "drop_path1", y, drop_path));

  y = nn::LayerNorm(context, "norm2", x, kSwinEps);
  y = nn::Mlp(context, "mlp", y, hidden, 0);
  return ops::Add(x, nn::DropPath(context, "drop_path2", y, drop_path));
}

// x (B, S², C) → (B, S²/4, 2·C): places (0, 0), (1, 0), (0, 1), (1, 1) of each 2×2, normed and projected.
Value Downsample(nn::Context& context, const Value& x, int64_t side) {
  const Graph::Scope scope(context.graph, "downsample");
  const int64_t half = side / 2, width = x.dim(2);
  const Value grid = ops::Reshape(x, {x.dim(0), half, 2, half, 2, width});
  const Value merged = ops::Reshape(ops::Transpose(grid, {0, 1, 3, 4, 2, 5}), {x.dim(0), half * half, 4 * width});
  return nn::Linear(context, "reduction", nn::LayerNorm(context, "norm", merged, kSwinEps), 2 * width, {.bias = false});
}

// Its tables are made once for all of its blocks.
Stage StageOf(const Swin& config, Graph& graph, int index, bool shifts) {
  Stage s;
  s.width = int64_t{config.width} << index;
  s.heads = int64_t{config.heads} << index;
  s.side = config.image_size / config.patch >> index;
  s.window = std::min<int64_t>(s.side, config.window);
  const int64_t places = s.window * s.window, count = s.side / s.window;
  s.index = graph.Constant("relative_position_index", {DType::kI32, {places, places}}, RelativePositionIndex(s.window));
  if (shifts && count > 1 && s.window > 1) {
    s.mask = graph.Constant("attn_mask", {DType::kF32, {count * count, places, places}},
                            ShiftMask(s.side, s.window, s.window / 2));
  }
  return s;
}

const std::vector<Field<Swin>>& SwinFields() {
  static const auto& fields = *new std::vector<Field<Swin>>{
      FieldOf<&Swin::patch>(
          "patch", {.help = "side of a patch", .unit = "pixels", .range = Within(1, 8192), .architecture = true}),
      FieldOf<&Swin::width>("width", {.help = "hidden width, of the first stage; it doubles from stage to stage",
                                      .range = Within(1, 1 << 20),
                                      .architecture = true}),
      FieldOf<&Swin::depths>("depths", {.help = "number of layers of each stage, as 2,2,6,2", .architecture = true}),
      FieldOf<&Swin::heads>("heads", {.help = "attention heads, of the first stage; they double with the width",
                                      .range = Within(1, 1 << 16),
                                      .architecture = true}),
      FieldOf<&Swin::window>(
          "window",
          {.help = "side of a window of attention", .unit = "patches", .range = Within(1, 8192), .architecture = true}),
      FieldOf<&Swin::mlp_ratio>(
          "mlp_ratio",
          {.help = "width of a block's MLP over the hidden width", .range = Within(0, 1024), .architecture = true}),
      FieldOf<&Swin::drop_path>(
          "drop_path", {.help = "stochastic depth probability of the last block, rising linearly over the depth",
                        .range = WithinBelow(0, 1)}),
  };
  return fields;
}

int SwinBlocks(const Swin& config) {
  int blocks = 0;
  for (const int depth : DepthsOf(config)) blocks += depth;
  return blocks;
}

const ModelFamily& SwinFamily() {
  static const auto& family = *new ModelFamily{
      .name = "swin",
      .words = "Swin Transformer",
      .settings = [] { return RowsOf(SwinFields()); },
      .check = [](const ResolvedModel& model) { return Check(SwinTransformerConfigOf(model)); },
      .build = [](const ResolvedModel& model, nn::Context& context,
                  const Value& images) { return SwinTransformer(SwinTransformerConfigOf(model), context, images); },
      .layers = [](const ResolvedModel& model) { return SwinBlocks(SwinTransformerConfigOf(model)); },
      .head = "head.fc",
      .from_file = SwinWeightsFromFile,
      .resample = ResampleBiasTables,
      .resampled = {"image_size", "window"},
      .of_shapes = {"mlp_ratio"},
      .formats = SwinFormats};
  return family;
}

ModelInfo SwinVariant(const std::string& name, const std::string& help, const Swin& config, SettingValues recipe) {
  return {.name = name,
          .help = help,
          .family = &SwinFamily(),
          .image_size = config.image_size,
          .channels = config.channels,
          .classes = config.classes,
          .own = OwnSettings(config),
          .recipe = std::move(recipe),
          .preprocessing = ImageNetPreprocessing()};
}

}  // namespace

std::vector<ModelInfo> SwinTransformers() {
  const SettingValues imagenet = {
      {"epochs", 300},  {"global_batch_size", 512}, {"lr", 5e-4}, {"scale_lr", "linear"}, {"warmup_lr", 5e-7},
      {"min_lr", 5e-6}, {"warmup", "0.066666667"},  {"clip", 5},  {"weight_decay", 0.05}, {"label_smoothing", 0.1}};
  const SettingValues small_images = {{"epochs", 30},         {"global_batch_size", 128}, {"lr", 1e-3},
                                      {"min_lr", 1e-5},       {"warmup", "0.066666667"},  {"clip", 5},
                                      {"weight_decay", 0.05}, {"label_smoothing", 0.1}};
  const Swin cifar = {.image_size = 32,
                      .classes = 10,
                      .patch = 2,
                      .width = 48,
                      .depths = {"2", "2", "2"},
                      .heads = 3,
                      .window = 4,
                      .drop_path = 0.1f};
  std::vector<ModelInfo> list = {SwinVariant("swin_tiny_cifar",
                                             "Swin Transformer for 32×32 images, patch 2, window 4, 1.3 M parameters",
                                             cifar, small_images)};
  const auto add = [&](const std::string& name, const std::string& help, const Swin& config) {
    list.push_back(SwinVariant(name, help, config, imagenet));
  };
  add("swin_tiny", "Swin Transformer T, 28 M parameters", {.drop_path = 0.2f});
  add("swin_small", "Swin Transformer S, 50 M parameters", {.depths = {"2", "2", "18", "2"}, .drop_path = 0.3f});
  add("swin_base", "Swin Transformer B, 88 M parameters",
      {.width = 128, .depths = {"2", "2", "18", "2"}, .heads = 4, .drop_path = 0.5f});
  add("swin_large", "Swin Transformer L, 197 M parameters",
      {.width = 192, .depths = {"2", "2", "18", "2"}, .heads = 6, .drop_path = 0.5f});
  return list;
}

SwinTransformerConfig SwinTransformerConfigOf(const ResolvedModel& model) {
  Swin config = {.image_size = model.image_size, .channels = model.channels, .classes = model.classes};
  Assign(SwinFields(), model.own, &config).IgnoreError();  // ResolveModel has looked at the types
  return config;
}

SettingValues OwnSettings(const SwinTransformerConfig& config) { return ValuesOf(SwinFields(), config); }

std::vector<int> DepthsOf(const SwinTransformerConfig& config) {
  std::vector<int> depths;
  for (const std::string& text : config.depths) {
    int depth = 0;
    if (!absl::SimpleAtoi(text, &depth) || depth < 1 || depth > kDeepest) return {};
    depths.push_back(depth);
  }
  return depths.size() > kMostStages ? std::vector<int>() : depths;
}

Status Check(const SwinTransformerConfig& c) {
  if (c.image_size < 1 || c.channels < 1 || c.classes < 1 || c.patch < 1 || c.width < 1 || c.heads < 1 ||
      c.window < 1 || c.mlp_ratio * static_cast<float>(c.width) < 1) {
    return InvalidArgument("image size, channels, classes, patch, width, heads, window and MLP ratio must be positive");
  }
  const std::vector<int> depths = DepthsOf(c);
  if (depths.empty()) {
    return InvalidArgument("depths: expected up to {} whole numbers from 1 to {}, as 2,2,6,2; found {}", kMostStages,
                           kDeepest, fmt::join(c.depths, ","));
  }
  const int last = static_cast<int>(depths.size()) - 1;
  const int64_t smallest = int64_t{c.patch} << last, fitting = smallest * c.window;
  const auto next = [&](int64_t unit) { return (c.image_size + unit - 1) / unit * unit; };
  if (c.image_size % smallest != 0) {
    return InvalidArgument(
        "an image of {0}×{0} pixels does not divide into patches of {1}×{1} that are halved {2} times; try "
        "--image_size={3}",
        c.image_size, c.patch, last, next(smallest));
  }
  for (int stage = 0; stage <= last; ++stage) {
    const int64_t across = c.image_size / c.patch >> stage, window = std::min<int64_t>(across, c.window);
    if (window * window * std::max(window, across) * std::max(window, across) > kMostTableElements) {
      return InvalidArgument(
          "windows of {0}×{0} of {1}×{1} places need tables of more than {2} elements; try a smaller --window", window,
          across, kMostTableElements);
    }
    const int side = c.image_size / c.patch >> stage;
    if (side <= c.window || side % c.window == 0) continue;
    return InvalidArgument(
        "the {0}×{0} places of stage {1} do not divide into windows of {2}×{2}; try --image_size={3}, or another "
        "--window",
        side, stage + 1, c.window, next(fitting));
  }
  if (c.width % c.heads != 0) {
    return InvalidArgument("width {} is no multiple of {} heads; try --width={}", c.width, c.heads,
                           (c.width + c.heads - 1) / c.heads * c.heads);
  }
  if (c.drop_path < 0 || c.drop_path >= 1) return InvalidArgument("drop path {} must lie in [0, 1)", c.drop_path);
  return OkStatus();
}

std::vector<int32_t> RelativePositionIndex(int64_t window) {
  const int64_t places = window * window, span = 2 * window - 1;
  std::vector<int32_t> index;
  for (int64_t i = 0; i < places; ++i) {
    for (int64_t j = 0; j < places; ++j) {
      const int64_t down = i / window - j / window, right = i % window - j % window;
      index.push_back(static_cast<int32_t>((down + window - 1) * span + right + window - 1));
    }
  }
  return index;
}

std::vector<float> ShiftMask(int64_t side, int64_t window, int64_t shift) {
  // After the shift the last window of a row holds what stood at the end and, from side − shift on, at the beginning.
  const auto part = [&](int64_t at) { return at < side - window ? 0 : at < side - shift ? 1 : 2; };
  const int64_t places = window * window, count = side / window;
  std::vector<float> mask;
  for (int64_t w = 0; w < count * count; ++w) {
    const auto region = [&](int64_t place) {
      return 3 * part(w / count * window + place / window) + part(w % count * window + place % window);
    };
    for (int64_t i = 0; i < places; ++i) {
      for (int64_t j = 0; j < places; ++j) mask.push_back(region(i) == region(j) ? 0 : kApart);
    }
  }
  return mask;
}

Value SwinTransformer(const SwinTransformerConfig& config, nn::Context& context, const Value& images, nn::Where where) {
  const int64_t batch = images.dim(0);
  if (images.shape() != Shape{batch, config.image_size, config.image_size, config.channels}) {
    ThrowBuildError("swin", fmt::format("images must be (B, {0}, {0}, {1})", config.image_size, config.channels),
                    {images}, where);
  }
  Graph& graph = context.graph;
  Value x = nn::PatchEmbed(context, "patch_embed", images, config.patch, config.width);
  {
    const Graph::Scope scope(graph, "patch_embed");
    x = nn::LayerNorm(context, "norm", x, kSwinEps);
  }
  const std::vector<int> depths = DepthsOf(config);
  const int blocks = SwinBlocks(config);
  int index = 0;
  for (int i = 0; i < static_cast<int>(depths.size()); ++i) {
    const Graph::Scope layer(graph, fmt::format("layers.{}", i));
    const Stage stage = StageOf(config, graph, i, depths[static_cast<size_t>(i)] > 1);
    if (i > 0) x = Downsample(context, x, 2 * stage.side);
    for (int j = 0; j < depths[static_cast<size_t>(i)]; ++j, ++index) {
      const Graph::Scope scope(graph, fmt::format("blocks.{}", j));
      x = SwinBlock(config, context, x, stage, j % 2 == 1 && stage.mask, index, blocks);
    }
  }
  x = nn::LayerNorm(context, "norm", x, kSwinEps);
  const Value mean = ops::Reduce(x, SY_REDUCE_SUM, 1u << 1, 1 / static_cast<float>(x.dim(1)));
  const Graph::Scope head(graph, "head");
  return nn::Linear(context, "fc", mean, config.classes, {.sharing = {nn::Sharing::kResults, config.classes}});
}

}  // namespace switchyard
