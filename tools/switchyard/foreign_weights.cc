#include "tools/switchyard/foreign_weights.h"

#include <algorithm>
#include <map>

#include "core/base/text.h"
#include "models/foreign_format.h"
#include "models/hugging_face.h"
#include "models/timm.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {
namespace {

// By more than their numbers, as masks without a list of classes have them.
bool Named(const std::vector<std::string>& classes) {
  for (size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] != fmt::format("class {}", i)) return true;
  }
  return false;
}

// What the checkpoint of a run says of its model, as settings; none of other weights.
nlohmann::json ArchitectureOfRun(const WeightSource& source) {
  nlohmann::json found = nlohmann::json::object();
  if (source.checkpoint() == nullptr) return found;
  const nlohmann::json architecture = source.checkpoint()->record.value("arch", found);
  for (const auto& [name, value] : architecture.items()) {
    const Setting* const row = RunTable().Find(name);
    if (row != nullptr && CheckValue(*row, value).ok()) found[name] = value;
  }
  return found;
}

}  // namespace

SettingValues ImpliedBy(const WeightSource& source, const ModelFamily& family) {
  return ImpliedByWeights(family, [&](const std::string& name) -> std::optional<Shape> {
    const TensorFile::Entry* const entry = source.Find(name);
    if (entry == nullptr) return std::nullopt;
    return Shape(entry->shape.begin(), entry->shape.end());
  });
}

StatusOr<std::vector<std::string>> AdoptArchitecture(const WeightSource& source, Settings& settings) {
  const std::string where = source.path() + ": config.json";
  const auto fill = [&](const std::string& name, const nlohmann::json& value) {
    settings.Fill(name, value, Origin::kCheckpoint, where);
  };
  if (source.config().is_null()) {
    const nlohmann::json of_run = ArchitectureOfRun(source);
    const auto trained = of_run.find("model");
    if (trained != of_run.end()) settings.Fill("model", *trained, Origin::kCheckpoint, source.path());
    SY_ASSIGN_OR_RETURN(const ResolvedModel named, ResolveModel({.name = *settings.Get<std::string>("model")}));
    settings.Fill(ImpliedBy(source, *named.info->family), Origin::kCheckpoint, source.path());
    if (trained == of_run.end() || *trained != named.info->name) return std::vector<std::string>();
    for (const auto& [name, value] : of_run.items()) {
      if (name != "classes") settings.Fill(name, value, Origin::kCheckpoint, source.path());  // those of the data
    }
    return std::vector<std::string>();
  }
  const auto read = ReadForeignConfig(source.config());
  if (!read.ok()) return Annotate(read.status(), where);
  if (!settings.Has("model")) {
    fill("model", read->name);
    if (read->image_size) fill("image_size", *read->image_size);
    fill("channels", read->channels);
    settings.Fill(read->own, Origin::kCheckpoint, where);
  }
  SY_ASSIGN_OR_RETURN(const ResolvedModel named, ResolveModel({.name = *settings.Get<std::string>("model")}));
  if (named.info->family->backbone == read->family->name) return std::vector<std::string>();
  if (named.info->family != read->family)
    return InvalidArgument("{} describes a {}, but --model={}", where, read->family->words, named.info->name);
  settings.Fill(read->of_weights, Origin::kCheckpoint, where);
  if (!read->image_size && !source.preprocessor().is_null()) {  // it alone knows; what is wrong with it is told later
    const auto prepared = ReadHuggingFacePreprocessor(source.preprocessor(), std::nullopt, read->channels);
    if (prepared.ok())
      settings.Fill("image_size", prepared->image_size, Origin::kCheckpoint,
                    source.path() + ": preprocessor_config.json");
  }
  fill("channels", read->channels);
  SY_ASSIGN_OR_RETURN(const ResolvedModel chosen, ResolveModel(OptionsOf(settings)));
  if (const std::string text = Disagreements(chosen, *read); !text.empty()) {
    return InvalidArgument(
        "{} says that the weights were made for another model than {}: {}; leave out --model to take all "
        "sizes from it",
        where, chosen.info->name, text);
  }
  return read->class_names;
}

std::vector<std::string> ClassesOfWeights(const WeightSource& source, std::vector<std::string> described) {
  if (source.checkpoint() == nullptr) return described;
  std::vector<std::string> classes;
  for (const nlohmann::json& name : source.checkpoint()->record.value("classes", nlohmann::json::array())) {
    if (name.is_string()) classes.push_back(name.get<std::string>());
  }
  return classes;
}

