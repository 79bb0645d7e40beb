#include "core/train/run_comparison.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/train/canvas.h"
#include "core/train/progress.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kRunConfig[] = "config.json", kLog[] = "0/log/metrics.jsonl", kSettings[] = "settings.txt";
constexpr size_t kLargestConfig = size_t{1} << 20;
constexpr int kDeepest = 8;  // levels of folders below the one that is given

StatusOr<nlohmann::json> ReadConfig(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestConfig));
  auto json = ParseJson(text, {});
  if (!json.ok()) return Annotate(json.status(), path);
  if (!json->is_object()) return DataLoss("{}: expected the settings of a run, found {}", path, json->type_name());
  return json;
}

StatusOr<LoggedRun> ReadRun(const fs::path& folder) {
  LoggedRun run;
  run.folder = folder.string();
  SY_ASSIGN_OR_RETURN(run.config, ReadConfig(run.folder + "/" + kRunConfig));
  for (const auto& [key, value] : {std::pair{"model", &run.model}, {"dataset", &run.tag}})
    SY_RETURN_IF_ERROR(Annotate(ReadField(run.config, key, value), run.folder + "/" + kRunConfig));
  // <output>/<model>/<tag>/<suffix>/<output_suffix>; a folder that was moved is known by its settings.
  const fs::path suffix = folder.parent_path(), tag = suffix.parent_path();
  run.name = folder.filename().string();
  if (tag.parent_path().filename() == run.model) {
    run.tag = tag.filename().string();
    run.name = (suffix.filename() / folder.filename()).string();
  }
  SY_ASSIGN_OR_RETURN(run.records, ReadMetrics(run.folder + "/" + kLog));
  if (run.records.empty()) return DataLoss("{}/{}: nothing was logged", run.folder, kLog);
  return run;
}

// Is the folder a run, or what is left of one?
bool LooksLikeARun(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kLog, ignored) ||
         (fs::exists(folder / kRunConfig, ignored) && fs::is_directory(folder / "checkpoints", ignored));
}

void Search(const fs::path& folder, int depth, FoundRuns* found) {
  if (LooksLikeARun(folder)) {
    auto run = ReadRun(folder);
    if (run.ok()) {
      found->runs.push_back(std::move(*run));
    } else {
      found->broken.push_back(Message(run.status()));
    }
    return;
  }
  if (depth == 0) return;
  std::set<fs::path> inside;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_symlink(error) && entry.is_directory(error)) inside.insert(entry.path());
  }
  if (error) found->broken.push_back(fmt::format("{}: {}", Printable(folder.string()), error.message()));
  for (const fs::path& one : inside) Search(one, depth - 1, found);
}

std::optional<double> Number(const MetricsRecord& record, const std::string& key) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// The values of a field over the updates.
Series Course(const LoggedRun& run, const std::string& key) {
  Series series;
  for (const MetricsRecord& record : run.records) {
    const auto step = Number(record, "step"), value = Number(record, key);
    if (!step || !value) continue;
    series.x.push_back(*step);
    series.y.push_back(*value);
  }
  return series;
}

// The first thing that evaluation logs beside the loss; "": nothing.
std::string MetricOf(const LoggedRun& run) {
  static const std::set<std::string> others = {"step", "epoch", "val_loss", "val_count"};
  for (const MetricsRecord& record : run.records) {
    if (!record.contains("val_loss")) continue;
    for (const auto& [key, value] : record.items()) {
      if (!others.contains(key) && value.is_number()) return key;
    }
  }
  return "";
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::string OrDash(const std::optional<double>& value, const char* format, double factor = 1) {
  return value ? fmt::format(fmt::runtime(format), *value * factor) : "-";
}

std::vector<std::vector<std::string>> Rows(const std::vector<const LoggedRun*>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "updates", "epochs", "loss", "val loss", "metric", "best", "images/s", "memory"}};
  for (const LoggedRun* run : runs) {
    const RunSummary s = Summarise(*run);
    rows.push_back({Printable(run->name), fmt::format("{}", s.updates), fmt::format("{:g}", s.epochs),
                    OrDash(s.loss, "{:.4f}"), OrDash(s.validation_loss, "{:.4f}"),
                    s.metric.empty() ? "-" : Printable(s.metric), OrDash(s.best, "{:.4f}"),
                    s.images_per_s ? ThroughputText(*s.images_per_s) : "-", OrDash(s.memory_bytes, "{:.1f} MB", 1e-6)});
  }
  return rows;
}

}  // namespace

StatusOr<FoundRuns> FindRuns(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(path, error);
  if (error || !fs::is_directory(folder)) {
    return NotFound("{}: expected a run folder or a folder of runs, found {}", Printable(path),
                    error ? error.message() : "a file");
  }
  FoundRuns found;
  Search(folder, kDeepest, &found);
  return found;
}

void TellApart(std::vector<LoggedRun>& runs) {
  for (;;) {
    std::map<std::tuple<std::string, std::string, std::string>, std::vector<LoggedRun*>> named;
    for (LoggedRun& run : runs) named[{run.model, run.tag, run.name}].push_back(&run);
    bool apart = true;
    for (const auto& [key, same] : named) {
      if (same.size() == 1) continue;
      for (LoggedRun* run : same) {
        const fs::path folder = run->folder, name = run->name;
        const auto parts = std::distance(name.begin(), name.end());
        if (parts >= std::distance(folder.begin(), folder.end())) continue;
        fs::path longer;
        for (auto part = std::prev(folder.end(), parts + 1); part != folder.end(); ++part) longer /= *part;
        run->name = longer.string();
        apart = false;
      }
    }
    if (apart) return;
  }
}

