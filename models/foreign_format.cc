#include "models/foreign_format.h"

#include <algorithm>

#include "core/train/architecture.h"
#include "fmt/ranges.h"
#include "models/foreign_json.h"

namespace switchyard {
namespace {

using foreign_json::At;
using foreign_json::Unexpected;

bool IsOfKind(const nlohmann::json& config, const ForeignFormat& format) {
  if (format.read == nullptr) return false;
  const nlohmann::json& value = At(config, format.kind_field.c_str());
  if (!value.is_string()) return false;
  const std::string text = value.get<std::string>();
  if (format.kind_anywhere) return text.find(format.kind) != std::string::npos;
  return text == format.kind || text.starts_with(format.kind + "_");
}

// A file may ask for no more than a user may.
Status CheckRanges(const ForeignModel& model) {
  for (const Setting& row : model.family->settings()) {
    for (const SettingValues* values : {&model.own, &model.of_weights}) {
      const auto value = values->find(row.name);
      if (value != values->end()) SY_RETURN_IF_ERROR(CheckValue(row, value->second));
    }
  }
  return OkStatus();
}

bool Lists(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether the model has weights of the same shapes with another value of one of its settings.
bool SameShapes(const ResolvedModel& model, const std::string& setting, const nlohmann::json& value) {
  ResolvedModel other = model;
  other.own[setting] = value;
  return model.info->family->check(other).ok() && ParameterTypes(other) == ParameterTypes(model);
}

}  // namespace

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const ModelFamily* family : Families()) {
    for (const ForeignFormat& format : family->formats()) {
      if (!Lists(names, format.name)) names.push_back(format.name);
    }
  }
  return names;
}

StatusOr<const ForeignFormat*> FormatOf(const ModelFamily& family, const std::string& name) {
  std::vector<std::string> has;
  for (const ForeignFormat& format : family.formats()) {
    if (format.name == name) return &format;
    has.push_back(format.name);
  }
  return InvalidArgument("a {} has no counterpart under the names of {}; those that it has: {}", family.words, name,
                         fmt::join(has, ", "));
}

const ForeignFormat& PublishedFormat(const ResolvedModel& model) {
  const std::vector<ForeignFormat>& formats = model.info->family->formats();
  const auto first = std::find_if(formats.begin(), formats.end(),
                                  [&](const ForeignFormat& f) { return f.has == nullptr || f.has(model); });
  return first != formats.end() ? *first : formats[0];
}

StatusOr<ForeignModel> ReadForeignConfig(const nlohmann::json& config) {
  if (!config.is_object()) return InvalidArgument("expected an object, found {}", config.type_name());
  // Of the field that the file has, or else of the first.
  std::string field;
  std::vector<std::string> kinds;
  for (const ModelFamily* family : Families()) {
    for (const ForeignFormat& format : family->formats()) {
      if (IsOfKind(config, format)) {
        SY_ASSIGN_OR_RETURN(ForeignModel model, format.read(config));
        model.family = family;
        SY_RETURN_IF_ERROR(CheckRanges(model));
        return model;
      }
      if (format.read == nullptr) continue;
      if (field.empty() || (!config.contains(field) && config.contains(format.kind_field))) {
        field = format.kind_field;
        kinds.clear();
      }
      if (field == format.kind_field) kinds.push_back(format.kind);
    }
  }
  return Unexpected(field.c_str(), fmt::format("{}: no other model is read", fmt::join(kinds, " or ")),
                    At(config, field.c_str()));
}

std::vector<std::string> HeadBiasNames() {
  std::vector<std::string> names;
  for (const ModelFamily* family : Families()) {
    names.push_back(family->head + ".bias");
    for (const ForeignFormat& format : family->formats()) names.push_back(format.head + ".bias");
  }
  return names;
}

SettingValues ImpliedByWeights(const ModelFamily& family, const FindShape& shape) {
  SettingValues all;
  for (const ForeignFormat& format : family.formats()) {
    if (format.implied != nullptr) all.merge(format.implied(shape));
  }
  return all;
}

std::string Disagreements(const ResolvedModel& chosen, const ForeignModel& found) {
  std::string text;
  const auto compare = [&](const std::string& setting, const nlohmann::json& ours, const nlohmann::json& theirs) {
    if (SameValue(ours, theirs) || Lists(found.family->resampled, setting)) return;
    if (Lists(found.family->of_shapes, setting) && SameShapes(chosen, setting, theirs)) return;
    text +=
        fmt::format("{}--{}={} where the file has {}", text.empty() ? "" : ", ", setting, ours.dump(), theirs.dump());
  };
  if (found.image_size) compare("image_size", chosen.image_size, *found.image_size);
  compare("channels", chosen.channels, found.channels);
  for (const Setting& row : found.family->settings()) {
    for (const SettingValues* values : {&found.own, &found.of_weights}) {
      const auto theirs = values->find(row.name);
      if (theirs != values->end()) compare(row.name, chosen.own.at(row.name), theirs->second);
    }
  }
  return text;
}

}  // namespace switchyard
