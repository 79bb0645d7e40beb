#include "models/weights.h"

#include <nlohmann/json.hpp>

#include "models/vit_weights.h"

namespace switchyard {
namespace {

bool IsHead(const std::string& name) { return name == "head.weight" || name == "head.bias"; }

// One line for each tensor that is missing, superfluous or of another shape; "" when all fit.
std::string Differences(const std::map<std::string, TensorType>& expected, const HostTensors& found, bool& only_head) {
  constexpr int kShown = 20;
  std::string lines;
  int count = 0;
  only_head = true;
  const auto add = [&](const std::string& name, const std::string& problem) {
    if (++count <= kShown) lines += fmt::format("\n  {}: {}", name, problem);
    only_head = only_head && IsHead(name);
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

}  // namespace

StatusOr<HostTensors> ImportWeights(const ResolvedModel& model, HostTensors tensors, bool reset_head) {
  for (const auto& [name, tensor] : tensors) {
    if (Elements(tensor.shape) != static_cast<int64_t>(tensor.values.size())) {
      return InvalidArgument("{}: {} values do not make a tensor of shape {}", name, tensor.values.size(),
                             ToString(tensor.shape));
    }
  }
  if (model.info->family == "vit") tensors = VitWeightsFromFile(std::move(tensors));
  std::map<std::string, TensorType> expected = ParameterTypes(model);
  if (reset_head) {
    std::erase_if(expected, [](const auto& entry) { return IsHead(entry.first); });
    std::erase_if(tensors, [](const auto& entry) { return IsHead(entry.first); });
  }
  bool only_head = false;
  if (const std::string lines = Differences(expected, tensors, only_head); !lines.empty()) {
    return InvalidArgument("the weights do not fit {} with {} classes:{}\n{}", model.info->name, model.options.classes,
                           lines,
                           only_head ? "only the classifier differs: --reset_head loads the rest and starts it afresh"
                                     : "choose the model, patch and image size that the weights were made for");
  }
  return tensors;
}

StatusOr<HostTensors> ExportWeights(const ResolvedModel& model, HostTensors parameters, WeightStyle style) {
  if (model.info->family == "vit") return VitWeightsToFile(std::move(parameters), style);
  if (style == WeightStyle::kHuggingFace) {
    return InvalidArgument("{} has no counterpart in Hugging Face's transformers; write it in timm's style",
                           model.info->name);
  }
  return parameters;
}

StatusOr<std::string> HuggingFaceConfig(const ResolvedModel& model, const std::vector<std::string>& class_names) {
  if (model.info->family != "vit") {
    return InvalidArgument("{} has no counterpart in Hugging Face's transformers", model.info->name);
  }
  const ModelOptions& o = model.options;
  nlohmann::ordered_json config = {{"architectures", {"ViTForImageClassification"}},
                                   {"model_type", "vit"},
                                   {"hidden_size", o.width},
                                   {"num_hidden_layers", o.depth},
                                   {"num_attention_heads", o.heads},
                                   {"intermediate_size", static_cast<int>(o.mlp_ratio * static_cast<float>(o.width))},
                                   {"hidden_act", "gelu"},
                                   {"hidden_dropout_prob", 0.0},
                                   {"attention_probs_dropout_prob", 0.0},
                                   {"initializer_range", 0.02},
                                   {"layer_norm_eps", 1e-6},
                                   {"image_size", o.image_size},
                                   {"patch_size", o.patch},
                                   {"num_channels", o.channels},
                                   {"qkv_bias", true},
                                   {"torch_dtype", "float32"}};
  nlohmann::ordered_json names = nlohmann::ordered_json::object(), ids = nlohmann::ordered_json::object();
  for (int i = 0; i < o.classes; ++i) {
    const std::string number = std::to_string(i);
    const bool named = static_cast<size_t>(i) < class_names.size();
    const std::string name = named ? class_names[static_cast<size_t>(i)] : fmt::format("LABEL_{}", i);
    names[number] = name;
    ids[name] = i;
  }
  config["id2label"] = std::move(names);
  config["label2id"] = std::move(ids);
  return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace switchyard