ClassMatch MatchClasses(const std::vector<std::string>& known, const std::vector<std::string>& wanted, int rows) {
  constexpr int kShown = 3;
  ClassMatch match;
  const size_t both = std::min(known.size(), wanted.size()), all = static_cast<size_t>(rows);
  if (std::max(known.size(), wanted.size()) > all) return match;  // such weights do not fit
  if (!Named(known) || !Named(wanted) || std::equal(known.begin(), known.begin() + both, wanted.begin())) return match;
  std::map<std::string, int> row_of;
  for (const std::string& name : known) row_of.emplace(name, static_cast<int>(row_of.size()));
  std::vector<int> order;
  std::vector<bool> taken(all);
  for (const std::string& name : wanted) {
    const auto found = row_of.find(name);
    if (found == row_of.end() || taken[static_cast<size_t>(found->second)]) continue;
    taken[static_cast<size_t>(found->second)] = true;
    order.push_back(found->second);
  }
  if (row_of.size() == known.size() && order.size() == wanted.size()) {
    for (int row = 0; row < rows; ++row) {
      if (!taken[static_cast<size_t>(row)]) order.push_back(row);
    }
    match.order = std::move(order);
    return match;
  }
  int differ = 0;
  for (size_t i = 0; i < both; ++i) {
    if (known[i] == wanted[i] || ++differ > kShown) continue;
    match.other += fmt::format("{}row {} meant {} and is now {}", differ > 1 ? ", " : "", i, Printable(known[i]),
                               Printable(wanted[i]));
  }
  if (differ > kShown) match.other += fmt::format(", and {} more", differ - kShown);
  return match;
}

Status CheckEnoughWeights(const WeightSource& source, const ResolvedModel& model) {
  const int layers = model.info->family->layers(model);
  if (source.size() >= static_cast<size_t>(layers)) return OkStatus();
  return InvalidArgument("{}: its {} tensors are too few for the weights of {} with {} layers", source.path(),
                         source.size(), model.info->name, layers);
}

StatusOr<std::optional<EvaluationTransform>> TransformBeside(const WeightSource& source, const Settings& settings) {
  std::optional<EvaluationTransform> transform;
  SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
  if (model.info->family->data == Content::kMaskedVolumes) return transform;  // --normalization says it
  // Files speak of the images that the weights were made for.
  std::optional<int> made_for = model.image_size;
  if (!model.info->family->resampled.empty() && !source.config().is_null()) {
    const auto described = ReadForeignConfig(source.config());
    const bool chosen = settings.Has("image_size") || (described.ok() && described->family != model.info->family);
    if (described.ok() && (described->image_size || chosen)) made_for = described->image_size;
  }
  if (source.checkpoint() != nullptr) {
    const auto read = EvaluationTransformFromJson(source.checkpoint()->record.value("evaluation", nlohmann::json()));
    if (!read.ok()) return Annotate(read.status(), source.path() + "/state.json: evaluation");
    transform = *read;
  } else if (!source.preprocessor().is_null()) {
    const auto read = ReadHuggingFacePreprocessor(source.preprocessor(), made_for, model.channels);
    if (!read.ok()) return Annotate(read.status(), source.path() + ": preprocessor_config.json");
    transform = *read;
  }
  if (!transform && IsTimmConfig(source.config())) {
    const auto read = ReadTimmTransform(source.config(), made_for.value_or(model.image_size), model.channels);
    if (!read.ok()) return Annotate(read.status(), source.path() + ": config.json");
    transform = *read;
  }
  if (transform && transform->image_size != model.image_size && !model.info->family->resampled.empty()) {
    // The same part of an image, in more pixels or fewer.
    transform->resize =
        static_cast<int>(int64_t{transform->resize} * model.image_size / std::max(1, transform->image_size));
    transform->image_size = model.image_size;
  }
  return transform;
}

void FillFromTransform(const EvaluationTransform& transform, const WeightSource& source, Settings& settings) {
  const auto texts = [](const std::vector<float>& numbers) {
    std::vector<std::string> texts;
    for (const float number : numbers) texts.push_back(fmt::format("{}", number));
    return texts;
  };
  settings.Fill("interpolation", InterpolationName(transform.interpolation), Origin::kCheckpoint, source.path());
  settings.Fill("mean", texts(transform.mean), Origin::kCheckpoint, source.path());
  settings.Fill("std", texts(transform.std), Origin::kCheckpoint, source.path());
}

}  // namespace switchyard
