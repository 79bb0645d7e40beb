// eval: accuracy of trained weights on a dataset.
#include "absl/flags/flag.h"
#include "core/base/logging.h"
#include "core/data/renamed_classes.h"
#include "core/train/agreement.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/hints.h"
#include "tools/switchyard/in_world.h"
#include "tools/switchyard/trained_model.h"

namespace switchyard {
namespace {

// classes: their names, by label.
void PrintEvaluation(const Task& task, const EvaluationResult& e, const std::vector<std::string>& classes, bool json) {
  if (json) {
    nlohmann::ordered_json result;
    for (const Metric& metric : task.metrics()) {
      if (e.metrics.contains(metric.name)) result[metric.name] = e.metrics.at(metric.name);
    }
    result["count"] = e.count;
    result["images_per_s"] = e.images_per_s;
    for (size_t c = 0; c < e.by_class.size(); ++c) {
      nlohmann::ordered_json entry = {{"class", c < classes.size() ? classes[c] : fmt::format("class {}", c)}};
      entry.update(e.by_class[c]);
      result["by_class"].push_back(std::move(entry));
    }
    fmt::print("{}\n", result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{0} {1}: {2}, {3} {1}/s\n", e.count, task.samples(), Text(task.metrics(), e),
               ThroughputText(e.images_per_s));
  }
}

// The validation split, with labels as the model numbers its classes.
StatusOr<std::unique_ptr<Dataset>> OpenEvaluationData(const TrainedModel& model) {
  SY_ASSIGN_OR_RETURN(auto data,
                      OpenDataset(DatasetOptionsOf(model.setup.config, model.setup.resolved), Split::kValidation));
  SY_ASSIGN_OR_RETURN(const bool by_name, MatchesClassesByName());
  if (by_name && !model.classes.empty()) return WithClasses(std::move(data), model.classes);
  if (static_cast<int64_t>(data->class_names().size()) > MostClasses(model.setup.resolved)) {
    return InvalidArgument("{} has {} classes, but the model tells {} apart", data->name(), data->class_names().size(),
                           model.setup.model.classes);
  }
  return data;
}

}  // namespace

Status EvalCommand(const CommandLine& line) {
  const std::string path = absl::GetFlag(FLAGS_checkpoint);
  if (path.empty()) {
    return InvalidArgument(
        "eval needs --checkpoint=RUN, the folder that `train` prints at its end, or weights: a .safetensors file or a "
        "folder with one");
  }
  SY_ASSIGN_OR_RETURN(const ProcessMap processes, RanksOf(line.settings));
  SY_ASSIGN_OR_RETURN(TrainedModel model, OpenTrainedModel(path, line.settings, processes.world));
  if (model.weights.checkpoint() == nullptr && !line.settings.Has("dataset"))
    return InvalidArgument("{}: these weights come without a run: say with --dataset what to evaluate them on", path);
  if (ShowSettings(model.setup.settings, processes.rank)) return OkStatus();
  if (model.setup.config.best_by == "ema" && !absl::GetFlag(FLAGS_ema) && processes.rank == 0) {
    LogInfo(
        "these are the weights themselves; the run chose its best checkpoint by their averages (--best_by=ema), "
        "which --ema evaluates");
  }
  if (processes.rank == 0) {
    WarnOfSettingsOfOtherTasks(model.setup);
    WarnOfSettingsOfUpdates(line.settings, "eval");
  }
  SY_ASSIGN_OR_RETURN(const auto data, OpenEvaluationData(model));
  if (const std::string left_out = data->LeftOut(); !left_out.empty() && processes.rank == 0)
    LogWarning("{}", left_out);
  return InWorld(model.setup.config, processes, [&](World& world) -> Status {
    SY_RETURN_IF_ERROR(VerifyData({{"validation", data.get()}}, world));
    SY_ASSIGN_OR_RETURN(const auto trainer, LoadForEvaluation(model, *data, world, absl::GetFlag(FLAGS_ema)));
    SY_ASSIGN_OR_RETURN(const EvaluationResult result, trainer->Evaluate(*data));
    if (world.rank() != 0) return OkStatus();
    PrintEvaluation(trainer->task(), result, data->class_names(), absl::GetFlag(FLAGS_json));
    return CheckFinite(result);
  });
}

}  // namespace switchyard