RunSummary Summarise(const LoggedRun& run) {
  RunSummary summary;
  for (const MetricsRecord& record : run.records) {
    summary.updates = std::max(summary.updates, static_cast<int64_t>(Number(record, "step").value_or(0)));
    summary.epochs = std::max(summary.epochs, Number(record, "epoch").value_or(0));
  }
  if (const std::vector<double> losses = Course(run, "loss").y; !losses.empty()) {
    const size_t last = (losses.size() + 9) / 10;
    double sum = 0;
    for (size_t i = losses.size() - last; i < losses.size(); ++i) sum += losses[i];
    summary.loss = sum / static_cast<double>(last);
  }
  if (const auto losses = Course(run, "val_loss").y; !losses.empty())
    summary.validation_loss = *std::min_element(losses.begin(), losses.end());
  summary.metric = MetricOf(run);
  if (const auto values = Course(run, summary.metric).y; !values.empty())
    summary.best = *std::max_element(values.begin(), values.end());
  if (const auto rates = Course(run, "images_per_s").y; !rates.empty()) summary.images_per_s = Median(rates);
  if (const auto memory = Course(run, "memory_bytes").y; !memory.empty())
    summary.memory_bytes = *std::max_element(memory.begin(), memory.end());
  return summary;
}

Chart ComparisonChart(const std::string& title, const std::vector<const LoggedRun*>& runs) {
  Chart chart{title, "updates", {}};
  std::string metric;
  for (const LoggedRun* run : runs) {
    if (metric.empty()) metric = MetricOf(*run);
  }
  struct Part {
    std::string label, key;
    bool smooth = false;
    double factor = 1;
  };
  const Part parts[] = {{"training loss", "loss", true},
                        {"validation loss", "val_loss"},
                        {metric, metric},
                        {"images/s", "images_per_s"},
                        {"memory, MB", "memory_bytes", false, 1e-6}};
  for (const Part& part : parts) {
    if (part.key.empty()) continue;
    Panel panel{part.label, {}};
    for (size_t i = 0; i < runs.size(); ++i) {
      Series course = Course(*runs[i], part.key);
      if (course.y.empty()) continue;
      for (double& value : course.y) value *= part.factor;
      course.color = static_cast<int>(i);
      const double window = static_cast<double>(course.y.size()) / 50;
      if (part.smooth && window > 1) course = Smoothed(course, 1 - 1 / window);
      if (chart.panels.empty()) course.name = Printable(runs[i]->name);
      panel.series.push_back(std::move(course));
    }
    if (!panel.series.empty()) chart.panels.push_back(std::move(panel));
  }
  return chart;
}

std::string ComparisonTable(const std::vector<const LoggedRun*>& runs) {
  const auto rows = Rows(runs);
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("  {:<{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += '\n';
  }
  return text;
}

std::string ReportPage(const std::string& title, const std::vector<const LoggedRun*>& runs,
                       const std::string& predictions) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>"
      "body{{font:15px/1.5 system-ui,sans-serif;color:#1f2937;max-width:60em;margin:2em auto;padding:0 1em}}"
      "table{{border-collapse:collapse}}td,th{{padding:.25em .8em;text-align:right;border-bottom:1px solid #e5e7eb}}"
      "td:first-child,th:first-child{{text-align:left}}svg{{max-width:100%;height:auto}}"
      "pre{{background:#f9fafb;padding:1em;overflow-x:auto;font-size:13px}}"
      "details{{margin-top:1.5em}}summary{{cursor:pointer}}"
      ".examples{{display:grid;grid-template-columns:repeat(auto-fill,minmax(8em,1fr));gap:1em}}figure{{margin:0}}"
      "figure img{{width:100%;image-rendering:pixelated;margin-bottom:.25em}}figcaption{{font-size:13px}}"
      ".legend span{{display:inline-block;margin-right:1.2em}}"
      ".legend i{{display:inline-block;width:1em;height:1em;margin-right:.4em;vertical-align:-.15em}}"
      ".right{{color:#15803d}}.wrong{{color:#b91c1c}}"
      "</style></head><body>\n<h1>{0}</h1>\n",
      XmlText(title));
  page += "<table>\n";
  const auto rows = Rows(runs);
  for (size_t r = 0; r < rows.size(); ++r) {
    page += "<tr>";
    for (const std::string& cell : rows[r]) page += fmt::format("<{0}>{1}</{0}>", r == 0 ? "th" : "td", XmlText(cell));
    page += "</tr>\n";
  }
  page += "</table>\n" + RenderSvg(ComparisonChart("", runs)) + "\n";
  if (!predictions.empty()) page += "<h2>Sample predictions</h2>\n" + predictions;
  for (const LoggedRun* run : runs) {
    const auto listed = ReadWholeFile(run->folder + "/" + kSettings, kLargestConfig);
    page += fmt::format("<details{}><summary>settings of {}</summary><pre>{}</pre></details>\n",
                        runs.size() == 1 ? " open" : "", XmlText(Printable(run->name)),
                        XmlText(listed.ok() ? *listed : run->config.dump(2)));
  }
  return page + "</body></html>\n";
}

}  // namespace switchyard
