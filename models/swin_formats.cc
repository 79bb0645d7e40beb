#include "models/swin_formats.h"

#include <regex>
#include <utility>

#include "models/foreign_json.h"
#include "models/hugging_face.h"
#include "models/swin.h"
#include "models/swin_weights.h"
#include "models/timm.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using foreign_json::At;
using foreign_json::Classes;
using foreign_json::Flag;
using foreign_json::kMost;
using foreign_json::Positive;
using foreign_json::RatioIn;
using foreign_json::Side;
using foreign_json::Unexpected;
using Swin = SwinTransformerConfig;

// The listed model of these sizes; else Tiny, of which every size is then set.
ForeignModel FoundSwin(const Swin& sizes, std::vector<std::string> class_names) {
  ForeignModel model = {.name = "swin_tiny",
                        .image_size = sizes.image_size,
                        .channels = sizes.channels,
                        .classes = sizes.classes,
                        .class_names = std::move(class_names)};
  const SettingValues all = OwnSettings(sizes);
  for (const char* size : {"patch", "width", "depths", "heads", "window", "mlp_ratio"}) model.own[size] = all.at(size);
  for (const ModelInfo& info : SwinTransformers()) {
    const auto equal = [&](const char* size) { return info.own.at(size) == all.at(size); };
    if (!equal("patch") || !equal("width") || !equal("depths") || !equal("heads")) continue;
    model.name = info.name;
    break;
  }
  return model;
}

// A list of whole numbers from 1 on; what is missing leaves `numbers` as it is.
Status ReadList(const Json& json, const char* field, std::vector<int>* numbers) {
  const Json& value = At(json, field);
  if (value.is_null()) return OkStatus();
  const auto wrong = [&] { return Unexpected(field, fmt::format("up to 8 whole numbers from 1 to {}", kMost), value); };
  if (!value.is_array() || value.empty() || value.size() > 8) return wrong();
  numbers->clear();
  for (const Json& number : value) {
    if (!number.is_number_integer() || number.get<int64_t>() < 1 || number.get<int64_t>() > kMost) return wrong();
    numbers->push_back(number.get<int>());
  }
  return OkStatus();
}

// The blocks and the heads of each stage under these names.
Status ReadStages(const Json& json, const char* heads_field, Swin* o) {
  std::vector<int> depths = DepthsOf(*o), heads;
  SY_RETURN_IF_ERROR(ReadList(json, "depths", &depths));
  for (size_t i = 0; i < depths.size(); ++i) heads.push_back(o->heads << i);
  SY_RETURN_IF_ERROR(ReadList(json, heads_field, &heads));
  bool doubles = heads.size() == depths.size();
  for (size_t i = 1; i < heads.size(); ++i) doubles = doubles && heads[i] == 2 * heads[i - 1];
  if (!doubles) {
    return Unexpected(heads_field,
                      fmt::format("{} numbers, each twice the one before, as the model here has heads", depths.size()),
                      At(json, heads_field));
  }
  o->heads = heads[0];
  o->depths.clear();
  for (const int depth : depths) o->depths.push_back(std::to_string(depth));
  return OkStatus();
}

Status ReadRatio(const Json& json, Swin* o) {
  const Json& value = At(json, "mlp_ratio");
  if (value.is_null()) return OkStatus();
  if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() < 1024))
    return Unexpected("mlp_ratio", "a number between 0 and 1024", value);
  o->mlp_ratio = value.get<float>();
  return OkStatus();
}

Json Numbers(const std::vector<int>& numbers) { return numbers; }
Json HeadsOf(const Swin& o) {
  Json heads = Json::array();
  for (size_t i = 0; i < o.depths.size(); ++i) heads.push_back(o.heads << i);
  return heads;
}

