// export: trained weights as programs of others load them.
#include <filesystem>

#include "absl/flags/flag.h"
#include "core/base/logging.h"
#include "core/train/file_calls.h"
#include "models/hugging_face.h"
#include "models/timm.h"
#include "models/weights.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/trained_model.h"

namespace switchyard {
namespace {

Status WriteJson(const Folder& folder, const std::string& name, const nlohmann::json& json) {
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return folder.Write(name, {BytesOf(text)});
}

}  // namespace

Status ExportCommand(const CommandLine& line) {
  const std::string path = absl::GetFlag(FLAGS_checkpoint), names = absl::GetFlag(FLAGS_names);
  if (path.empty() || line.positional.size() != 1)
    return InvalidArgument(
        "export needs --checkpoint=RUN and one folder to write: switchyard export my_model --checkpoint=output/...");
  if (names != "huggingface" && names != "timm")
    return InvalidArgument("--names: expected huggingface or timm, found {}", names);
  const std::string& place = line.positional[0];
  std::error_code error;
  if (std::filesystem::exists(place, error) && !std::filesystem::is_empty(place, error))
    return InvalidArgument("{}: expected a new or an empty folder; what is there is not overwritten", place);

  SY_ASSIGN_OR_RETURN(const TrainedModel model, OpenTrainedModel(path, line.settings, 1));
  if (ShowSettings(model.setup.settings, 0)) return OkStatus();
  const ResolvedModel& resolved = model.setup.resolved;
  const bool timm = names == "timm";
  SY_ASSIGN_OR_RETURN(HostTensors tensors, model.weights.Read());
  SY_ASSIGN_OR_RETURN(tensors, ImportWeights(resolved, std::move(tensors), false));
  SY_ASSIGN_OR_RETURN(
      tensors, ExportWeights(resolved, std::move(tensors), timm ? WeightStyle::kTimm : WeightStyle::kHuggingFace));
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, "F32", {tensor.shape.begin(), tensor.shape.end()}, tensor.values.data()});
  SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Make(place));
  SY_RETURN_IF_ERROR(WriteTensorFile(folder, "model.safetensors", entries).status());
  SY_ASSIGN_OR_RETURN(const EvaluationTransform transform, EvaluationOf(model.setup.config, model.setup.model));
  std::string loader;
  if (timm && resolved.info->family == "vit") {
    if (const float eps = VisionTransformerConfigOf(resolved).layer_norm_eps; eps != kTimmEps)
      LogWarning("layer_norm_eps {:g} is not kept: timm's Vision Transformers have {:g}", eps, kTimmEps);
    SY_RETURN_IF_ERROR(WriteJson(folder, "config.json", TimmConfig(resolved, transform, model.classes)));
    loader = fmt::format("timm.create_model(\"local-dir:{}\", pretrained=True)", place);
  } else if (!timm) {
    SY_ASSIGN_OR_RETURN(const nlohmann::json config, HuggingFaceConfig(resolved, model.classes));
    SY_RETURN_IF_ERROR(WriteJson(folder, "config.json", config));
    SY_RETURN_IF_ERROR(WriteJson(folder, "preprocessor_config.json", HuggingFacePreprocessor(transform)));
    loader = fmt::format("transformers.ViTForImageClassification.from_pretrained(\"{}\")", place);
  }
  SY_RETURN_IF_ERROR(folder.Sync());
  fmt::print("{}: {} tensors under the names of {}{}\n", place, entries.size(), timm ? "timm" : "Hugging Face",
             loader.empty() ? "" : "; load them by " + loader);
  return OkStatus();
}

}  // namespace switchyard
