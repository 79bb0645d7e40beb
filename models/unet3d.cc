#include "models/unet3d.h"

#include "absl/strings/numbers.h"
#include "core/graph/ops/layout.h"
#include "core/nn/convolution.h"
#include "core/settings/fields.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "models/convolution_weights.h"
#include "models/foreign_format.h"

namespace switchyard {
namespace {

constexpr auto kUNetStart = nn::ConvolutionStart::kTorch;  // of all convolutions, as of modules of torch.nn
constexpr int kMostVoxels = 8192;                          // along an axis

// Twice a convolution with norm and ReLU; x (B, D, H, W, C) → (B, D, H, W, width).
Value DoubleConvolution(nn::Context& context, const Value& x, int64_t width) {
  const Value y = nn::ConvolutionNormReLU(context, "conv1", "norm1", x, width, {.start = kUNetStart});
  return nn::ConvolutionNormReLU(context, "conv2", "norm2", y, width, {.start = kUNetStart});
}

// x (B, D, H, W, C) → twice the extents.
Value Enlarged(const UNet3dConfig& config, nn::Context& context, const Value& x, int64_t width) {
  if (config.up == "transposed") return nn::TransposedConvolution(context, "up", x, width);
  return nn::ResizeLinear(x, {2 * x.dim(1), 2 * x.dim(2), 2 * x.dim(3)});
}

const std::vector<Field<UNet3dConfig>>& UNet3dFields() {
  static const auto& fields = *new std::vector<Field<UNet3dConfig>>{
      FieldOf<&UNet3dConfig::patch_size>(
          "patch_size", {.help = "depth, height and width of the volumes that the model takes, as 32,64,64; a cube of "
                                 "--image_size where it is not given",
                         .unit = "voxels",
                         .architecture = true}),
      FieldOf<&UNet3dConfig::width>("width", {.help = "channels of the finest level; they double from level to level",
                                              .range = Within(1, 1 << 20),
                                              .architecture = true}),
      FieldOf<&UNet3dConfig::levels>(
          "levels", {.help = "levels, each of half the extents", .range = Within(1, 8), .architecture = true}),
      FieldOf<&UNet3dConfig::up>("up", {.help = "how a level is enlarged to the next finer one",
                                        .choices = {"trilinear", "transposed"},
                                        .architecture = true}),
  };
  return fields;
}

const ModelFamily& UNet3dFamily() {
  static const auto& formats = *new std::vector<ForeignFormat>{
      {.name = "torch", .words = "PyTorch's modules", .to_file = ConvolutionWeightsToFile}};
  static const auto& family =
      *new ModelFamily{.name = "unet3d",
                       .words = "3-D U-Net",
                       .data = Content::kMaskedVolumes,
                       .settings = [] { return RowsOf(UNet3dFields()); },
                       .check = [](const ResolvedModel& model) { return Check(UNet3dConfigOf(model)); },
                       .build = [](const ResolvedModel& model, nn::Context& context,
                                   const Value& volumes) { return UNet3d(UNet3dConfigOf(model), context, volumes); },
                       .input_shape =
                           [](const ResolvedModel& model) {
                             Shape shape = ExtentsOf(UNet3dConfigOf(model));
                             shape.push_back(model.channels);
                             return shape;
                           },
                       .layers = [](const ResolvedModel& model) { return 4 * UNet3dConfigOf(model).levels - 2; },
                       .from_file = ConvolutionWeightsFromFile,
                       .resampled = {"image_size", "patch_size"},  // no weight depends on them
                       .formats = []() -> const std::vector<ForeignFormat>& { return formats; }};
  return family;
}

}  // namespace

std::vector<ModelInfo> UNets3d() {
  const UNet3dConfig config;
  return {{.name = "unet3d",
           .help = "3-D U-Net for volumes, 4 levels, 6 M parameters",
           .family = &UNet3dFamily(),
           .image_size = config.image_size,
           .channels = config.channels,
           .classes = config.classes,
           .own = ValuesOf(UNet3dFields(), config),
           .recipe = {{"epochs", 100},
                      {"global_batch_size", 2},
                      {"lr", 1e-3},
                      {"min_lr", 1e-6},
                      {"warmup", "0.05"},
                      {"weight_decay", 1e-4},
                      {"clip", 1}},
           .preprocessing = {{"mean", nlohmann::json::array({"0.5"})}, {"std", nlohmann::json::array({"0.5"})}}}};
}

UNet3dConfig UNet3dConfigOf(const ResolvedModel& model) {
  UNet3dConfig config = {.image_size = model.image_size, .channels = model.channels, .classes = model.classes};
  Assign(UNet3dFields(), model.own, &config).IgnoreError();  // ResolveModel has looked at the types
  return config;
}

Shape ExtentsOf(const UNet3dConfig& config) {
  if (config.patch_size.empty()) return Shape(3, config.image_size);
  Shape extents;
  for (const std::string& text : config.patch_size) {
    int extent = 0;
    if (!absl::SimpleAtoi(text, &extent) || extent < 1 || extent > kMostVoxels) return {};
    extents.push_back(extent);
  }
  return extents.size() == 3 ? extents : Shape();
}

Status Check(const UNet3dConfig& c) {
  if (c.image_size < 1 || c.channels < 1 || c.classes < 1 || c.width < 1 || c.levels < 1 || c.levels > 8)
    return InvalidArgument("image size, channels, classes, width and levels must be positive, and levels at most 8");
  if (c.up != "trilinear" && c.up != "transposed")
    return InvalidArgument("up: expected trilinear or transposed, found {}", c.up);
  const Shape extents = ExtentsOf(c);
  if (extents.empty()) {
    return InvalidArgument("patch_size: expected depth, height and width from 1 to {}, as 32,64,64; found {}",
                           kMostVoxels, fmt::join(c.patch_size, ","));
  }
  const int64_t unit = int64_t{1} << (c.levels - 1);
  Shape fitting;
  for (const int64_t extent : extents) fitting.push_back((extent + unit - 1) / unit * unit);
  if (extents == fitting) return OkStatus();
  return InvalidArgument("a volume of {} voxels cannot be halved {} times; try --patch_size={}",
                         fmt::join(extents, "×"), c.levels - 1, fmt::join(fitting, ","));
}

Value UNet3d(const UNet3dConfig& config, nn::Context& context, const Value& volumes, nn::Where where) {
  const Shape e = ExtentsOf(config);
  if (volumes.shape() != Shape{volumes.dim(0), e[0], e[1], e[2], config.channels}) {
    ThrowBuildError("unet3d", fmt::format("volumes must be (B, {}, {}, {}, {})", e[0], e[1], e[2], config.channels),
                    {volumes}, where);
  }
  Graph& graph = context.graph;
  const auto width = [&](int level) { return int64_t{config.width} << level; };
  std::vector<Value> levels;
  Value x = volumes;
  int block = 0;
  for (int level = 0; level < config.levels; ++level) {
    const Graph::Scope scope(graph, fmt::format("encoder.{}", level));
    if (level > 0) x = nn::MaxPool(x, 2, 2);
    const Graph::Block repeats(graph, block++);
    x = DoubleConvolution(context, x, width(level));
    levels.push_back(x);
  }
  for (int level = config.levels - 2; level >= 0; --level) {
    const Graph::Scope scope(graph, fmt::format("decoder.{}", level));
    const Value from_below = Enlarged(config, context, x, width(level));
    const Graph::Block repeats(graph, block++);
    x = DoubleConvolution(context, ops::Concat({levels[static_cast<size_t>(level)], from_below}, 4), width(level));
  }
  return nn::Convolution(context, "head", x, config.classes, {.kernel = 1, .bias = true, .start = kUNetStart}, where);
}

}  // namespace switchyard