StatusOr<ForeignModel> ReadHuggingFaceSwin(const Json& config) {
  const Json& act = At(config, "hidden_act");
  if (!act.is_null() && act != "gelu") return Unexpected("hidden_act", "gelu, which the model here has", act);
  SY_ASSIGN_OR_RETURN(const bool bias, Flag(config, "qkv_bias", true));
  if (!bias) return Unexpected("qkv_bias", "true: the model here has a bias there", At(config, "qkv_bias"));
  SY_ASSIGN_OR_RETURN(const bool absolute, Flag(config, "use_absolute_embeddings", false));
  if (absolute) {
    return Unexpected("use_absolute_embeddings", "false: the model here knows relative positions alone",
                      At(config, "use_absolute_embeddings"));
  }
  const Json& eps = At(config, "layer_norm_eps");
  if (!eps.is_null() && !(eps.is_number() && eps.get<float>() == kSwinEps))
    return Unexpected("layer_norm_eps", "1e-05, which the model here has", eps);
  Swin o;
  SY_ASSIGN_OR_RETURN(o.width, Positive(config, "embed_dim", o.width));
  SY_ASSIGN_OR_RETURN(o.window, Positive(config, "window_size", o.window));
  SY_RETURN_IF_ERROR(ReadStages(config, "num_heads", &o));
  SY_RETURN_IF_ERROR(ReadRatio(config, &o));
  SY_ASSIGN_OR_RETURN(o.image_size, Side(config, "image_size", o.image_size));
  SY_ASSIGN_OR_RETURN(o.patch, Side(config, "patch_size", o.patch));
  SY_ASSIGN_OR_RETURN(o.channels, Positive(config, "num_channels", o.channels));
  SY_ASSIGN_OR_RETURN(ForeignLabels labels, ReadHuggingFaceLabels(config));
  if (labels.count) o.classes = *labels.count;
  return FoundSwin(o, std::move(labels.names));
}

std::vector<int> WidthsOf(const Swin& o) {
  std::vector<int> widths;
  for (size_t i = 0; i < o.depths.size(); ++i) widths.push_back(o.width << i);
  return widths;
}

StatusOr<ForeignFiles> WriteHuggingFaceSwin(const ResolvedModel& model, const EvaluationTransform& transform,
                                            const std::vector<std::string>& class_names) {
  const Swin o = SwinTransformerConfigOf(model);
  const int side = o.image_size / o.patch >> (o.depths.size() - 1);  // of the last stage, the smallest
  if (side < o.window) {
    return InvalidArgument(
        "window {} is larger than the last stage, of {} x {} patches: Hugging Face's Swin keeps more biases there than "
        "there are; --names=timm takes this model",
        o.window, side, side);
  }
  Json config = {{"architectures", {"SwinForImageClassification"}},
                 {"model_type", "swin"},
                 {"embed_dim", o.width},
                 {"depths", Numbers(DepthsOf(o))},
                 {"num_heads", HeadsOf(o)},
                 {"window_size", o.window},
                 {"mlp_ratio", RatioIn(o.mlp_ratio, WidthsOf(o))},
                 {"qkv_bias", true},
                 {"hidden_act", "gelu"},
                 {"hidden_dropout_prob", 0.0},
                 {"attention_probs_dropout_prob", 0.0},
                 {"drop_path_rate", JsonOf(o.drop_path)},
                 {"use_absolute_embeddings", false},
                 {"initializer_range", 0.02},
                 {"layer_norm_eps", JsonOf(kSwinEps)},
                 {"image_size", o.image_size},
                 {"patch_size", o.patch},
                 {"num_channels", o.channels},
                 {"hidden_size", o.width << (o.depths.size() - 1)},
                 {"torch_dtype", "float32"}};
  AddHuggingFaceLabels(o.classes, class_names, &config);
  return ForeignFiles{std::move(config), HuggingFacePreprocessor(transform)};
}

// "swin_base_patch4_window12_384" → ours of that size, the window and the image's side.
StatusOr<Swin> SwinOfArchitecture(const Json& name) {
  static const auto& pattern =
      *new std::regex("(swin_(?:tiny|small|base|large))_patch4_window([0-9]{1,2})_([0-9]{2,4})");
  std::smatch match;
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  constexpr size_t kLongest = 64;  // the matcher recurses with the length of the text
  if (text.size() > kLongest || !std::regex_match(text, match, pattern)) {
    return Unexpected("architecture",
                      "swin_tiny, swin_small, swin_base or swin_large _patch4_window, a window and a size", name);
  }
  SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel({.name = match[1].str()}));
  Swin config = SwinTransformerConfigOf(model);
  config.window = std::stoi(match[2].str());
  config.image_size = std::stoi(match[3].str());
  return config;
}

