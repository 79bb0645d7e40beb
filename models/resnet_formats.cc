#include "models/resnet_formats.h"

#include <algorithm>
#include <regex>
#include <utility>

#include "absl/strings/numbers.h"
#include "models/convolution_weights.h"
#include "models/foreign_json.h"
#include "models/hugging_face.h"
#include "models/resnet.h"
#include "models/timm.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using foreign_json::At;
using foreign_json::Classes;
using foreign_json::Flag;
using foreign_json::Positive;
using foreign_json::Side;
using foreign_json::Unexpected;

constexpr char kEmbedder[] = "embedder.embedder.", kStages[] = "encoder.stages.", kPrefix[] = "resnet.";

// The number at the start of `text`, which it is taken from with the dot behind it; nullopt where there is none.
std::optional<int> TakeNumber(std::string& text) {
  const size_t dot = text.find('.');
  int number = 0;
  if (dot == std::string::npos || dot > 4 || !absl::SimpleAtoi(text.substr(0, dot), &number) || number < 0)
    return std::nullopt;
  text.erase(0, dot + 1);
  return number;
}

bool TakePrefix(std::string& text, const std::string& prefix) {
  if (!text.starts_with(prefix)) return false;
  text.erase(0, prefix.size());
  return true;
}

// "encoder.stages.1.layers.0.layer.2.convolution.weight" → "layer2.0.conv3.weight"; the name itself where it is none of
// theirs.
std::string NameFromHuggingFace(const std::string& name) {
  std::string rest = name;
  TakePrefix(rest, kPrefix);
  if (TakePrefix(rest, kEmbedder)) {
    if (TakePrefix(rest, "convolution.")) return "conv1." + rest;
    if (TakePrefix(rest, "normalization.")) return "bn1." + rest;
  } else if (TakePrefix(rest, "classifier.1.")) {
    return "fc." + rest;
  } else if (TakePrefix(rest, kStages)) {
    const std::optional<int> stage = TakeNumber(rest);
    const bool layers = stage && TakePrefix(rest, "layers.");
    const std::optional<int> block = layers ? TakeNumber(rest) : std::nullopt;
    if (!block) return name;
    const std::string before = fmt::format("layer{}.{}.", *stage + 1, *block);
    if (TakePrefix(rest, "shortcut.convolution.")) return before + "downsample.0." + rest;
    if (TakePrefix(rest, "shortcut.normalization.")) return before + "downsample.1." + rest;
    const std::optional<int> layer = TakePrefix(rest, "layer.") ? TakeNumber(rest) : std::nullopt;
    if (layer && TakePrefix(rest, "convolution.")) return fmt::format("{}conv{}.{}", before, *layer + 1, rest);
    if (layer && TakePrefix(rest, "normalization.")) return fmt::format("{}bn{}.{}", before, *layer + 1, rest);
  }
  return name;
}

// The other way, for the names of our graph.
std::string NameToHuggingFace(const std::string& name) {
  std::string rest = name;
  if (TakePrefix(rest, "fc.")) return "classifier.1." + rest;
  if (TakePrefix(rest, "conv1.")) return std::string(kPrefix) + kEmbedder + "convolution." + rest;
  if (TakePrefix(rest, "bn1.")) return std::string(kPrefix) + kEmbedder + "normalization." + rest;
  if (!TakePrefix(rest, "layer")) return name;
  const std::optional<int> stage = TakeNumber(rest), block = stage ? TakeNumber(rest) : std::nullopt;
  if (!block) return name;
  const std::string before = fmt::format("{}{}{}.layers.{}.", kPrefix, kStages, *stage - 1, *block);
  if (TakePrefix(rest, "downsample.0.")) return before + "shortcut.convolution." + rest;
  if (TakePrefix(rest, "downsample.1.")) return before + "shortcut.normalization." + rest;
  for (const auto& [ours, theirs] : {std::pair("conv", "convolution"), std::pair("bn", "normalization")}) {
    if (!TakePrefix(rest, ours)) continue;
    const std::optional<int> layer = TakeNumber(rest);
    if (layer) return fmt::format("{}layer.{}.{}.{}", before, *layer - 1, theirs, rest);
  }
  return name;
}

HostTensors WeightsToHuggingFace(HostTensors tensors) {
  HostTensors result;
  for (auto& [name, tensor] : ConvolutionWeightsToFile(std::move(tensors)))
    result[NameToHuggingFace(name)] = std::move(tensor);
  return result;
}

// The depth whose blocks these are, 0 where there is none.
int DepthOf(const Json& blocks, bool bottleneck) {
  for (const int depth : {18, 34, 50, 101, 152}) {
    const ResNetConfig config = {.depth = depth};
    if (HasBottlenecks(config) == bottleneck && blocks == Json(BlocksOf(config))) return depth;
  }
  return 0;
}

