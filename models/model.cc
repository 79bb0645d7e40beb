#include "models/model.h"

#include <algorithm>

#include "core/base/names.h"
#include "core/base/text.h"
#include "fmt/ranges.h"
#include "models/deeplab.h"
#include "models/mlp.h"
#include "models/resnet.h"
#include "models/swin.h"
#include "models/unet3d.h"
#include "models/vit.h"

namespace switchyard {
namespace {

std::vector<ModelInfo> MakeModels() {
  std::vector<ModelInfo> models;
  for (const auto list : {VisionTransformers, SwinTransformers, ResNets, DeepLabs, UNets3d, MultiLayerPerceptrons}) {
    for (ModelInfo& info : list()) models.push_back(std::move(info));
  }
  return models;
}

// A setting that the model does not have would be accepted and do nothing; none at all is none at all.
Status CheckHas(const ModelInfo& info, const SettingValues& chosen) {
  std::vector<std::string> has = {"--image_size", "--channels", "--classes"};
  for (const Setting& row : info.family->settings()) has.push_back("--" + row.name);
  for (const auto& [name, value] : chosen) {
    if (!info.own.contains(name) && value != 0)
      return InvalidArgument("model {}: it has no --{}; what it has is {}", info.name, name, fmt::join(has, ", "));
  }
  return OkStatus();
}

StatusOr<const ModelInfo*> FindModel(const std::string& name) {
  std::vector<std::string> known;
  for (const ModelInfo& model : Models()) {
    if (model.name == name) return &model;
    known.push_back(model.name);
  }
  return NotFound("unknown model '{}'{}; `switchyard models` lists them", Printable(name),
                  DidYouMean(Printable(name), known));
}

}  // namespace

const std::vector<ModelInfo>& Models() {
  static const auto& models = *new std::vector<ModelInfo>(MakeModels());
  return models;
}

std::vector<const ModelFamily*> Families() {
  std::vector<const ModelFamily*> families;
  for (const ModelInfo& info : Models()) {
    if (std::find(families.begin(), families.end(), info.family) == families.end()) families.push_back(info.family);
  }
  return families;
}

std::vector<Setting> ModelSettings() {
  std::vector<Setting> rows;
  std::map<std::string, std::vector<std::string>> families;  // by setting
  for (const ModelInfo& info : Models()) {
    for (Setting& row : info.family->settings()) {
      std::vector<std::string>& of = families[row.name];
      if (std::find(of.begin(), of.end(), info.family->name) != of.end()) continue;
      of.push_back(info.family->name);
      if (of.size() > 1) continue;
      row.group = "Of the model";
      row.by = Origin::kModel;
      rows.push_back(std::move(row));
    }
  }
  for (Setting& row : rows) row.help += fmt::format(" ({})", fmt::join(families[row.name], ", "));
  return rows;
}

StatusOr<ResolvedModel> ResolveModel(const ModelOptions& options) {
  SY_ASSIGN_OR_RETURN(const ModelInfo* info, FindModel(options.name));
  SY_RETURN_IF_ERROR(CheckHas(*info, options.own));
  ResolvedModel model = {info, options.image_size.value_or(info->image_size), options.channels.value_or(info->channels),
                         options.classes.value_or(info->classes), info->own};
  for (const Setting& row : info->family->settings()) {
    const auto chosen = options.own.find(row.name);
    if (chosen == options.own.end()) continue;
    SY_ASSIGN_OR_RETURN(nlohmann::json value, ValueFromJson(row, chosen->second, /*exact=*/true));
    if (!value.is_null()) model.own[row.name] = std::move(value);
  }
  SY_RETURN_IF_ERROR(Annotate(info->family->check(model), "model " + info->name));
  return model;
}

nlohmann::json ArchitectureOf(const ResolvedModel& model) {
  nlohmann::json architecture = {{"model", model.info->name},
                                 {"image_size", model.image_size},
                                 {"channels", model.channels},
                                 {"classes", model.classes}};
  for (const Setting& row : model.info->family->settings()) {
    if (row.architecture) architecture[row.name] = model.own.at(row.name);
  }
  return architecture;
}

Shape InputShape(const ResolvedModel& model) {
  const auto own = model.info->family->input_shape;
  return own != nullptr ? own(model) : Shape{model.image_size, model.image_size, model.channels};
}

Value BuildModel(const ResolvedModel& model, nn::Context& context, const Value& images) {
  return model.info->family->build(model, context, images);
}

namespace {

std::map<std::string, TensorType> TypesOf(const ResolvedModel& model, bool state) {
  Graph graph;
  nn::Context context(graph);
  Shape shape = InputShape(model);
  shape.insert(shape.begin(), 1);
  BuildModel(model, context, graph.Input("images", {DType::kF32, shape}, {}));
  std::map<std::string, TensorType> types;
  for (const Node& node : graph.nodes()) {
    if (!node.input) continue;
    if (node.input->role == Role::kParameter || (state && node.input->of_model)) types[node.name] = node.outputs[0];
  }
  return types;
}

}  // namespace

std::map<std::string, TensorType> ParameterTypes(const ResolvedModel& model) { return TypesOf(model, false); }
std::map<std::string, TensorType> WeightTypes(const ResolvedModel& model) { return TypesOf(model, true); }

int64_t ParameterCount(const ResolvedModel& model) {
  int64_t count = 0;
  for (const auto& [name, type] : ParameterTypes(model)) count += type.elements();
  return count;
}

}  // namespace switchyard
