#include "models/timm.h"

#include <cmath>
#include <regex>

#include "models/foreign_json.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using foreign_json::At;
using foreign_json::Positive;
using foreign_json::Repeated;
using foreign_json::Unexpected;

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

StatusOr<std::vector<float>> Statistics(const Json& json, const char* field) {
  const Json& value = At(json, field);
  std::vector<float> numbers;
  if (!value.is_array() || value.empty()) return Unexpected(field, "a list of numbers", value);
  for (const Json& number : value) {
    if (!number.is_number()) return Unexpected(field, "numbers", value);
    numbers.push_back(number.get<float>());
  }
  return numbers;
}

}  // namespace

bool IsTimmConfig(const Json& config) { return config.contains("architecture") && !config.contains("model_type"); }

StatusOr<ForeignModel> ReadTimmConfig(const Json& config) {
  ForeignModel model;
  VisionTransformerConfig& o = model.config;
  SY_ASSIGN_OR_RETURN(o, ConfigOfArchitecture(At(config, "architecture")));
  const Json& pool = At(config, "global_pool");
  if (!pool.is_null() && pool != "token" && pool != "") return Unexpected("global_pool", "token", pool);
  SY_ASSIGN_OR_RETURN(o.classes, Positive(config, "num_classes", 1000));
  const Json arguments = At(config, "model_args").is_null() ? Json::object() : At(config, "model_args");
  if (!arguments.is_object()) return Unexpected("model_args", "an object", arguments);
  for (const auto& [name, value] : arguments.items()) {
    int VisionTransformerConfig::*const field = name == "img_size"      ? &VisionTransformerConfig::image_size
                                                : name == "patch_size"  ? &VisionTransformerConfig::patch
                                                : name == "embed_dim"   ? &VisionTransformerConfig::width
                                                : name == "depth"       ? &VisionTransformerConfig::depth
                                                : name == "num_heads"   ? &VisionTransformerConfig::heads
                                                : name == "in_chans"    ? &VisionTransformerConfig::channels
                                                : name == "num_classes" ? &VisionTransformerConfig::classes
                                                                        : nullptr;
    if (field != nullptr) {
      SY_ASSIGN_OR_RETURN(o.*field, Positive(arguments, name.c_str(), 0));
    } else if (name == "mlp_ratio" && value.is_number() && value.get<double>() > 0 && value.get<double>() < 1024) {
      o.mlp_ratio = value.get<float>();
    } else {
      return Unexpected("model_args", "sizes of a plain Vision Transformer", Json{{name, value}});
    }
  }
  const Json& names = At(config, "label_names");
  if (!names.is_null()) {
    if (!names.is_array() || names.size() != static_cast<size_t>(o.classes))
      return Unexpected("label_names", fmt::format("{} names", o.classes), names);
    for (const Json& name : names) {
      if (!name.is_string()) return Unexpected("label_names", "names", name);
      model.class_names.push_back(name.get<std::string>());
    }
  }
  return model;
}

StatusOr<EvaluationTransform> ReadTimmTransform(const Json& config, int image_size, int channels) {
  const Json& about = At(config, "pretrained_cfg");
  if (!about.is_object()) return Unexpected("pretrained_cfg", "an object", about);
  EvaluationTransform t;
  t.image_size = image_size;
  t.channels = channels;
  SY_ASSIGN_OR_RETURN(t.mean, Statistics(about, "mean"));
  SY_ASSIGN_OR_RETURN(t.std, Statistics(about, "std"));
  const Json& filter = At(about, "interpolation");
  if (!filter.is_string()) return Unexpected("interpolation", "bilinear or bicubic", filter);
  SY_ASSIGN_OR_RETURN(t.interpolation, ParseInterpolation(filter.get<std::string>()));
  const Json &crop = At(about, "crop_pct"), &mode = At(about, "crop_mode");
  if (!crop.is_null() && !(crop.is_number() && crop.get<double>() >= 0.1 && crop.get<double>() <= 1))
    return Unexpected("crop_pct", "a number from 0.1 to 1", crop);
  if (!mode.is_null() && mode != "center" && mode != "squash") return Unexpected("crop_mode", "center or squash", mode);
  // As timm rounds it; stretching the whole image and then cropping it is not among what we do.
  t.resize = static_cast<int>(std::floor(image_size / (crop.is_null() ? 0.875 : crop.get<double>())));
  if (mode == "squash" && t.resize != image_size) return Unexpected("crop_pct", "1 with crop_mode squash", crop);
  if (mode == "squash") t.resize = 0;
  SY_RETURN_IF_ERROR(Check(t));
  return t;
}

Json TimmConfig(const ResolvedModel& model, const EvaluationTransform& t, const std::vector<std::string>& class_names) {
  const VisionTransformerConfig o = VisionTransformerConfigOf(model);
  const bool squash = t.resize == 0;
  double crop = squash ? 1.0 : static_cast<double>(t.image_size) / t.resize;
  // timm rounds down: what it computes has to be `resize` again.
  if (!squash && std::floor(t.image_size / crop) < t.resize) crop = std::nextafter(crop, 0.0);
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
                   {"mlp_ratio", o.mlp_ratio},
                   {"in_chans", o.channels}}},
                 {"pretrained_cfg",
                  {{"input_size", {o.channels, o.image_size, o.image_size}},
                   {"fixed_input_size", true},
                   {"num_classes", o.classes},
                   {"interpolation", InterpolationName(t.interpolation)},
                   {"crop_pct", crop},
                   {"crop_mode", squash ? "squash" : "center"},
                   {"mean", Repeated(t.mean, t.channels)},
                   {"std", Repeated(t.std, t.channels)},
                   {"first_conv", "patch_embed.proj"},
                   {"classifier", "head"}}}};
  if (class_names.size() == static_cast<size_t>(o.classes)) config["label_names"] = class_names;
  return config;
}

}  // namespace switchyard
