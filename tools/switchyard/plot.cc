// `switchyard plot`: runs beside one another, as charts, a table and a page.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "absl/flags/flag.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/data/mask_picture.h"
#include "core/train/file_calls.h"
#include "core/train/run_comparison.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/in_world.h"
#include "tools/switchyard/trained_model.h"

namespace switchyard {
namespace {

// A name of a file from names of models and tags, which may hold anything: letters of any script stay. Where another
// has it already it gets a number.
std::string FileName(const std::string& model, const std::string& tag, std::set<std::string>* taken) {
  std::string name = Printable(model + "-" + tag);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return c < 0x80 && !std::isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  std::string own = name;
  for (int number = 2; !taken->insert(own).second; ++number) own = fmt::format("{}-{}", name, number);
  return own;
}

Status WriteText(const std::string& path, const std::string& text) {
  SY_ASSIGN_OR_RETURN(const PlaceInFolder place, MakePlace(path));
  return place.folder.Replace(place.name, {BytesOf(text)});
}

// What the run's best checkpoint, else its latest, makes of some validation samples, as figures of a page.
StatusOr<std::string> PredictionsOf(const std::string& run_folder, const Settings& given) {
  constexpr int kExamples = 24;
  std::string path = run_folder + "/best";
  if (!ResolveCheckpoint(path).ok()) path = run_folder;
  SY_ASSIGN_OR_RETURN(TrainedModel model, OpenTrainedModel(path, given, 1));
  DatasetOptions options = DatasetOptionsOf(model.setup.config, model.setup.resolved);
  options.download = false;
  SY_ASSIGN_OR_RETURN(const auto data, OpenDataset(options, Split::kValidation));
  std::vector<Example> examples;
  SY_RETURN_IF_ERROR(InWorld(model.setup.config, ProcessMap{}, [&](World& world) -> Status {
    SY_ASSIGN_OR_RETURN(const auto trainer, LoadForEvaluation(model, *data, world));
    SY_ASSIGN_OR_RETURN(examples, trainer->Examples(*data, data->class_names(), kExamples));
    return OkStatus();
  }));
  if (examples.empty()) return NotFound("the run's samples are no pictures");
  const std::vector<std::string>& names = data->class_names();
  std::vector<ClassInColor> legend;
  for (size_t i = 0; i < names.size() && i < kIgnoredClass; ++i)
    legend.push_back({names[i], ClassColor(static_cast<uint8_t>(i))});
  return ExampleFigures(examples, legend);
}

}  // namespace

Status PlotCommand(const CommandLine& line) {
  if (line.positional.empty())
    return InvalidArgument("plot needs runs: switchyard plot output, or run folders one by one");
  FoundRuns found;
  for (const std::string& path : line.positional) {
    SY_ASSIGN_OR_RETURN(FoundRuns here, FindRuns(path));
    std::move(here.runs.begin(), here.runs.end(), std::back_inserter(found.runs));
    found.broken.insert(found.broken.end(), here.broken.begin(), here.broken.end());
  }
  for (const std::string& problem : found.broken) LogWarning("left out: {}", problem);
  // Paths may overlap: each run once.
  std::sort(found.runs.begin(), found.runs.end(), [](const auto& a, const auto& b) { return a.folder < b.folder; });
  const auto again = std::unique(found.runs.begin(), found.runs.end(),
                                 [](const auto& a, const auto& b) { return a.folder == b.folder; });
  found.runs.erase(again, found.runs.end());
  for (const LoggedRun& run : found.runs) {
    if (!run.warning.empty()) LogWarning("{}", run.warning);
  }
  TellApart(found.runs);
  if (found.runs.empty()) {
    return NotFound("{}: no run whose log can be read; a run is a folder with config.json and 0/log/metrics.jsonl",
                    Printable(line.positional[0]));
  }
  std::map<std::pair<std::string, std::string>, std::vector<const LoggedRun*>> groups;
  for (const LoggedRun& run : found.runs) groups[{run.model, run.tag}].push_back(&run);
  const std::string to = absl::GetFlag(FLAGS_to);
  std::set<std::string> taken;
  for (const auto& [key, runs] : groups) {
    const std::string title = fmt::format("{} on {}", Printable(key.first), Printable(key.second));
    fmt::print("{}\n{}", title, ComparisonTable(runs));
    const std::string path = to + "/" + FileName(key.first, key.second, &taken);
    const Chart chart = ComparisonChart(title, runs);
    for (const char* ending : {".svg", ".png"}) SY_RETURN_IF_ERROR(SaveChart(chart, path + ending));
    fmt::print("  {}.png, .svg", path);
    if (absl::GetFlag(FLAGS_html)) {
      std::string figures;
      if (runs.size() == 1) {
        const auto predictions = PredictionsOf(runs[0]->folder, line.settings);
        figures = predictions.ok() ? *predictions : NoExampleFigures(Message(predictions.status()));
      }
      SY_RETURN_IF_ERROR(WriteText(path + ".html", ReportPage(title, runs, figures)));
      fmt::print(", .html");
    }
    fmt::print("\n");
  }
  return OkStatus();
}

}  // namespace switchyard
