#include "models/vit_formats.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <regex>
#include <utility>

#include "core/base/logging.h"
#include "models/foreign_json.h"
#include "models/hugging_face.h"
#include "models/timm.h"
#include "models/vit.h"
#include "models/vit_weights.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using foreign_json::At;
using foreign_json::Classes;
using foreign_json::Flag;
using foreign_json::Positive;
using foreign_json::RatioIn;
using foreign_json::Side;
using foreign_json::Unexpected;

constexpr float kHuggingFaceEps = 1e-12f;  // of layer norms: transformers' default

// The listed model of these sizes; else Base, of which every size is then set.
ForeignModel Found(const VisionTransformerConfig& sizes, std::vector<std::string> class_names) {
  ForeignModel model = {.name = "vit_base",
                        .image_size = sizes.image_size,
                        .channels = sizes.channels,
                        .classes = sizes.classes,
                        .class_names = std::move(class_names)};
  const SettingValues all = OwnSettings(sizes);
  for (const char* size : {"patch", "width", "depth", "heads", "mlp_ratio"}) model.own[size] = all.at(size);
  for (const ModelInfo& info : VisionTransformers()) {
    const auto equal = [&](const char* size) { return info.own.at(size) == all.at(size); };
    if (!equal("patch") || !equal("width") || !equal("depth") || !equal("heads")) continue;
    model.name = info.name;
    break;
  }
  return model;
}

StatusOr<ForeignModel> ReadHuggingFace(const Json& config) {
  if (At(config, "model_type") != "vit")  // but vit_mae, vit_msn, …
    return Unexpected("model_type", "vit, the only one of its kinds that is read", At(config, "model_type"));
  const Json& act = At(config, "hidden_act");
  if (!act.is_null() && act != "gelu") return Unexpected("hidden_act", "gelu, which the model here has", act);
  SY_ASSIGN_OR_RETURN(const bool bias, Flag(config, "qkv_bias", true));
  if (!bias) return Unexpected("qkv_bias", "true: the model here has a bias there", At(config, "qkv_bias"));
  VisionTransformerConfig o;
  SY_ASSIGN_OR_RETURN(o.width, Positive(config, "hidden_size", 768));
  SY_ASSIGN_OR_RETURN(o.depth, Positive(config, "num_hidden_layers", 12));
  SY_ASSIGN_OR_RETURN(o.heads, Positive(config, "num_attention_heads", 12));
  SY_ASSIGN_OR_RETURN(const int hidden, Positive(config, "intermediate_size", 3072));
  o.mlp_ratio = static_cast<float>(hidden) / static_cast<float>(o.width);
  while (static_cast<int>(o.mlp_ratio * static_cast<float>(o.width)) < hidden)
    o.mlp_ratio = std::nextafter(o.mlp_ratio, std::numeric_limits<float>::infinity());
  SY_ASSIGN_OR_RETURN(o.image_size, Side(config, "image_size", 224));
  SY_ASSIGN_OR_RETURN(o.patch, Side(config, "patch_size", 16));
  SY_ASSIGN_OR_RETURN(o.channels, Positive(config, "num_channels", 3));
  const Json& eps = At(config, "layer_norm_eps");
  if (!eps.is_null() && !(eps.is_number() && eps.get<double>() > 0 && eps.get<double>() < 1))
    return Unexpected("layer_norm_eps", "a number between 0 and 1", eps);
  o.layer_norm_eps = eps.is_null() ? kHuggingFaceEps : eps.get<float>();
  SY_ASSIGN_OR_RETURN(ForeignLabels labels, ReadHuggingFaceLabels(config));
  if (labels.count) o.classes = *labels.count;
  ForeignModel model = Found(o, std::move(labels.names));
  model.of_weights["layer_norm_eps"] = JsonOf(o.layer_norm_eps);  // of transformers' default too
  return model;
}

SettingValues EpsOfHuggingFace(const FindShape& shape) {
  if (!shape("vit.embeddings.cls_token") && !shape("embeddings.cls_token")) return {};
  return {{"layer_norm_eps", JsonOf(kHuggingFaceEps)}};
}

StatusOr<ForeignFiles> WriteHuggingFace(const ResolvedModel& model, const EvaluationTransform& transform,
                                        const std::vector<std::string>& class_names) {
  const VisionTransformerConfig o = VisionTransformerConfigOf(model);
  Json config = {{"architectures", {"ViTForImageClassification"}},
                 {"model_type", "vit"},
                 {"hidden_size", o.width},
                 {"num_hidden_layers", o.depth},
                 {"num_attention_heads", o.heads},
                 {"intermediate_size", static_cast<int>(o.mlp_ratio * static_cast<float>(o.width))},
                 {"hidden_act", "gelu"},
                 {"hidden_dropout_prob", 0.0},
                 {"attention_probs_dropout_prob", 0.0},
                 {"initializer_range", 0.02},
                 {"layer_norm_eps", std::strtod(fmt::format("{}", o.layer_norm_eps).c_str(), nullptr)},
                 {"image_size", o.image_size},
                 {"patch_size", o.patch},
                 {"num_channels", o.channels},
                 {"qkv_bias", true},
                 {"torch_dtype", "float32"}};
  AddHuggingFaceLabels(o.classes, class_names, &config);
  return ForeignFiles{std::move(config), HuggingFacePreprocessor(transform)};
}

