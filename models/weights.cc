#include "models/weights.h"

#include <algorithm>

#include "models/foreign_format.h"

namespace switchyard {
namespace {

bool IsHead(const ModelFamily& family, const std::string& name) {
  return name == family.head + ".weight" || name == family.head + ".bias";
}

// Under names that transformers has in memory alone, from version 5 on: its files keep those of before.
bool OfTransformers5(const HostTensors::value_type& entry) {
  return entry.first.find("layers.") != std::string::npos && entry.first.ends_with(".attention.q_proj.weight");
}

// One line for each tensor that is missing, superfluous or of another shape; "" when all fit.
std::string Differences(const ModelFamily& family, const std::map<std::string, TensorType>& expected,
                        const HostTensors& found, bool& only_head) {
  constexpr int kShown = 20;
  std::string lines;
  int count = 0;
  only_head = true;
  const auto add = [&](const std::string& name, const std::string& problem) {
    if (++count <= kShown) lines += fmt::format("\n  {}: {}", name, problem);
    only_head = only_head && IsHead(family, name);
  };
  for (const auto& [name, type] : expected) {
    const auto tensor = found.find(name);
    if (tensor == found.end()) {
      add(name, fmt::format("expected {}, not in the file", ToString(type.shape)));
    } else if (tensor->second.shape != type.shape) {
      add(name, fmt::format("expected {}, found {}", ToString(type.shape), ToString(tensor->second.shape)));
    }
  }
  for (const auto& [name, tensor] : found) {
    if (!expected.contains(name)) add(name, fmt::format("the model has none, found {}", ToString(tensor.shape)));
  }
  if (count > kShown) lines += fmt::format("\n  and {} more", count - kShown);
  return lines;
}

bool OfBackboneAlone(const ModelFamily& family, const HostTensors& tensors) {
  return !family.backbone.empty() && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [](const auto& entry) { return entry.first.starts_with(kBackbone); });
}

// Of the sibling that shares the family's backbone.
bool OfSibling(const ModelFamily& family, const HostTensors& tensors) {
  return !family.sibling_head.empty() && std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    return entry.first.starts_with(family.sibling_head);
  });
}

// Leaves the backbone's.
void DropHeadOfSibling(HostTensors* tensors) {
  std::erase_if(*tensors, [](const auto& entry) { return !entry.first.starts_with(kBackbone); });
}

// "--stem=imagenet", where the weights fit with what they imply themselves and the model is another; "" elsewhere.
std::string RemedyIn(const SettingValues& implied, const ResolvedModel& model, const HostTensors& found) {
  ResolvedModel other = model;
  std::string flags;
  for (const auto& [name, value] : implied) {
    if (other.own.at(name) == value) continue;
    other.own[name] = value;
    flags += fmt::format("{}--{}={}", flags.empty() ? "" : " ", name,
                         value.is_string() ? value.get<std::string>() : value.dump());
  }
  bool only_head = false;
  const bool fits = !flags.empty() && model.info->family->check(other).ok() &&
                    (Differences(*model.info->family, WeightTypes(other), found, only_head).empty() || only_head);
  return fits ? flags : "";
}

// The channels with which the model would have these weights, where its own number is what differs.
std::optional<int> ChannelsOf(const ResolvedModel& model, const HostTensors& found) {
  for (const int channels : {1, 3}) {
    if (channels == model.channels) continue;
    ResolvedModel other = model;
    other.channels = channels;
    bool only_head = false;
    if (Differences(*model.info->family, WeightTypes(other), found, only_head).empty() || only_head) return channels;
  }
  return std::nullopt;
}

}  // namespace