Json HiddenSizes(const ResNetConfig& config) {
  Json sizes = Json::array();
  for (int stage = 0; stage < 4; ++stage)
    sizes.push_back((int64_t{config.width} << stage) * (HasBottlenecks(config) ? 4 : 1));
  return sizes;
}

ForeignModel Found(const ResNetConfig& o, std::optional<int> image_size, std::vector<std::string> class_names) {
  const SettingValues all = OwnSettings(o);
  return {.name = fmt::format("resnet{}", o.depth),
          .image_size = image_size,
          .channels = o.channels,
          .classes = o.classes,
          .own = {{"depth", all.at("depth")}, {"width", all.at("width")}},
          .of_weights = {{"stem", "imagenet"}},  // "auto" would make it that of the image's size
          .class_names = std::move(class_names)};
}

StatusOr<ForeignModel> ReadResNet(const Json& config) {
  ResNetConfig o;
  const Json& type = At(config, "layer_type");
  if (!type.is_null() && type != "bottleneck" && type != "basic")
    return Unexpected("layer_type", "basic or bottleneck", type);
  const Json blocks = At(config, "depths").is_null() ? Json{3, 4, 6, 3} : At(config, "depths");
  o.depth = DepthOf(blocks, type != "basic");
  if (o.depth == 0) return Unexpected("depths", "the blocks of 18, 34, 50, 101 or 152 layers", blocks);
  SY_ASSIGN_OR_RETURN(o.width, Positive(config, "embedding_size", 64));
  const Json& sizes = At(config, "hidden_sizes");
  if (!sizes.is_null() && sizes != HiddenSizes(o))
    return Unexpected("hidden_sizes", HiddenSizes(o).dump() + " behind this embedding_size", sizes);
  const Json& act = At(config, "hidden_act");
  if (!act.is_null() && act != "relu") return Unexpected("hidden_act", "relu, which the model here has", act);
  for (const char* field : {"downsample_in_first_stage", "downsample_in_bottleneck"}) {
    SY_ASSIGN_OR_RETURN(const bool other, Flag(config, field, false));
    if (other) return Unexpected(field, "false, as in the model here", At(config, field));
  }
  SY_ASSIGN_OR_RETURN(o.channels, Positive(config, "num_channels", 3));
  SY_ASSIGN_OR_RETURN(ForeignLabels labels, ReadHuggingFaceLabels(config));
  if (labels.count) o.classes = *labels.count;
  return Found(o, std::nullopt, std::move(labels.names));
}

// The stem whose first convolution has such a kernel.
SettingValues StemOf(const std::optional<Shape>& convolution) {
  if (!convolution || convolution->size() != 4) return {};
  const int64_t side = convolution->back();
  if (side == 7) return {{"stem", "imagenet"}};
  if (side == 3) return {{"stem", "small"}};
  return {};
}

bool HuggingFaceHas(const ResolvedModel& model) { return !HasSmallStem(ResNetConfigOf(model)); }

StatusOr<ForeignFiles> WriteResNet(const ResolvedModel& model, const EvaluationTransform& transform,
                                   const std::vector<std::string>& class_names) {
  const ResNetConfig o = ResNetConfigOf(model);
  if (!HuggingFaceHas(model))
    return InvalidArgument("a residual network with --stem=small has no counterpart under the names of Hugging Face");
  Json config = {{"architectures", {"ResNetForImageClassification"}},
                 {"model_type", "resnet"},
                 {"num_channels", o.channels},
                 {"embedding_size", o.width},
                 {"hidden_sizes", HiddenSizes(o)},
                 {"depths", BlocksOf(o)},
                 {"layer_type", HasBottlenecks(o) ? "bottleneck" : "basic"},
                 {"hidden_act", "relu"},
                 {"downsample_in_first_stage", false},
                 {"downsample_in_bottleneck", false},
                 {"torch_dtype", "float32"}};
  AddHuggingFaceLabels(o.classes, class_names, &config);
  return ForeignFiles{std::move(config), HuggingFacePreprocessor(transform)};
}

// "resnet50", or "tv_resnet50" as earlier versions named the one with torchvision's weights. Others, as resnet50d, have
// other stems, shortcuts or widths.
StatusOr<int> DepthOfArchitecture(const Json& name) {
  static const auto& pattern = *new std::regex("(?:tv_)?resnet(18|34|50|101|152)");
  std::smatch match;
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  constexpr size_t kLongest = 64;  // the matcher recurses with the length of the text
  if (text.size() > kLongest || !std::regex_match(text, match, pattern)) {
    return Unexpected("architecture",
                      "resnet18, resnet34, resnet50, resnet101 or resnet152, the residual networks of timm that are "
                      "read",
                      name);
  }
  return std::stoi(match[1].str());
}

