#include "tools/switchyard/foreign_weights.h"

#include "models/timm.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {
namespace {

// The listed model of these sizes; else Base, of which every size is then set.
std::string NameFor(const VisionTransformerConfig& sizes) {
  const SettingValues wanted = OwnSettings(sizes);
  for (const ModelInfo& info : Models()) {
    const auto equal = [&](const char* size) { return info.own.at(size) == wanted.at(size); };
    if (info.family == "vit" && equal("patch") && equal("width") && equal("depth") && equal("heads")) return info.name;
  }
  return "vit_base";
}

// "--heads=4 where the file has 3", one for each that differs.
std::string Disagreements(const VisionTransformerConfig& chosen, const ForeignModel& read) {
  const VisionTransformerConfig& found = read.config;
  std::string text;
  const auto compare = [&](const std::string& option, auto ours, auto theirs) {
    if (ours == theirs) return;
    text += fmt::format("{}--{}={} where the file has {}", text.empty() ? "" : ", ", option, ours, theirs);
  };
  const auto hidden = [](const VisionTransformerConfig& c) {
    return static_cast<int>(c.mlp_ratio * static_cast<float>(c.width));
  };
  compare("image_size", chosen.image_size, found.image_size);
  compare("channels", chosen.channels, found.channels);
  compare("patch", chosen.patch, found.patch);
  compare("width", chosen.width, found.width);
  compare("depth", chosen.depth, found.depth);
  compare("heads", chosen.heads, found.heads);
  if (hidden(chosen) != hidden(found)) compare("mlp_ratio", chosen.mlp_ratio, found.mlp_ratio);
  if (read.says_eps) compare("layer_norm_eps", chosen.layer_norm_eps, found.layer_norm_eps);
  return text;
}

// Weights under Hugging Face's names without a config.json run with Hugging Face's eps.
bool HasHuggingFaceNames(const WeightSource& source) {
  return source.Find("vit.embeddings.cls_token") != nullptr || source.Find("embeddings.cls_token") != nullptr;
}

}  // namespace

StatusOr<std::vector<std::string>> AdoptArchitecture(const WeightSource& source, Settings& settings) {
  const std::string where = source.path() + ": config.json";
  const auto fill = [&](const std::string& name, const nlohmann::json& value) {
    settings.Fill(name, value, Origin::kCheckpoint, where);
  };
  if (source.config().is_null()) {
    if (HasHuggingFaceNames(source))
      settings.Fill("layer_norm_eps", JsonOf(kHuggingFaceEps), Origin::kCheckpoint, source.path());
    return std::vector<std::string>();
  }
  const auto read =
      IsTimmConfig(source.config()) ? ReadTimmConfig(source.config()) : ReadHuggingFaceConfig(source.config());
  if (!read.ok()) return Annotate(read.status(), where);
  SettingValues found = OwnSettings(read->config);
  if (read->says_eps) fill("layer_norm_eps", found.at("layer_norm_eps"));
  if (!settings.Has("model")) {
    fill("model", NameFor(read->config));
    fill("image_size", read->config.image_size);
    fill("channels", read->config.channels);
    for (const char* size : {"patch", "width", "depth", "heads", "mlp_ratio"}) fill(size, found.at(size));
  }
  SY_ASSIGN_OR_RETURN(ResolvedModel chosen, ResolveModel(OptionsOf(settings)));
  if (chosen.info->family != "vit")
    return InvalidArgument("{} describes a Vision Transformer, but --model={}", where, chosen.info->name);
  if (!settings.Has("channels")) chosen.channels = read->config.channels;  // left to the dataset
  if (const std::string text = Disagreements(VisionTransformerConfigOf(chosen), *read); !text.empty()) {
    return InvalidArgument(
        "{} says that the weights were made for another model than {}: {}; leave out --model to take all "
        "sizes from it",
        where, chosen.info->name, text);
  }
  return read->class_names;
}

StatusOr<std::optional<EvaluationTransform>> TransformBeside(const WeightSource& source, const Settings& settings) {
  std::optional<EvaluationTransform> transform;
  if (source.checkpoint() != nullptr) {
    const auto read = EvaluationTransformFromJson(source.checkpoint()->record.value("evaluation", nlohmann::json()));
    if (!read.ok()) return Annotate(read.status(), source.path() + "/state.json: evaluation");
    transform = *read;
  } else if (!source.preprocessor().is_null()) {
    SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
    const auto read = ReadHuggingFacePreprocessor(source.preprocessor(), model.image_size, model.channels);
    if (!read.ok()) return Annotate(read.status(), source.path() + ": preprocessor_config.json");
    transform = *read;
  }
  if (!transform && IsTimmConfig(source.config())) {
    SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
    const auto read = ReadTimmTransform(source.config(), model.image_size, model.channels);
    if (!read.ok()) return Annotate(read.status(), source.path() + ": config.json");
    transform = *read;
  }
  return transform;
}

}  // namespace switchyard
