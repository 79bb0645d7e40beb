#include "models/hugging_face.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/base/logging.h"
#include "models/foreign_json.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using foreign_json::At;
using foreign_json::Flag;
using foreign_json::Positive;
using foreign_json::Repeated;
using foreign_json::Side;
using foreign_json::Unexpected;

constexpr int kMostClasses = 1 << 24;
constexpr double kScale = 1.0 / 255;  // of pixels

StatusOr<std::vector<float>> Statistics(const Json& json, const char* field, int channels) {
  const Json& value = At(json, field);
  if (value.is_null()) return std::vector<float>{0.5f};  // IMAGENET_STANDARD_MEAN and _STD of transformers
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<float> numbers;
  for (const Json& number : list) {
    if (!number.is_number()) return Unexpected(field, "numbers", value);
    numbers.push_back(number.get<float>());
  }
  if (numbers.size() != 1 && numbers.size() != static_cast<size_t>(channels))
    return Unexpected(field, fmt::format("one number or {}", channels), value);
  return numbers;
}

// PIL's numbers of its filters.
const std::map<int, Interpolation>& Filters() {
  static const auto& filters =
      *new std::map<int, Interpolation>{{2, Interpolation::kBilinear}, {3, Interpolation::kBicubic}};
  return filters;
}

bool Meaningless(const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != fmt::format("LABEL_{}", i)) return false;
  }
  return true;
}

}  // namespace

StatusOr<ForeignLabels> ReadHuggingFaceLabels(const Json& config) {
  ForeignLabels labels;
  const Json& ids = At(config, "id2label");
  if (ids.is_null()) return labels;
  if (!ids.is_object() || ids.empty() || ids.size() > kMostClasses)
    return Unexpected("id2label", "an object of class names by number", ids);
  const int count = static_cast<int>(ids.size());
  labels.count = count;
  for (int i = 0; i < count; ++i) {
    const auto found = ids.find(std::to_string(i));
    if (found == ids.end())
      return InvalidArgument("id2label: expected the numbers 0 to {}, found none for {}", count - 1, i);
    if (!found->is_string()) return Unexpected("id2label", fmt::format("a name for {}", i), *found);
    labels.names.push_back(found->get<std::string>());
  }
  if (Meaningless(labels.names)) labels.names.clear();
  return labels;
}

void AddHuggingFaceLabels(int classes, const std::vector<std::string>& class_names, Json* config) {
  Json names = Json::object(), ids = Json::object();
  for (int i = 0; i < classes; ++i) {
    const bool named = static_cast<size_t>(i) < class_names.size();
    const std::string name = named ? class_names[static_cast<size_t>(i)] : fmt::format("LABEL_{}", i);
    names[std::to_string(i)] = name;
    ids[name] = i;
  }
  (*config)["id2label"] = std::move(names);
  (*config)["label2id"] = std::move(ids);
}

namespace {

constexpr const char* kProcessors[] = {"ViT", "DeiT", "Bit", "CLIP", "ConvNext"};  // before "ImageProcessor…"

// The kind of processor that the file names, ViT's where it names none.
std::string ProcessorOf(const Json& json) {
  for (const char* field : {"image_processor_type", "feature_extractor_type"}) {
    const Json& type = At(json, field);
    if (!type.is_string()) continue;
    const std::string name = type.get<std::string>();
    for (const char* const known : kProcessors) {
      if (name.starts_with(known)) return known;
    }
    LogWarning("{}: {} is not known here and is read as ViTImageProcessor, which may treat images differently", field,
               name);
  }
  return "ViT";
}

// ConvNextImageProcessor's geometry: from 384 pixels on the whole image becomes a square; below, a square is cut from
// the middle of an image that is larger by 1 / crop_pct. Returns its side.
StatusOr<int> ReadConvNextSize(const Json& json, EvaluationTransform* t) {
  constexpr int kSquashes = 384;
  int side = 0;
  if (At(json, "size").is_number()) {
    SY_ASSIGN_OR_RETURN(side, Positive(json, "size", kSquashes));
  } else {
    const Json& size = At(json, "size");
    if (!size.is_null() && !(size.is_object() && size.contains("shortest_edge")))
      return Unexpected("size", "a number or a shortest_edge, of a ConvNextImageProcessor", size);
    SY_ASSIGN_OR_RETURN(side, Positive(size.is_null() ? Json::object() : size, "shortest_edge", kSquashes));
  }
  const Json& part = At(json, "crop_pct");
  if (!part.is_null() && !(part.is_number() && part.get<double>() > 0.1 && part.get<double>() <= 1))
    return Unexpected("crop_pct", "a number from 0.1 to 1", part);
  t->resize = side >= kSquashes ? 0 : static_cast<int>(side / (part.is_null() ? 224.0 / 256 : part.get<double>()));
  return side;
}

}  // namespace

