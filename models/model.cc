#include "models/model.h"

#include <algorithm>

#include "core/base/names.h"
#include "models/mlp.h"
#include "models/vit.h"

namespace switchyard {
namespace {

VisionTransformerConfig VitConfig(const ModelOptions& o) {
  return {.image_size = o.image_size,
          .channels = o.channels,
          .classes = o.classes,
          .patch = o.patch,
          .width = o.width,
          .depth = o.depth,
          .heads = o.heads,
          .mlp_ratio = o.mlp_ratio,
          .layer_norm_eps = o.layer_norm_eps,
          .dropout = o.dropout,
          .drop_path = o.drop_path};
}
Status CheckVit(const ModelOptions& o) { return Check(VitConfig(o)); }
Value BuildVit(const ModelOptions& o, nn::Context& context, const Value& images) {
  return VisionTransformer(VitConfig(o), context, images);
}

MultiLayerPerceptronConfig MlpConfig(const ModelOptions& o) {
  return {.image_size = o.image_size,
          .channels = o.channels,
          .classes = o.classes,
          .width = o.width,
          .depth = o.depth,
          .dropout = o.dropout};
}
Status CheckMlp(const ModelOptions& o) { return Check(MlpConfig(o)); }
Value BuildMlp(const ModelOptions& o, nn::Context& context, const Value& images) {
  return MultiLayerPerceptron(MlpConfig(o), context, images);
}

const Normalization kHalf = {.mean = {0.5f}, .std = {0.5f}};

ModelInfo Vit(const std::string& name, const std::string& help, int patch, int width, int depth, int heads) {
  return {.name = name,
          .help = help,
          .family = "vit",
          .defaults = {name, 224, 3, 1000, patch, width, depth, heads, 4, kTimmEps, 0, 0},
          .recipe = {.lr = 5e-4f, .warmup_lr = 1e-6f, .min_lr = 1e-5f, .clip = 1, .label_smoothing = 0.1f},
          .normalization = kHalf,
          .check = CheckVit,
          .build = BuildVit};
}

std::vector<ModelInfo> MakeModels() {
  const ModelInfo micro = {.name = "vit_micro",
                           .help = "Vision Transformer for 28×28 grey images, patch 7: minutes on a laptop",
                           .family = "vit",
                           .defaults = {"vit_micro", 28, 1, 10, 7, 64, 4, 4, 2, kTimmEps, 0, 0},
                           .recipe = {.epochs = 14,
                                      .global_batch = 128,
                                      .lr = 3e-3f,
                                      .min_lr = 1e-5f,
                                      .warmup = "0.0714",  // one epoch
                                      .clip = 1,
                                      .label_smoothing = 0.1f,
                                      .augmentation = "none"},
                           .normalization = kHalf,
                           .check = CheckVit,
                           .build = BuildVit};
  const ModelInfo mlp = {
      .name = "mlp",
      .help = "multi-layer perceptron, for quick checks",
      .family = "mlp",
      .defaults = {"mlp", 28, 1, 10, 0, 256, 2, 0, 0, 0, 0, -1},
      .recipe = {.epochs = 5, .global_batch = 128, .lr = 1e-3f, .weight_decay = 0.01f, .augmentation = "none"},
      .normalization = kHalf,
      .check = CheckMlp,
      .build = BuildMlp};
  return {micro,
          Vit("vit_tiny", "Vision Transformer Ti/16, 5.7 M parameters", 16, 192, 12, 3),
          Vit("vit_small", "Vision Transformer S/16, 22 M parameters", 16, 384, 12, 6),
          Vit("vit_base", "Vision Transformer B/16, 87 M parameters", 16, 768, 12, 12),
          Vit("vit_large", "Vision Transformer L/16, 304 M parameters", 16, 1024, 24, 16),
          Vit("vit_tiny_patch32", "Vision Transformer Ti/32", 32, 192, 12, 3),
          Vit("vit_small_patch32", "Vision Transformer S/32", 32, 384, 12, 6),
          Vit("vit_base_patch32", "Vision Transformer B/32", 32, 768, 12, 12),
          Vit("vit_large_patch32", "Vision Transformer L/32", 32, 1024, 24, 16),
          mlp};
}

}  // namespace

const std::vector<ModelInfo>& Models() {
  static const std::vector<ModelInfo> models = MakeModels();
  return models;
}

namespace {

// A setting that the model does not read would be accepted and do nothing.
Status CheckReads(const ModelInfo& info, const ModelOptions& options) {
  const ModelOptions& d = info.defaults;
  const ModelOptions& o = options;
  struct Setting {
    const char* flag;
    bool read, given;
  };
  const Setting settings[] = {
      {"image_size", true, false},
      {"channels", true, false},
      {"classes", true, false},
      {"patch", d.patch > 0, o.patch > 0},
      {"width", d.width > 0, o.width > 0},
      {"depth", d.depth > 0, o.depth > 0},
      {"heads", d.heads > 0, o.heads > 0},
      {"mlp_ratio", d.mlp_ratio > 0, o.mlp_ratio > 0},
      {"dropout", d.dropout >= 0, o.dropout > 0},
      {"drop_path", d.drop_path >= 0, o.drop_path > 0},
  };
  std::string read;
  for (const Setting& setting : settings) {
    if (setting.read) read += (read.empty() ? "--" : ", --") + std::string(setting.flag);
  }
  for (const Setting& setting : settings) {
    if (setting.given && !setting.read)
      return InvalidArgument("model {}: it has no --{}; what it has is {}", info.name, setting.flag, read);
  }
  return OkStatus();
}

}  // namespace

StatusOr<ResolvedModel> ResolveModel(const ModelOptions& options) {
  std::vector<std::string> known;
  const ModelInfo* info = nullptr;
  for (const ModelInfo& model : Models()) {
    known.push_back(model.name);
    if (model.name == options.name) info = &model;
  }
  if (info == nullptr) {
    return NotFound("unknown model '{}'{}; `switchyard models` lists them", options.name,
                    DidYouMean(options.name, known));
  }
  SY_RETURN_IF_ERROR(CheckReads(*info, options));
  ResolvedModel model = {options, info};
  for (int ModelOptions::*field :
       {&ModelOptions::image_size, &ModelOptions::channels, &ModelOptions::classes, &ModelOptions::patch,
        &ModelOptions::width, &ModelOptions::depth, &ModelOptions::heads}) {
    if (options.*field == 0) model.options.*field = info->defaults.*field;
  }
  if (options.mlp_ratio == 0) model.options.mlp_ratio = info->defaults.mlp_ratio;
  if (options.layer_norm_eps == 0) model.options.layer_norm_eps = info->defaults.layer_norm_eps;
  if (options.dropout < 0) model.options.dropout = std::max(0.0f, info->defaults.dropout);
  if (options.drop_path < 0) model.options.drop_path = std::max(0.0f, info->defaults.drop_path);
  SY_RETURN_IF_ERROR(Annotate(info->check(model.options), "model " + info->name));
  return model;
}

Value BuildModel(const ResolvedModel& model, nn::Context& context, const Value& images) {
  return model.info->build(model.options, context, images);
}

std::map<std::string, TensorType> ParameterTypes(const ResolvedModel& model) {
  Graph graph;
  nn::Context context(graph);
  const ModelOptions& o = model.options;
  BuildModel(model, context, graph.Input("images", {DType::kF32, {1, o.image_size, o.image_size, o.channels}}, {}));
  std::map<std::string, TensorType> types;
  for (const int id : graph.Inputs(Role::kParameter)) types[graph.node(id).name] = graph.node(id).outputs[0];
  return types;
}

int64_t ParameterCount(const ResolvedModel& model) {
  int64_t count = 0;
  for (const auto& [name, type] : ParameterTypes(model)) count += type.elements();
  return count;
}

}  // namespace switchyard
