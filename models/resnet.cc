#include "models/resnet.h"

#include <numeric>

#include "core/graph/ops/pointwise.h"
#include "core/nn/convolution.h"
#include "core/nn/layers.h"
#include "core/settings/fields.h"
#include "fmt/format.h"
#include "models/convolution_weights.h"
#include "models/resnet_formats.h"

namespace switchyard {
namespace {

// One block. A bottleneck has four times as many channels as it goes through.
struct ResidualBlock {
  bool bottleneck = true, zero_init = false;
  int64_t channels = 64;  // inside
  int stride = 1, dilation = 1;
  int64_t out() const { return bottleneck ? 4 * channels : channels; }
};

// relu(x + branch(x)); where the branch changes the shape, x passes a 1×1 convolution and a norm.
Value Residual(nn::Context& context, const Value& x, const ResidualBlock& b) {
  using Options = nn::ConvolutionOptions;
  const nn::BatchNormOptions last = {.zero = b.zero_init};
  Value y;
  if (b.bottleneck) {
    y = nn::ConvolutionNormReLU(context, "conv1", "bn1", x, b.channels, Options{.kernel = 1});
    y = nn::ConvolutionNormReLU(context, "conv2", "bn2", y, b.channels, {.stride = b.stride, .dilation = b.dilation});
    y = nn::BatchNorm(context, "bn3", nn::Convolution(context, "conv3", y, b.out(), Options{.kernel = 1}), last);
  } else {
    y = nn::ConvolutionNormReLU(context, "conv1", "bn1", x, b.channels, {.stride = b.stride, .dilation = b.dilation});
    y = nn::BatchNorm(context, "bn2", nn::Convolution(context, "conv2", y, b.out(), {.dilation = b.dilation}), last);
  }
  Value shortcut = x;
  if (b.stride != 1 || x.dim(-1) != b.out()) {
    const Graph::Scope scope(context.graph, "downsample");
    shortcut = nn::Convolution(context, "0", x, b.out(), {.kernel = 1, .stride = b.stride});
    shortcut = nn::BatchNorm(context, "1", shortcut);
  }
  return nn::ReLU(ops::Add(y, shortcut));
}

Value Stem(const ResNetConfig& config, nn::Context& context, const Value& images) {
  if (HasSmallStem(config)) return nn::ConvolutionNormReLU(context, "conv1", "bn1", images, config.width);
  const Value x = nn::ConvolutionNormReLU(context, "conv1", "bn1", images, config.width, {.kernel = 7, .stride = 2});
  return nn::MaxPool(x, 3, 2, 1);
}

const std::vector<Field<ResNetConfig>>& ResNetFields() {
  static const auto& fields = *new std::vector<Field<ResNetConfig>>{
      FieldOf<&ResNetConfig::depth>("depth",
                                    {.help = "number of layers", .range = Within(1, 4096), .architecture = true}),
      FieldOf<&ResNetConfig::width>(
          "width", {.help = "channels behind the stem", .range = Within(1, 1 << 20), .architecture = true}),
      FieldOf<&ResNetConfig::stem>("stem",
                                   {.help = fmt::format("first layers: imagenet divides the extents by 4, small keeps "
                                                        "them; auto is what --pretrained weights have, else "
                                                        "small for images up to {} pixels",
                                                        kSmallImage),
                                    .choices = {"auto", "imagenet", "small"},
                                    .architecture = true}),
      FieldOf<&ResNetConfig::zero_init_residual>("zero_init_residual",
                                                 {.help = "the last norm of every residual branch starts at 0"}),
  };
  return fields;
}

const ModelFamily& ResNetFamily() {
  static const auto& family =
      *new ModelFamily{.name = "resnet",
                       .words = "residual network",
                       .settings = [] { return RowsOf(ResNetFields()); },
                       .check = [](const ResolvedModel& model) { return Check(ResNetConfigOf(model)); },
                       .build = [](const ResolvedModel& model, nn::Context& context,
                                   const Value& images) { return ResNet(ResNetConfigOf(model), context, images); },
                       .layers =
                           [](const ResolvedModel& model) {
                             const std::array<int, 4> blocks = BlocksOf(ResNetConfigOf(model));
                             return std::accumulate(blocks.begin(), blocks.end(), 0);
                           },
                       .head = "fc",
                       .from_file = ResNetWeightsFromFile,
                       .resampled = {"image_size"},  // no weight depends on it, but for the stem, which follows them
                       .of_shapes = {"stem"},
                       .formats = ResNetFormats};
  return family;
}

}  // namespace

std::vector<ModelInfo> ResNets() {
  // He et al. 2016: rate 0.1 for batches of 256, divided by 10 twice; of 90 epochs, behind 30 and 60.
  const SettingValues recipe = {{"epochs", 90},
                                {"global_batch_size", 256},
                                {"optimizer", "sgd"},
                                {"lr", 0.1},
                                {"weight_decay", 1e-4},
                                {"schedule", "multistep"},
                                {"milestones", nlohmann::json::array({"0.333333", "0.666667"})}};
  std::vector<ModelInfo> list;
  const auto add = [&](int depth, const char* parameters) {
    const ResNetConfig config = {.depth = depth};
    list.push_back({.name = fmt::format("resnet{}", depth),
                    .help = fmt::format("residual network of {} layers, {} M parameters", depth, parameters),
                    .family = &ResNetFamily(),
                    .image_size = config.image_size,
                    .channels = config.channels,
                    .classes = config.classes,
                    .own = OwnSettings(config),
                    .recipe = recipe,
                    .preprocessing = ImageNetPreprocessing()});
  };
  add(18, "12");
  add(34, "22");
  add(50, "26");
  add(101, "45");
  add(152, "60");
  return list;
}

SettingValues ImageNetPreprocessing() {
  return {{"mean", nlohmann::json::array({"0.485", "0.456", "0.406"})},
          {"std", nlohmann::json::array({"0.229", "0.224", "0.225"})}};
}

ResNetConfig ResNetConfigOf(const ResolvedModel& model) {
  ResNetConfig config = {.image_size = model.image_size, .channels = model.channels, .classes = model.classes};
  Assign(ResNetFields(), model.own, &config).IgnoreError();  // ResolveModel has looked at the types
  return config;
}

SettingValues OwnSettings(const ResNetConfig& config) { return ValuesOf(ResNetFields(), config); }

bool HasSmallStem(const ResNetConfig& config) {
  return config.stem == "small" || (config.stem == "auto" && config.image_size <= kSmallImage);
}

bool HasBottlenecks(const ResNetConfig& config) { return config.depth >= 50; }

std::array<int, 4> BlocksOf(const ResNetConfig& config) {
  switch (config.depth) {
    case 18:
      return {2, 2, 2, 2};
    case 101:
      return {3, 4, 23, 3};
    case 152:
      return {3, 8, 36, 3};
    default:
      return {3, 4, 6, 3};  // 34 and 50
  }
}

Status Check(const ResNetConfig& c) {
  if (c.image_size < 1 || c.channels < 1 || c.classes < 1 || c.width < 1)
    return InvalidArgument("image size, channels, classes and width must be positive");
  if (c.stem != "auto" && c.stem != "imagenet" && c.stem != "small")
    return InvalidArgument("stem {}: expected auto, imagenet or small", c.stem);
  for (const int depth : {18, 34, 50, 101, 152}) {
    if (c.depth == depth) return OkStatus();
  }
  return InvalidArgument("depth {}: a residual network has 18, 34, 50, 101 or 152 layers", c.depth);
}

std::array<Value, 4> ResNetStages(const ResNetConfig& config, nn::Context& context, const Value& images,
                                  int output_stride) {
  const std::array<int, 4> blocks = BlocksOf(config);
  Value x = Stem(config, context, images);
  std::array<Value, 4> stages;
  int index = 0, dilation = 1, stride = 4;
  for (int stage = 0; stage < 4; ++stage) {
    const Graph::Scope scope(context.graph, fmt::format("layer{}", stage + 1));
    const bool shrinks = stage > 0 && stride < output_stride;
    // The first block of a stage that dilates anew still sees what came in as the stage before did.
    const int dilation_before = dilation;
    if (shrinks) stride *= 2;
    if (stage > 0 && !shrinks) dilation *= 2;
    for (int i = 0; i < blocks[static_cast<size_t>(stage)]; ++i) {
      const Graph::Scope block_scope(context.graph, fmt::format("{}", i));
      const Graph::Block block(context.graph, index++);
      x = Residual(context, x,
                   {.bottleneck = HasBottlenecks(config),
                    .zero_init = config.zero_init_residual,
                    .channels = int64_t{config.width} << stage,
                    .stride = i == 0 && shrinks ? 2 : 1,
                    .dilation = i == 0 ? dilation_before : dilation});
    }
    stages[static_cast<size_t>(stage)] = x;
  }
  return stages;
}

Value ResNet(const ResNetConfig& config, nn::Context& context, const Value& images, nn::Where where) {
  const int64_t batch = images.dim(0);
  if (images.shape() != Shape{batch, config.image_size, config.image_size, config.channels}) {
    ThrowBuildError("resnet", fmt::format("images must be (B, {0}, {0}, {1})", config.image_size, config.channels),
                    {images}, where);
  }
  const Value x = nn::GlobalAveragePool(ResNetStages(config, context, images)[3]);
  return nn::Linear(context, "fc", x, config.classes, {.start = nn::TorchStart(x.dim(-1))});
}

}  // namespace switchyard
