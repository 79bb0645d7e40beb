#include "models/timm.h"

#include <algorithm>
#include <cmath>

#include "models/foreign_json.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using foreign_json::At;
using foreign_json::Repeated;
using foreign_json::Unexpected;

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

Status CheckPool(const Json& json, const std::vector<std::string>& pools) {
  const Json& pool = At(json, "global_pool");
  const auto is_pool = [&](const std::string& name) { return pool == name; };
  if (pool.is_null() || std::any_of(pools.begin(), pools.end(), is_pool)) return OkStatus();
  return Unexpected("global_pool", pools[0], pool);
}

}  // namespace

bool IsTimmConfig(const Json& config) { return config.contains("architecture") && !config.contains("model_type"); }

StatusOr<Json> ReadTimmArguments(const Json& config, const std::vector<std::string>& pools) {
  SY_RETURN_IF_ERROR(CheckPool(config, pools));
  Json arguments = At(config, "model_args");
  if (arguments.is_null()) return Json::object();
  if (!arguments.is_object()) return Unexpected("model_args", "an object", arguments);
  SY_RETURN_IF_ERROR(CheckPool(arguments, pools));
  arguments.erase("global_pool");
  return arguments;
}

StatusOr<std::vector<std::string>> ReadTimmLabels(const Json& config, int classes) {
  std::vector<std::string> labels;
  const Json& names = At(config, "label_names");
  if (names.is_null()) return labels;
  if (!names.is_array() || names.size() != static_cast<size_t>(classes))
    return Unexpected("label_names", fmt::format("{} names", classes), names);
  for (const Json& name : names) {
    if (!name.is_string()) return Unexpected("label_names", "names", name);
    labels.push_back(name.get<std::string>());
  }
  return labels;
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
  t.crop_offset = CropOffset::kHalfEven;
  if (const Json& offset = At(config, kCropOffsetKey); !offset.is_null()) {
    SY_ASSIGN_OR_RETURN(t.crop_offset, ParseCropOffset(offset));
  }
  SY_RETURN_IF_ERROR(Check(t));
  return t;
}

void AddTimmTransform(const EvaluationTransform& t, const Json& fields, Json* config, bool fixed_input_size) {
  const bool squash = t.resize == 0;
  double crop = squash ? 1.0 : static_cast<double>(t.image_size) / t.resize;
  // timm rounds down: what it computes has to be `resize` again.
  if (!squash && std::floor(t.image_size / crop) < t.resize) crop = std::nextafter(crop, 0.0);
  Json pretrained = {{"input_size", {t.channels, t.image_size, t.image_size}},
                     {"fixed_input_size", fixed_input_size},
                     {"interpolation", InterpolationName(t.interpolation)},
                     {"crop_pct", crop},
                     {"crop_mode", squash ? "squash" : "center"},
                     {"mean", Repeated(t.mean, t.channels)},
                     {"std", Repeated(t.std, t.channels)}};
  pretrained.update(fields);
  (*config)["pretrained_cfg"] = std::move(pretrained);
  if (!squash && t.crop_offset != CropOffset::kHalfEven) (*config)[kCropOffsetKey] = CropOffsetName(t.crop_offset);
}

}  // namespace switchyard