// "vit_small_patch32_384" → ours of that size and patch, and the image's side.
StatusOr<VisionTransformerConfig> ConfigOfArchitecture(const Json& name) {
  static const auto& pattern = *new std::regex("(vit_[a-z]+)_patch(16|32)_([0-9]{2,4})");
  std::smatch match;
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  constexpr size_t kLongest = 64;  // the matcher recurses with the length of the text
  const bool matches = text.size() <= kLongest && std::regex_match(text, match, pattern);
  const auto model =
      ResolveModel({.name = matches ? match[1].str() + (match[2] == "32" ? "_patch32" : "") : std::string()});
  if (!model.ok())
    return Unexpected("architecture", "vit_tiny, vit_small, vit_base or vit_large _patch16 or _patch32 and a size",
                      name);
  VisionTransformerConfig config = VisionTransformerConfigOf(*model);
  config.image_size = std::stoi(match[3].str());
  return config;
}

StatusOr<ForeignModel> ReadTimm(const Json& config) {
  VisionTransformerConfig o;
  SY_ASSIGN_OR_RETURN(o, ConfigOfArchitecture(At(config, "architecture")));
  SY_ASSIGN_OR_RETURN(const Json arguments, ReadTimmArguments(config, {"token", ""}));
  SY_ASSIGN_OR_RETURN(o.classes, Classes(config, "num_classes", 1000));
  for (const auto& [name, value] : arguments.items()) {
    int VisionTransformerConfig::*const field = name == "patch_size"  ? &VisionTransformerConfig::patch
                                                : name == "embed_dim" ? &VisionTransformerConfig::width
                                                : name == "depth"     ? &VisionTransformerConfig::depth
                                                : name == "num_heads" ? &VisionTransformerConfig::heads
                                                : name == "in_chans"  ? &VisionTransformerConfig::channels
                                                                      : nullptr;
    if (name == "num_classes") {
      SY_ASSIGN_OR_RETURN(o.classes, Classes(arguments, "num_classes", o.classes));
    } else if (name == "img_size") {
      SY_ASSIGN_OR_RETURN(o.image_size, Side(arguments, "img_size", o.image_size));
    } else if (field != nullptr) {
      SY_ASSIGN_OR_RETURN(o.*field, Positive(arguments, name.c_str(), 0));
    } else if (name == "mlp_ratio" && value.is_number() && value.get<double>() > 0 && value.get<double>() < 1024) {
      o.mlp_ratio = value.get<float>();
    } else {
      return Unexpected("model_args", "sizes of a plain Vision Transformer", Json{{name, value}});
    }
  }
  SY_ASSIGN_OR_RETURN(std::vector<std::string> names, ReadTimmLabels(config, o.classes));
  return Found(o, std::move(names));  // which says nothing of layer_norm_eps
}

StatusOr<ForeignFiles> WriteTimm(const ResolvedModel& model, const EvaluationTransform& transform,
                                 const std::vector<std::string>& class_names) {
  const VisionTransformerConfig o = VisionTransformerConfigOf(model);
  if (o.layer_norm_eps != kTimmEps)
    LogWarning("layer_norm_eps {:g} is not kept: timm's Vision Transformers have {:g}", o.layer_norm_eps, kTimmEps);
  Json config = {{"architecture", o.patch == 32 ? "vit_base_patch32_224" : "vit_base_patch16_224"},
                 {"num_classes", o.classes},
                 {"num_features", o.width},
                 {"global_pool", "token"},
                 {"model_args",
                  {{"img_size", o.image_size},
                   {"patch_size", o.patch},
                   {"embed_dim", o.width},
                   {"depth", o.depth},
                   {"num_heads", o.heads},
                   {"mlp_ratio", RatioIn(o.mlp_ratio, {o.width})},
                   {"in_chans", o.channels}}}};
  AddTimmTransform(transform, {{"num_classes", o.classes}, {"first_conv", "patch_embed.proj"}, {"classifier", "head"}},
                   &config);
  if (class_names.size() == static_cast<size_t>(o.classes)) config["label_names"] = class_names;
  return ForeignFiles{std::move(config), {}};
}

}  // namespace

const std::vector<ForeignFormat>& VitFormats() {
  static const auto& formats = *new std::vector<ForeignFormat>{
      {.name = "huggingface",
       .words = "Hugging Face",
       .head = "classifier",
       .to_file = VitWeightsToHuggingFace,
       .implied = EpsOfHuggingFace,
       .kind_field = "model_type",
       .kind = "vit",
       .read = ReadHuggingFace,
       .write = WriteHuggingFace,
       .loader =
           [](const std::string& folder) {
             return fmt::format("transformers.ViTForImageClassification.from_pretrained(\"{}\")", folder);
           }},
      {.name = "timm",
       .words = "timm",
       .to_file = VitWeightsToTimm,
       .kind_field = "architecture",
       .kind = "vit",
       .read = ReadTimm,
       .write = WriteTimm,
       .loader = [](const std::string& folder) {
         return fmt::format("timm.create_model(\"local-dir:{}\", pretrained=True)", folder);
       }}};
  return formats;
}

}  // namespace switchyard
