// export: trained weights as programs of others load them.
#include <algorithm>
#include <filesystem>

#include "absl/flags/flag.h"
#include "core/train/weight_files.h"
#include "fmt/ranges.h"
#include "models/foreign_format.h"
#include "models/weights.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/hints.h"
#include "tools/switchyard/trained_model.h"

namespace switchyard {
namespace {

constexpr std::string_view kVariance = "running_var";

// Of the run whose checkpoint the weights are; 0 where nobody says.
int64_t UpdatesOf(const WeightSource& weights) {
  if (weights.checkpoint() == nullptr) return 0;
  const nlohmann::json step = weights.checkpoint()->record.value("step", nlohmann::json());
  return step.is_number_integer() ? step.get<int64_t>() : 0;
}

}  // namespace

Status ExportCommand(const CommandLine& line) {
  const std::string path = absl::GetFlag(FLAGS_checkpoint), names = absl::GetFlag(FLAGS_names);
  if (path.empty() || line.positional.size() != 1)
    return InvalidArgument(
        "export needs --checkpoint=RUN and one folder to write: switchyard export my_model --checkpoint=output/...");
  const std::vector<std::string> known = FormatNames();
  if (std::find(known.begin(), known.end(), names) == known.end())
    return InvalidArgument("--names: expected {}, found {}", fmt::join(known, " or "), names);
  const std::string& place = line.positional[0];
  std::error_code error;
  if (std::filesystem::exists(place, error) && !std::filesystem::is_empty(place, error))
    return InvalidArgument("{}: expected a new or an empty folder; what is there is not overwritten", place);

  SY_ASSIGN_OR_RETURN(const TrainedModel model, OpenTrainedModel(path, line.settings, 1));
  if (ShowSettings(model.setup.settings, 0)) return OkStatus();
  WarnOfSettingsOfUpdates(line.settings, "export");
  const ResolvedModel& resolved = model.setup.resolved;
  SY_ASSIGN_OR_RETURN(const ForeignFormat* const format, FormatOf(*resolved.info->family, names));
  const TrainableModel& trained = model.setup.model;
  SY_ASSIGN_OR_RETURN(HostTensors tensors, absl::GetFlag(FLAGS_ema)
                                               ? model.weights.ReadAverages(trained.from_file, trained.to_file)
                                               : model.weights.Read());
  SY_ASSIGN_OR_RETURN(tensors, ImportWeights(resolved, std::move(tensors), false));
  SY_ASSIGN_OR_RETURN(tensors, ExportWeights(resolved, std::move(tensors), names));
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, "F32", {tensor.shape.begin(), tensor.shape.end()}, tensor.values.data()});
  // PyTorch's batch norms count their updates, which no result of ours depends on.
  const int64_t updates = UpdatesOf(model.weights);
  for (const auto& [name, tensor] : tensors) {
    if (!name.ends_with(kVariance)) continue;
    entries.push_back({name.substr(0, name.size() - kVariance.size()) + "num_batches_tracked", "I64", {}, &updates});
  }
  SY_ASSIGN_OR_RETURN(const EvaluationTransform transform, EvaluationOf(model.setup.config, model.setup.model));
  ForeignFiles files;
  if (format->write != nullptr) {
    SY_ASSIGN_OR_RETURN(files, format->write(resolved, transform, model.classes));
  }
  SY_RETURN_IF_ERROR(WriteWeightFolder(place, entries, files.config, files.preprocessor));
  fmt::print("{}: {} tensors under the names of {}{}\n", place, entries.size(), format->words,
             format->loader != nullptr ? "; load them by " + format->loader(place) : "");
  return OkStatus();
}

}  // namespace switchyard