StatusOr<ForeignModel> ReadTimmSwin(const Json& config) {
  Swin o;
  SY_ASSIGN_OR_RETURN(o, SwinOfArchitecture(At(config, "architecture")));
  SY_ASSIGN_OR_RETURN(const Json arguments, ReadTimmArguments(config, {"avg"}));
  SY_ASSIGN_OR_RETURN(o.classes, Classes(config, "num_classes", o.classes));
  for (const auto& [name, value] : arguments.items()) {
    int Swin::*const field = name == "patch_size"    ? &Swin::patch
                             : name == "embed_dim"   ? &Swin::width
                             : name == "window_size" ? &Swin::window
                             : name == "in_chans"    ? &Swin::channels
                                                     : nullptr;
    if (name == "num_classes") {
      SY_ASSIGN_OR_RETURN(o.classes, Classes(arguments, "num_classes", o.classes));
    } else if (name == "img_size") {
      SY_ASSIGN_OR_RETURN(o.image_size, Side(arguments, "img_size", o.image_size));
    } else if (field != nullptr) {
      SY_ASSIGN_OR_RETURN(o.*field, Positive(arguments, name.c_str(), 0));
    } else if (name != "depths" && name != "num_heads" && name != "mlp_ratio" && name != "drop_path_rate") {
      return Unexpected("model_args", "sizes of a plain Swin Transformer", Json{{name, value}});
    }
  }
  SY_RETURN_IF_ERROR(ReadStages(arguments, "num_heads", &o));
  SY_RETURN_IF_ERROR(ReadRatio(arguments, &o));
  SY_ASSIGN_OR_RETURN(std::vector<std::string> names, ReadTimmLabels(config, o.classes));
  return FoundSwin(o, std::move(names));
}

StatusOr<ForeignFiles> WriteTimmSwin(const ResolvedModel& model, const EvaluationTransform& transform,
                                     const std::vector<std::string>& class_names) {
  const Swin o = SwinTransformerConfigOf(model);
  Json config = {{"architecture", "swin_tiny_patch4_window7_224"},
                 {"num_classes", o.classes},
                 {"num_features", o.width << (o.depths.size() - 1)},
                 {"global_pool", "avg"},
                 {"model_args",
                  {{"img_size", o.image_size},
                   {"patch_size", o.patch},
                   {"embed_dim", o.width},
                   {"depths", Numbers(DepthsOf(o))},
                   {"num_heads", HeadsOf(o)},
                   {"window_size", o.window},
                   {"mlp_ratio", RatioIn(o.mlp_ratio, WidthsOf(o))},
                   {"in_chans", o.channels}}}};
  AddTimmTransform(
      transform, {{"num_classes", o.classes}, {"first_conv", "patch_embed.proj"}, {"classifier", "head.fc"}}, &config);
  if (class_names.size() == static_cast<size_t>(o.classes)) config["label_names"] = class_names;
  return ForeignFiles{std::move(config), {}};
}

}  // namespace

const std::vector<ForeignFormat>& SwinFormats() {
  static const auto& formats = *new std::vector<ForeignFormat>{
      {.name = "huggingface",
       .words = "Hugging Face",
       .head = "classifier",
       .to_file = SwinWeightsToHuggingFace,
       .kind_field = "model_type",
       .kind = "swin",
       .read = ReadHuggingFaceSwin,
       .write = WriteHuggingFaceSwin,
       .loader =
           [](const std::string& folder) {
             return fmt::format("transformers.SwinForImageClassification.from_pretrained(\"{}\")", folder);
           }},
      {.name = "timm",
       .words = "timm",
       .head = "head.fc",
       .to_file = SwinWeightsToTimm,
       .kind_field = "architecture",
       .kind = "swin",
       .read = ReadTimmSwin,
       .write = WriteTimmSwin,
       .loader =
           [](const std::string& folder) {
             return fmt::format("timm.create_model(\"local-dir:{}\", pretrained=True)", folder);
           }},
      {.name = "microsoft", .words = "Microsoft's Swin-Transformer", .to_file = SwinWeightsToMicrosoft}};
  return formats;
}

}  // namespace switchyard