StatusOr<ForeignModel> ReadTimmResNet(const Json& config) {
  ResNetConfig o;
  SY_ASSIGN_OR_RETURN(o.depth, DepthOfArchitecture(At(config, "architecture")));
  SY_ASSIGN_OR_RETURN(const Json arguments, ReadTimmArguments(config, {"avg"}));
  std::optional<int> image_size;
  const Json& input = At(At(config, "pretrained_cfg"), "input_size");  // (channels, height, width)
  if (!input.is_null()) {
    if (!input.is_array() || input.size() != 3) return Unexpected("input_size", "channels, height and width", input);
    const Json parts = {{"channels", input[0]}, {"input_size", {input[1], input[2]}}};
    SY_ASSIGN_OR_RETURN(o.channels, Positive(parts, "channels", o.channels));
    SY_ASSIGN_OR_RETURN(image_size, Side(parts, "input_size", o.image_size));
  }
  SY_ASSIGN_OR_RETURN(o.classes, Classes(config, "num_classes", o.classes));
  for (const auto& [name, value] : arguments.items()) {
    if (name == "num_classes") {
      SY_ASSIGN_OR_RETURN(o.classes, Classes(arguments, "num_classes", o.classes));
    } else if (name == "in_chans") {
      SY_ASSIGN_OR_RETURN(o.channels, Positive(arguments, "in_chans", o.channels));
    } else if (name != "zero_init_last" && name != "drop_rate" && name != "drop_path_rate") {
      return Unexpected("model_args", "those of a plain residual network", Json{{name, value}});
    }
  }
  SY_ASSIGN_OR_RETURN(std::vector<std::string> names, ReadTimmLabels(config, o.classes));
  return Found(o, image_size, std::move(names));
}

bool TimmHas(const ResolvedModel& model) {
  const ResNetConfig o = ResNetConfigOf(model);
  return !HasSmallStem(o) && o.width == ResNetConfig().width;
}

StatusOr<ForeignFiles> WriteTimmResNet(const ResolvedModel& model, const EvaluationTransform& transform,
                                       const std::vector<std::string>& class_names) {
  const ResNetConfig o = ResNetConfigOf(model);
  if (!TimmHas(model)) {
    return InvalidArgument("a residual network with {} has no counterpart under the names of timm",
                           HasSmallStem(o) ? "--stem=small" : fmt::format("--width={}", o.width));
  }
  Json config = {{"architecture", fmt::format("resnet{}", o.depth)},
                 {"num_classes", o.classes},
                 {"num_features", HiddenSizes(o).back()},
                 {"global_pool", "avg"},
                 {"model_args", {{"in_chans", o.channels}}}};
  AddTimmTransform(transform, {{"num_classes", o.classes}, {"first_conv", "conv1"}, {"classifier", "fc"}}, &config,
                   /*fixed_input_size=*/false);
  if (class_names.size() == static_cast<size_t>(o.classes)) config["label_names"] = class_names;
  return ForeignFiles{std::move(config), {}};
}

}  // namespace

HostTensors ResNetWeightsFromFile(HostTensors tensors) {
  HostTensors renamed;
  for (auto& [name, tensor] : ConvolutionWeightsFromFile(std::move(tensors)))
    renamed[NameFromHuggingFace(name)] = std::move(tensor);
  return renamed;
}

const std::vector<ForeignFormat>& ResNetFormats() {
  static const auto& formats = *new std::vector<ForeignFormat>{
      {.name = "huggingface",
       .words = "Hugging Face",
       .head = "classifier.1",
       .to_file = WeightsToHuggingFace,
       .has = HuggingFaceHas,
       .implied =
           [](const FindShape& shape) {
             const auto bare = shape("embedder.embedder.convolution.weight");
             return StemOf(bare ? bare : shape("resnet.embedder.embedder.convolution.weight"));
           },
       .kind_field = "model_type",
       .kind = "resnet",
       .read = ReadResNet,
       .write = WriteResNet,
       .loader =
           [](const std::string& folder) {
             return fmt::format("transformers.ResNetForImageClassification.from_pretrained(\"{}\")", folder);
           }},
      {.name = "timm",
       .words = "timm",
       .head = "fc",
       .to_file = ConvolutionWeightsToFile,
       .has = TimmHas,
       .kind_field = "architecture",
       .kind = "resnet",
       .kind_anywhere = true,  // its reader knows which of them
       .read = ReadTimmResNet,
       .write = WriteTimmResNet,
       .loader =
           [](const std::string& folder) {
             return fmt::format("timm.create_model(\"local-dir:{}\", pretrained=True)", folder);
           }},
      {.name = "torchvision",
       .words = "torchvision",
       .head = "fc",
       .to_file = ConvolutionWeightsToFile,
       .implied = [](const FindShape& shape) { return StemOf(shape("conv1.weight")); }}};
  return formats;
}

}  // namespace switchyard