StatusOr<HostTensors> ImportWeights(const ResolvedModel& model, HostTensors tensors, bool reset_head) {
  for (const auto& [name, tensor] : tensors) {
    if (Elements(tensor.shape) != static_cast<int64_t>(tensor.values.size())) {
      return InvalidArgument("{}: {} values do not make a tensor of shape {}", name, tensor.values.size(),
                             ToString(tensor.shape));
    }
  }
  const ModelFamily& family = *model.info->family;
  const SettingValues implied = ImpliedByWeights(family, [&](const std::string& name) -> std::optional<Shape> {
    const auto found = tensors.find(name);
    return found != tensors.end() ? std::optional(found->second.shape) : std::nullopt;
  });
  if (family.from_file != nullptr) tensors = family.from_file(std::move(tensors));
  std::map<std::string, TensorType> expected = WeightTypes(model);
  const bool sibling = OfSibling(family, tensors);
  if (sibling && reset_head) DropHeadOfSibling(&tensors);
  if (reset_head) {
    std::erase_if(expected, [&](const auto& entry) { return IsHead(family, entry.first); });
    std::erase_if(tensors, [&](const auto& entry) { return IsHead(family, entry.first); });
  }
  const bool backbone = OfBackboneAlone(family, tensors);
  if (reset_head && backbone)
    std::erase_if(expected, [](const auto& entry) { return !entry.first.starts_with(kBackbone); });
  if (family.resample != nullptr) family.resample(expected, &tensors);
  bool only_head = false;
  if (const std::string lines = Differences(family, expected, tensors, only_head); !lines.empty()) {
    std::string advice = only_head ? "only the classifier differs: --reset_head loads the rest and starts it afresh"
                                   : "choose the model, patch and image size that the weights were made for";
    if (const auto channels = ChannelsOf(model, tensors); channels && !only_head)
      advice = fmt::format("they take images of {0}: --channels={0}, or choose the model that they were made for",
                           *channels);
    if (const std::string flags = RemedyIn(implied, model, tensors); !flags.empty() && !only_head)
      advice = fmt::format("these are weights of a model with {}", flags);
    if (sibling && !reset_head)
      advice = fmt::format("these are weights of {}: train --pretrained=… --reset_head starts from their backbone",
                           family.sibling);
    if (backbone && !reset_head)
      advice = "these are weights of its backbone alone: train --pretrained=… --reset_head starts from them";
    if (const auto unread = std::find_if(tensors.begin(), tensors.end(), OfTransformers5); unread != tensors.end())
      advice = fmt::format("{}: so a state_dict() of transformers 5 names it; write the file by save_pretrained()",
                           unread->first);
    return InvalidArgument("the weights do not fit {} with {} classes:{}\n{}", model.info->name, model.classes, lines,
                           advice);
  }
  return tensors;
}

std::vector<std::string> PartsBesideBackbone(const ResolvedModel& model, const std::vector<std::string>& names) {
  const ModelFamily& family = *model.info->family;
  HostTensors tensors;
  for (const std::string& name : names) tensors[name];
  if (family.from_file != nullptr) tensors = family.from_file(std::move(tensors));
  if (OfSibling(family, tensors)) DropHeadOfSibling(&tensors);
  std::vector<std::string> parts;
  if (!OfBackboneAlone(family, tensors)) return parts;
  for (const auto& [name, type] : WeightTypes(model)) {
    const std::string part = name.substr(0, name.find('.'));
    if (!name.starts_with(kBackbone) && (parts.empty() || parts.back() != part)) parts.push_back(part);
  }
  return parts;
}

void ReorderClasses(const ResolvedModel& model, const std::vector<int>& order, HostTensors* tensors) {
  for (auto& [name, tensor] : *tensors) {
    if (!IsHead(*model.info->family, name)) continue;
    const size_t row = tensor.values.size() / order.size();  // classes are the outermost axis, of convolutions too
    std::vector<float> values;
    for (const int from : order) {
      const auto begin = tensor.values.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(from) * row);
      values.insert(values.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
    }
    tensor.values = std::move(values);
  }
}

StatusOr<HostTensors> ExportWeights(const ResolvedModel& model, HostTensors parameters, const std::string& format) {
  SY_ASSIGN_OR_RETURN(const ForeignFormat* const to, FormatOf(*model.info->family, format));
  return to->to_file != nullptr ? to->to_file(std::move(parameters)) : parameters;
}

}  // namespace switchyard
