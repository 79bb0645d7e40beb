#include "models/deeplab.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "absl/strings/numbers.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/nn/convolution.h"
#include "core/nn/layers.h"
#include "core/settings/fields.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "models/convolution_weights.h"
#include "models/foreign_format.h"
#include "models/resnet.h"
#include "models/resnet_formats.h"
#include "models/weights.h"

namespace switchyard {
namespace {

constexpr int64_t kLowLevelChannels = 48;
constexpr int kMostPixels = 8192;  // along an axis

ResNetConfig BackboneOf(const DeepLabConfig& c) {
  return {.image_size = c.image_size,
          .channels = c.channels,
          .classes = c.classes,
          .depth = c.depth,
          .width = c.width,
          .stem = "imagenet"};
}

// Of all convolutions but the backbone's, as torchvision's DeepLabV3 starts them.
constexpr auto kDeepLabStart = nn::ConvolutionStart::kTorch;

// Of x (B, H, W, C): bilinear to the places of `like` (B, H', W', …).
Value ResizeAs(const Value& x, const Value& like) { return nn::ResizeLinear(x, {like.dim(1), like.dim(2)}); }

// Atrous spatial pyramid pooling (Chen et al. 2017): x seen at several rates at once, (B, h, w, C) → (B, h, w, out).
Value Pyramid(const DeepLabConfig& config, nn::Context& context, const Value& x) {
  const Graph::Scope scope(context.graph, "aspp");
  const int64_t out = config.decoder_width;
  const int unit = config.output_stride == 8 ? 2 : 1;
  std::vector<Value> parts;
  {
    const Graph::Scope convs(context.graph, "convs");
    parts.push_back(nn::ConvolutionNormReLU(context, "0.0", "0.1", x, out, {.kernel = 1, .start = kDeepLabStart}));
    for (const int rate : {6, 12, 18}) {
      const size_t i = parts.size();
      parts.push_back(nn::ConvolutionNormReLU(context, fmt::format("{}.0", i), fmt::format("{}.1", i), x, out,
                                              {.dilation = rate * unit, .start = kDeepLabStart}));
    }
    const Value mean = ops::Reshape(nn::GlobalAveragePool(x), {x.dim(0), 1, 1, x.dim(-1)});
    const Value image =
        nn::ConvolutionNormReLU(context, "4.1", "4.2", mean, out, {.kernel = 1, .start = kDeepLabStart});
    parts.push_back(ops::BroadcastTo(image, {x.dim(0), x.dim(1), x.dim(2), out}));
  }
  const Value joined = ops::Concat(parts, 3);
  return nn::Dropout(
      context, "project.3",
      nn::ConvolutionNormReLU(context, "project.0", "project.1", joined, out, {.kernel = 1, .start = kDeepLabStart}),
      config.dropout);
}

const std::vector<Field<DeepLabConfig>>& DeepLabFields() {
  static const auto& fields = *new std::vector<Field<DeepLabConfig>>{
      FieldOf<&DeepLabConfig::input_size>(
          "input_size", {.help = "height and width of the images that the model takes, as 192,256; a square of "
                                 "--image_size where it is not given",
                         .unit = "pixels",
                         .architecture = true}),
      FieldOf<&DeepLabConfig::depth>("depth",
                                     {.help = "number of layers", .range = Within(1, 4096), .architecture = true}),
      FieldOf<&DeepLabConfig::width>(
          "width", {.help = "channels behind the stem", .range = Within(1, 1 << 20), .architecture = true}),
      FieldOf<&DeepLabConfig::output_stride>("output_stride",
                                             {.help = "side of the image over that of the backbone's result",
                                              .range = Within(8, 16),
                                              .architecture = true}),
      FieldOf<&DeepLabConfig::decoder_width>(
          "decoder_width",
          {.help = "channels of pyramid and decoder", .range = Within(1, 1 << 20), .architecture = true}),
      FieldOf<&DeepLabConfig::dropout>("dropout", {.help = "dropout probability", .range = WithinBelow(0, 1)}),
  };
  return fields;
}

// Those of a residual network alone become the backbone's, without its classifier.
HostTensors DeepLabWeightsFromFile(HostTensors tensors) {
  constexpr std::array kOfBackbone = {"conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4."};
  HostTensors renamed;
  for (auto& [name, tensor] : ResNetWeightsFromFile(std::move(tensors))) {
    const bool bare =
        std::any_of(kOfBackbone.begin(), kOfBackbone.end(), [&](const char* start) { return name.starts_with(start); });
    if (!name.starts_with("fc.")) renamed[bare ? kBackbone + name : name] = std::move(tensor);
  }
  return renamed;
}

const std::vector<ForeignFormat>& DeepLabFormats() {
  static const auto& formats = *new std::vector<ForeignFormat>{
      {.name = "torchvision",
       .words = "torchvision in the backbone, and its own beside that, as torchvision has DeepLabV3 and not V3+",
       .head = "classifier",
       .to_file = ConvolutionWeightsToFile}};
  return formats;
}

const ModelFamily& DeepLabFamily() {
  static const auto& family =
      *new ModelFamily{.name = "deeplab",
                       .words = "DeepLabV3+",
                       .data = Content::kMaskedImages,
                       .settings = [] { return RowsOf(DeepLabFields()); },
                       .check = [](const ResolvedModel& model) { return Check(DeepLabConfigOf(model)); },
                       .build = [](const ResolvedModel& model, nn::Context& context,
                                   const Value& images) { return DeepLab(DeepLabConfigOf(model), context, images); },
                       .input_shape =
                           [](const ResolvedModel& model) {
                             Shape shape = ExtentsOf(DeepLabConfigOf(model));
                             shape.push_back(model.channels);
                             return shape;
                           },
                       .layers =
                           [](const ResolvedModel& model) {
                             const std::array<int, 4> blocks = BlocksOf(BackboneOf(DeepLabConfigOf(model)));
                             return std::accumulate(blocks.begin(), blocks.end(), 0);
                           },
                       .backbone = "resnet",
                       .sibling_head = "classifier.0.convs.",
                       .sibling = "DeepLabV3, as torchvision has it, which is not V3+",
                       .head = "classifier",
                       .from_file = DeepLabWeightsFromFile,
                       .resampled = {"image_size", "input_size"},  // no weight depends on them
                       .formats = DeepLabFormats};
  return family;
}

}  // namespace

std::vector<ModelInfo> DeepLabs() {
  // Chen et al. 2018, with a rate for batches of 16.
  const SettingValues recipe = {{"epochs", 50}, {"global_batch_size", 16}, {"optimizer", "sgd"},
                                {"lr", 7e-3},   {"weight_decay", 1e-4},    {"schedule", "cosine"}};
  std::vector<ModelInfo> list;
  const auto add = [&](int depth) {
    const DeepLabConfig config = {.depth = depth};
    list.push_back({.name = fmt::format("deeplabv3plus_resnet{}", depth),
                    .help = fmt::format("DeepLabV3+ over a residual network of {} layers, for segmentation", depth),
                    .family = &DeepLabFamily(),
                    .image_size = config.image_size,
                    .channels = config.channels,
                    .classes = config.classes,
                    .own = ValuesOf(DeepLabFields(), config),
                    .recipe = recipe,
                    .preprocessing = ImageNetPreprocessing()});
  };
  add(50);
  add(101);
  return list;
}

DeepLabConfig DeepLabConfigOf(const ResolvedModel& model) {
  DeepLabConfig config = {.image_size = model.image_size, .channels = model.channels, .classes = model.classes};
  Assign(DeepLabFields(), model.own, &config).IgnoreError();  // ResolveModel has looked at the types
  return config;
}

Shape ExtentsOf(const DeepLabConfig& config) {
  if (config.input_size.empty()) return {config.image_size, config.image_size};
  Shape extents;
  for (const std::string& text : config.input_size) {
    int extent = 0;
    if (!absl::SimpleAtoi(text, &extent) || extent < 1 || extent > kMostPixels) return {};
    extents.push_back(extent);
  }
  return extents.size() == 2 ? extents : Shape();
}

Status Check(const DeepLabConfig& c) {
  SY_RETURN_IF_ERROR(Check(BackboneOf(c)));
  if (!HasBottlenecks(BackboneOf(c)))
    return InvalidArgument("depth {}: the backbone has 50, 101 or 152 layers, whose blocks can be dilated", c.depth);
  if (ExtentsOf(c).empty()) {
    return InvalidArgument("input_size: expected height and width from 1 to {}, as 192,256; found {}", kMostPixels,
                           fmt::join(c.input_size, ","));
  }
  if (c.output_stride != 16 && c.output_stride != 8)
    return InvalidArgument("output_stride {}: expected 16 or 8", c.output_stride);
  if (c.decoder_width < 1) return InvalidArgument("decoder_width must be positive");
  if (c.dropout < 0 || c.dropout >= 1) return InvalidArgument("dropout {} must lie in [0, 1)", c.dropout);
  return OkStatus();
}

Value DeepLab(const DeepLabConfig& config, nn::Context& context, const Value& images, nn::Where where) {
  const int64_t batch = images.dim(0);
  const Shape e = ExtentsOf(config);
  if (images.shape() != Shape{batch, e[0], e[1], config.channels}) {
    ThrowBuildError("deeplab", fmt::format("images must be (B, {}, {}, {})", e[0], e[1], config.channels), {images},
                    where);
  }
  std::array<Value, 4> stages;
  {
    const Graph::Scope scope(context.graph, "backbone");
    stages = ResNetStages(BackboneOf(config), context, images, config.output_stride);
  }
  const Value low = nn::ConvolutionNormReLU(context, "low_level.0", "low_level.1", stages[0], kLowLevelChannels,
                                            {.kernel = 1, .start = kDeepLabStart});
  Value x = ops::Concat({ResizeAs(Pyramid(config, context, stages[3]), low), low}, 3);
  x = nn::ConvolutionNormReLU(context, "decoder.0", "decoder.1", x, config.decoder_width, {.start = kDeepLabStart});
  x = nn::ConvolutionNormReLU(context, "decoder.3", "decoder.4", x, config.decoder_width, {.start = kDeepLabStart});
  x = nn::Convolution(context, "classifier", x, config.classes, {.kernel = 1, .bias = true, .start = kDeepLabStart});
  return ResizeAs(x, images);
}

}  // namespace switchyard
