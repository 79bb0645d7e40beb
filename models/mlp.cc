#include "models/mlp.h"

#include <cmath>

#include "core/graph/ops/layout.h"
#include "core/nn/layers.h"
#include "core/settings/fields.h"
#include "fmt/format.h"
#include "models/foreign_format.h"

namespace switchyard {
namespace {

using Mlp = MultiLayerPerceptronConfig;

const std::vector<Field<Mlp>>& MlpFields() {
  static const auto& fields = *new std::vector<Field<Mlp>>{
      FieldOf<&Mlp::width>("width", {.help = "hidden width", .range = Within(1, 1 << 20), .architecture = true}),
      FieldOf<&Mlp::depth>("depth", {.help = "number of layers", .range = Within(1, 4096), .architecture = true}),
      FieldOf<&Mlp::dropout>("dropout", {.help = "dropout probability", .range = WithinBelow(0, 1)}),
  };
  return fields;
}

Mlp MlpConfigOf(const ResolvedModel& model) {
  Mlp config = {.image_size = model.image_size, .channels = model.channels, .classes = model.classes};
  Assign(MlpFields(), model.own, &config).IgnoreError();  // ResolveModel has looked at the types
  return config;
}

const ModelFamily& MlpFamily() {
  static const auto& formats = *new std::vector<ForeignFormat>{{.name = "timm", .words = "timm"}};
  static const auto& family = *new ModelFamily{
      .name = "mlp",
      .words = "multi-layer perceptron",
      .settings = [] { return RowsOf(MlpFields()); },
      .check = [](const ResolvedModel& model) { return Check(MlpConfigOf(model)); },
      .build = [](const ResolvedModel& model, nn::Context& context,
                  const Value& images) { return MultiLayerPerceptron(MlpConfigOf(model), context, images); },
      .layers = [](const ResolvedModel& model) { return MlpConfigOf(model).depth; },
      .formats = []() -> const std::vector<ForeignFormat>& { return formats; }};
  return family;
}

}  // namespace

std::vector<ModelInfo> MultiLayerPerceptrons() {
  const Mlp config;
  return {{.name = "mlp",
           .help = "multi-layer perceptron, for quick checks",
           .family = &MlpFamily(),
           .image_size = config.image_size,
           .channels = config.channels,
           .classes = config.classes,
           .own = ValuesOf(MlpFields(), config),
           .recipe = {{"epochs", 5},
                      {"global_batch_size", 128},
                      {"lr", 1e-3},
                      {"warmup", "0.05"},
                      {"weight_decay", 0.01},
                      {"augmentation", "none"}},
           .preprocessing = {{"mean", nlohmann::json::array({"0.5"})}, {"std", nlohmann::json::array({"0.5"})}}}};
}

Status Check(const MultiLayerPerceptronConfig& c) {
  if (c.image_size < 1 || c.channels < 1 || c.classes < 1 || c.width < 1 || c.depth < 1) {
    return InvalidArgument("image size, channels, classes, width and depth must be positive");
  }
  if (c.dropout < 0 || c.dropout >= 1) return InvalidArgument("dropout {} must lie in [0, 1)", c.dropout);
  return OkStatus();
}

Value MultiLayerPerceptron(const MultiLayerPerceptronConfig& config, nn::Context& context, const Value& images,
                           nn::Where where) {
  const int64_t batch = images.dim(0);
  if (images.shape() != Shape{batch, config.image_size, config.image_size, config.channels}) {
    ThrowBuildError("mlp", fmt::format("images must be (B, {0}, {0}, {1})", config.image_size, config.channels),
                    {images}, where);
  }
  const auto uniform = [](const Value& x) {
    return Initializer{Initializer::kUniform, 1 / std::sqrt(static_cast<float>(x.dim(-1)))};
  };
  Value x = ops::Reshape(images, {batch, -1});
  for (int layer = 1; layer <= config.depth; ++layer) {
    const Graph::Block block(context.graph, layer - 1);
    // Tensor-parallel ranks share the units of every other layer.
    const nn::Sharing sharing = {layer % 2 == 1 ? nn::Sharing::kResults : nn::Sharing::kInputs, config.width};
    x = nn::Linear(context, fmt::format("fc{}", layer), x, config.width,
                   {.start = {.weight = uniform(x)}, .activation = SY_ACTIVATION_GELU, .sharing = sharing});
    x = nn::Dropout(context, fmt::format("drop{}", layer), x, config.dropout);
  }
  const nn::Sharing sharing = config.depth % 2 == 1 ? nn::Sharing{nn::Sharing::kInputs, config.width}
                                                    : nn::Sharing{nn::Sharing::kResults, config.classes};
  return nn::Linear(context, "head", x, config.classes, {.start = {.weight = uniform(x)}, .sharing = sharing});
}

}  // namespace switchyard
