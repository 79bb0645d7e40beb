#include "tools/switchyard/foreign_weights.h"

#include "models/timm.h"
#include "tools/switchyard/run_setup.h"
#include "tools/switchyard/settings.h"

namespace switchyard {
namespace {

// The listed model of these sizes; else Base, of which every size is then set.
std::string NameFor(const ModelOptions& sizes) {
  for (const ModelInfo& info : Models()) {
    const ModelOptions& o = info.defaults;
    if (info.family == "vit" && o.patch == sizes.patch && o.width == sizes.width && o.depth == sizes.depth &&
        o.heads == sizes.heads)
      return info.name;
  }
  return "vit_base";
}

// "--heads=4 where the file has 3", one for each that differs.
std::string Disagreements(const ModelOptions& chosen, const ModelOptions& found) {
  std::string text;
  const auto compare = [&](const std::string& option, auto ours, auto theirs, auto shown) {
    if (ours == theirs) return;
    text += fmt::format("{}--{}={} where the file has {}", text.empty() ? "" : ", ", option, ours, shown);
  };
  const auto hidden = [](const ModelOptions& o) { return static_cast<int>(o.mlp_ratio * static_cast<float>(o.width)); };
  compare("image_size", chosen.image_size, found.image_size, found.image_size);
  compare("channels", chosen.channels, found.channels, found.channels);
  compare("patch", chosen.patch, found.patch, found.patch);
  compare("width", chosen.width, found.width, found.width);
  compare("depth", chosen.depth, found.depth, found.depth);
  compare("heads", chosen.heads, found.heads, found.heads);
  if (hidden(chosen) != hidden(found)) compare("mlp_ratio", chosen.mlp_ratio, found.mlp_ratio, found.mlp_ratio);
  if (found.layer_norm_eps > 0)
    compare("layer_norm_eps", chosen.layer_norm_eps, found.layer_norm_eps, found.layer_norm_eps);
  return text;
}

// Weights under Hugging Face's names without a config.json run with Hugging Face's eps.
bool HasHuggingFaceNames(const WeightSource& source) {
  return source.Find("vit.embeddings.cls_token") != nullptr || source.Find("embeddings.cls_token") != nullptr;
}

}  // namespace

StatusOr<std::vector<std::string>> AdoptArchitecture(const WeightSource& source, TrainConfig& c) {
  std::vector<std::string> no_names;
  if (source.config().is_null()) {
    if (c.layer_norm_eps == 0 && HasHuggingFaceNames(source)) c.layer_norm_eps = kHuggingFaceEps;
    return no_names;
  }
  const std::string where = source.path() + ": config.json";
  const auto read =
      IsTimmConfig(source.config()) ? ReadTimmConfig(source.config()) : ReadHuggingFaceConfig(source.config());
  if (!read.ok()) return Annotate(read.status(), where);
  const ModelOptions& found = read->options;
  if (!WasGiven("model")) {
    c.model = NameFor(found);
    const auto fill = [](auto& setting, auto value) {
      if (setting == 0) setting = value;
    };
    fill(c.image_size, found.image_size);
    fill(c.channels, found.channels);
    fill(c.patch, found.patch);
    fill(c.width, found.width);
    fill(c.depth, found.depth);
    fill(c.heads, found.heads);
    fill(c.mlp_ratio, found.mlp_ratio);
  }
  if (c.layer_norm_eps == 0) c.layer_norm_eps = found.layer_norm_eps;
  SY_ASSIGN_OR_RETURN(const ResolvedModel chosen, ResolveModel(OptionsOf(c)));
  if (chosen.info->family != "vit")
    return InvalidArgument("{} describes a Vision Transformer, but --model={}", where, c.model);
  ModelOptions sizes = chosen.options;
  if (c.channels == 0) sizes.channels = found.channels;  // left to the dataset
  if (const std::string text = Disagreements(sizes, found); !text.empty()) {
    return InvalidArgument(
        "{} says that the weights were made for another model than {}: {}; leave out --model to take all "
        "sizes from it",
        where, c.model, text);
  }
  return read->class_names;
}

StatusOr<std::optional<EvaluationTransform>> TransformBeside(const WeightSource& source, const TrainConfig& settings) {
  std::optional<EvaluationTransform> transform;
  if (source.checkpoint() != nullptr) {
    const auto read = EvaluationTransformFromJson(source.checkpoint()->record.value("evaluation", nlohmann::json()));
    if (!read.ok()) return Annotate(read.status(), source.path() + "/state.json: evaluation");
    transform = *read;
  } else if (!source.preprocessor().is_null()) {
    SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
    const auto read =
        ReadHuggingFacePreprocessor(source.preprocessor(), model.options.image_size, model.options.channels);
    if (!read.ok()) return Annotate(read.status(), source.path() + ": preprocessor_config.json");
    transform = *read;
  }
  if (!transform && IsTimmConfig(source.config())) {
    SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
    const auto read = ReadTimmTransform(source.config(), model.options.image_size, model.options.channels);
    if (!read.ok()) return Annotate(read.status(), source.path() + ": config.json");
    transform = *read;
  }
  return transform;
}

}  // namespace switchyard
