#include "tests/graph/foreign_files.h"

#include "tests/graph/steps.h"

namespace switchyard {

nlohmann::json Written(const std::string& format, const ResolvedModel& model, const std::vector<std::string>& classes,
                       const EvaluationTransform& transform) {
  const auto files = (*FormatOf(*model.info->family, format))->write(model, transform, classes);
  return nlohmann::json::parse(files->config.dump());
}

VisionTransformerConfig ConfigOf(const ForeignModel& found) {
  ResolvedModel model = Resolved({.name = found.name});
  model.image_size = found.image_size.value();
  model.channels = found.channels;
  model.classes = found.classes;
  for (const auto& [name, value] : found.own) model.own[name] = value;
  for (const auto& [name, value] : found.of_weights) model.own[name] = value;
  return VisionTransformerConfigOf(model);
}

std::map<std::string, std::vector<float>> Values(const HostTensors& tensors) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& [name, tensor] : tensors) {
    std::string shaped = name + " ";
    shaped += ToString(tensor.shape);
    values[shaped] = tensor.values;
  }
  return values;
}

HostTensors Numbered(const ResolvedModel& model) {
  HostTensors tensors;
  for (const auto& [name, type] : WeightTypes(model)) {
    HostTensor& tensor = tensors[name] = {type.shape, {}};
    for (int64_t i = 0; i < type.elements(); ++i)
      tensor.values.push_back(static_cast<float>(tensors.size() * 100000 + static_cast<size_t>(i)));
  }
  return tensors;
}

}  // namespace switchyard