StatusOr<EvaluationTransform> ReadHuggingFacePreprocessor(const Json& json, std::optional<int> image_size,
                                                          int channels) {
  if (!json.is_object()) return InvalidArgument("expected an object, found {}", json.type_name());
  EvaluationTransform t;
  t.channels = channels;
  SY_ASSIGN_OR_RETURN(const bool resize, Flag(json, "do_resize", true));
  SY_ASSIGN_OR_RETURN(const bool crop, Flag(json, "do_center_crop", false));
  if (!resize) return Unexpected("do_resize", "true", At(json, "do_resize"));
  const Json& size = At(json, "size");
  const bool convnext = ProcessorOf(json) == "ConvNext";
  const bool shorter = !convnext && size.is_object() && size.contains("shortest_edge");
  int result = 0;
  if (convnext) {
    if (crop) return Unexpected("do_center_crop", "false of a ConvNextImageProcessor", At(json, "do_center_crop"));
    SY_ASSIGN_OR_RETURN(result, ReadConvNextSize(json, &t));
    t.interpolation = Interpolation::kBicubic;  // unless "resample" says otherwise
  } else if (shorter) {
    SY_ASSIGN_OR_RETURN(t.resize, Positive(size, "shortest_edge", 224));
    result = t.resize;  // what it crops without being told
    if (!crop) return Unexpected("do_center_crop", "true where size is a shortest_edge", At(json, "do_center_crop"));
  } else {
    SY_ASSIGN_OR_RETURN(result, Side(json, "size", 224));
    t.resize = 0;
  }
  if (crop) {
    const int whole = result;
    SY_ASSIGN_OR_RETURN(result, Side(json, "crop_size", result));
    if (!shorter && result != whole)  // of a square of its own size, a crop is all
      return Unexpected("size", "a shortest_edge where do_center_crop takes a part", size);
  }
  if (image_size && result != *image_size)
    return InvalidArgument("{}: makes images of {} pixels, but the model takes {}", crop ? "crop_size" : "size", result,
                           *image_size);
  t.image_size = result;
  if (const Json& offset = At(json, kCropOffsetKey); !offset.is_null()) {
    SY_ASSIGN_OR_RETURN(t.crop_offset, ParseCropOffset(offset));
  }
  const Json& filter = At(json, "resample");
  if (!filter.is_null()) {
    const auto known = filter.is_number_integer() ? Filters().find(filter.get<int>()) : Filters().end();
    if (known == Filters().end()) return Unexpected("resample", "2 (bilinear) or 3 (bicubic)", filter);
    t.interpolation = known->second;
  }
  SY_ASSIGN_OR_RETURN(const bool rescale, Flag(json, "do_rescale", true));
  const Json& factor = At(json, "rescale_factor");
  if (!rescale) return Unexpected("do_rescale", "true", At(json, "do_rescale"));
  if (!factor.is_null() && !(factor.is_number() && std::abs(factor.get<double>() - kScale) < 1e-8))
    return Unexpected("rescale_factor", "1/255", factor);
  SY_ASSIGN_OR_RETURN(const bool normalize, Flag(json, "do_normalize", true));
  if (normalize) {
    SY_ASSIGN_OR_RETURN(t.mean, Statistics(json, "image_mean", channels));
    SY_ASSIGN_OR_RETURN(t.std, Statistics(json, "image_std", channels));
  } else {
    t.mean = {0}, t.std = {1};
  }
  SY_RETURN_IF_ERROR(Check(t));
  return t;
}

Json HuggingFacePreprocessor(const EvaluationTransform& t) {
  const Json square = {{"height", t.image_size}, {"width", t.image_size}};
  const auto filter = std::find_if(Filters().begin(), Filters().end(),
                                   [&](const auto& entry) { return entry.second == t.interpolation; });
  Json json = {{"image_processor_type", "ViTImageProcessor"},
               {"do_resize", true},
               {"size", t.resize == 0 ? square : Json{{"shortest_edge", t.resize}}},
               {"resample", filter->first},
               {"do_center_crop", t.resize != 0},
               {"do_rescale", true},
               {"rescale_factor", kScale},
               {"do_normalize", true},
               {"image_mean", Repeated(t.mean, t.channels)},
               {"image_std", Repeated(t.std, t.channels)},
               {"do_convert_rgb", t.channels == 3}};
  if (t.resize != 0) json["crop_size"] = square;
  // Hugging Face passes over what is not its way; we read it.
  if (t.resize != 0 && t.crop_offset != CropOffset::kDown) json[kCropOffsetKey] = CropOffsetName(t.crop_offset);
  return json;
}

}  // namespace switchyard
