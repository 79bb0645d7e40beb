#include "core/data/evaluation_transform.h"

#include <cmath>
#include <cstdlib>

#include "core/base/text.h"

namespace switchyard {
namespace {

constexpr int kMostPixels = 8192;

Status CheckWhole(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument("{}: expected {} to {}, found {}", field, low, high, value);
}

Status CheckStatistics(const char* field, const std::vector<float>& numbers, int channels, float low) {
  if (numbers.size() != 1 && numbers.size() != static_cast<size_t>(channels)) {
    return InvalidArgument("{}: expected one number or {} (one per channel), found {}", field, channels,
                           numbers.size());
  }
  for (const float number : numbers) {
    if (!(number >= low && number <= 1e6f))  // also not-a-number
      return InvalidArgument("{}: expected numbers from {} to 1e6, found {}", field, low, number);
  }
  return OkStatus();
}

StatusOr<int> Whole(const nlohmann::json& json, const char* field) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < 0 ||
      found->get<int64_t>() > kMostPixels * 16) {
    return InvalidArgument("{}: expected a whole number, found {}", field,
                           found == json.end() ? "none" : found->type_name());
  }
  return found->get<int>();
}

StatusOr<std::vector<float>> Numbers(const nlohmann::json& json, const char* field) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_array())
    return InvalidArgument("{}: expected a list of numbers, found {}", field,
                           found == json.end() ? "none" : found->type_name());
  std::vector<float> numbers;
  for (const nlohmann::json& number : *found) {
    if (!number.is_number()) return InvalidArgument("{}: expected numbers, found {}", field, number.type_name());
    numbers.push_back(number.get<float>());
  }
  return numbers;
}

// The double with the fewest digits that is this float: 0.485, not 0.48500001430511475.
nlohmann::json Plain(const std::vector<float>& numbers) {
  nlohmann::json json = nlohmann::json::array();
  for (const float number : numbers) json.push_back(std::strtod(fmt::format("{}", number).c_str(), nullptr));
  return json;
}

}  // namespace

const char* CropOffsetName(CropOffset offset) { return offset == CropOffset::kDown ? "down" : "half_even"; }

StatusOr<CropOffset> ParseCropOffset(const nlohmann::json& name) {
  for (const CropOffset offset : {CropOffset::kDown, CropOffset::kHalfEven})
    if (name == CropOffsetName(offset)) return offset;
  return InvalidArgument("crop_offset: expected \"down\" or \"half_even\", found {}", Printable(name.dump()));
}

int ResizeForCrop(int image_size, float crop_ratio) {
  return static_cast<int>(std::lround(static_cast<float>(image_size) / crop_ratio));
}

Status Check(const EvaluationTransform& t) {
  SY_RETURN_IF_ERROR(CheckWhole("image_size", t.image_size, 1, kMostPixels));
  if (t.channels != 1 && t.channels != 3) return InvalidArgument("channels: expected 1 or 3, found {}", t.channels);
  if (t.resize != 0) SY_RETURN_IF_ERROR(CheckWhole("resize", t.resize, t.image_size, 16 * kMostPixels));
  SY_RETURN_IF_ERROR(CheckStatistics("mean", t.mean, t.channels, -1e6f));
  return CheckStatistics("std", t.std, t.channels, 1e-6f);
}

nlohmann::json ToJson(const EvaluationTransform& t) {
  return {{"image_size", t.image_size},
          {"channels", t.channels},
          {"resize", t.resize},
          {"interpolation", InterpolationName(t.interpolation)},
          {"mean", Plain(t.mean)},
          {"std", Plain(t.std)},
          {kCropOffsetKey, CropOffsetName(t.crop_offset)}};
}

StatusOr<EvaluationTransform> EvaluationTransformFromJson(const nlohmann::json& json) {
  if (!json.is_object()) return InvalidArgument("expected an object, found {}", json.type_name());
  EvaluationTransform t;
  SY_ASSIGN_OR_RETURN(t.image_size, Whole(json, "image_size"));
  SY_ASSIGN_OR_RETURN(t.channels, Whole(json, "channels"));
  SY_ASSIGN_OR_RETURN(t.resize, Whole(json, "resize"));
  const auto interpolation = json.find("interpolation");
  if (interpolation == json.end() || !interpolation->is_string())
    return InvalidArgument("interpolation: expected a name, found {}",
                           interpolation == json.end() ? "none" : interpolation->type_name());
  SY_ASSIGN_OR_RETURN(t.interpolation, ParseInterpolation(interpolation->get<std::string>()));
  SY_ASSIGN_OR_RETURN(t.mean, Numbers(json, "mean"));
  SY_ASSIGN_OR_RETURN(t.std, Numbers(json, "std"));
  if (const auto offset = json.find(kCropOffsetKey); offset != json.end()) {
    SY_ASSIGN_OR_RETURN(t.crop_offset, ParseCropOffset(*offset));
  }
  SY_RETURN_IF_ERROR(Check(t));
  return t;
}

}  // namespace switchyard
