#include "core/train/run_comparison.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

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
constexpr int kDeepest = 8;           // levels of folders below the one that is given
constexpr size_t kMostRawLosses = 8;  // runs whose losses can be told apart behind the medians of all

StatusOr<nlohmann::json> ReadConfig(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestConfig));
  auto json = ParseJson(text, {.unique_keys = true});
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
  const std::string log = run.folder + "/" + kLog;
  bool torn = false;
  SY_ASSIGN_OR_RETURN(run.records, ReadMetrics(log, &torn));
  if (torn) run.warning = log + ": its last line is torn and left out";
  if (run.records.empty()) return DataLoss("{}: {}", log, torn ? "its only line is torn" : "nothing was logged");
  return run;
}

// Is the folder a run, or what is left of one? A config.json alone may be that of any program's weights.
bool LooksLikeARun(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kLog, ignored) ||
         (fs::exists(folder / kRunConfig, ignored) &&
          (fs::is_directory(folder / "checkpoints", ignored) || fs::exists(folder / kSettings, ignored)));
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

std::vector<double> FiniteValues(const LoggedRun& run, const std::string& key) {
  std::vector<double> values = LoggedValues(run.records, key).y;
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values;
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

// A logged rate is over the updates since the record before it.
std::optional<double> ImagesPerSecond(const LoggedRun& run) {
  double step = 0, updates = 0, time = 0;  // time: in seconds times the images of an update
  const Series rates = LoggedValues(run.records, "images_per_s");
  for (size_t i = 0; i < rates.y.size(); ++i) {
    const double between = rates.x[i] - std::exchange(step, rates.x[i]);
    if (!(rates.y[i] > 0) || between <= 0) continue;
    updates += between;
    time += between / rates.y[i];
  }
  return time > 0 ? std::optional(updates / time) : std::nullopt;
}

// The log counts epochs that began. Their length shows where evaluations end them, which those at a run's last update
// need not do.
void CountEpochs(const LoggedRun& run, RunSummary* summary) {
  const auto setting = [&](const char* key, int64_t otherwise) {
    const auto found = run.config.find(key);
    return found != run.config.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
  };
  const int64_t steps = setting("steps", -1), every = setting("eval_every", 1);
  int64_t begun = 0;
  std::map<int64_t, int64_t> ends = {{0, 0}};  // of an epoch: the update
  for (const MetricsRecord& record : run.records) {
    const auto epoch = static_cast<int64_t>(Number(record, "epoch").value_or(0));
    const auto step = static_cast<int64_t>(Number(record, "step").value_or(0));
    begun = std::max(begun, epoch);
    const bool due = every > 0 && epoch > 0 && epoch % every == 0;
    if (record.contains("val_count") && step != steps && (due || (steps < 0 && epoch == setting("epochs", -1))))
      ends[epoch] = step;
  }
  const auto last = std::prev(ends.end());
  const int64_t beyond = summary->updates - last->second;
  summary->epochs = static_cast<double>(last->first);
  if (beyond <= 0) return;
  if (last == ends.begin()) {
    summary->epochs = static_cast<double>(std::max<int64_t>(begun - 1, 0));
    summary->part_of_one = begun > 0;
    return;
  }
  // Of the last ones: a run that goes on with another global batch has epochs of another length.
  const auto before = std::prev(last);
  const double length =
      static_cast<double>(last->second - before->second) / static_cast<double>(last->first - before->first);
  summary->epochs += static_cast<double>(beyond) / length;
}

// In one width for usual values: 0.6931, 1.234e-07, 5.1e+22.
std::string LossText(double loss) {
  const double size = std::abs(loss);
  if (std::isnan(loss)) return "nan";  // without the sign that it may have
  return size == 0 || (size >= 1e-3 && size < 1e5) ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", loss);
}

// Columns that the text, printable UTF-8, takes in a terminal.
size_t ColumnsOf(std::string_view text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    uint32_t code = bytes == 1 ? first : first & (0x7Fu >> bytes);
    for (size_t k = i + 1; k < std::min(i + bytes, text.size()); ++k) code = code << 6 | (text[k] & 0x3F);
    i += bytes;
    const auto in = [code](uint32_t low, uint32_t high) { return low <= code && code <= high; };
    const bool joins = in(0x300, 0x36F) || in(0x200B, 0x200D) || in(0xFE00, 0xFE0F);
    const bool wide = in(0x1100, 0x115F) || in(0x2E80, 0xA4CF) || in(0xAC00, 0xD7A3) || in(0xF900, 0xFAFF) ||
                      in(0xFE30, 0xFE6F) || in(0xFF00, 0xFF60) || in(0xFFE0, 0xFFE6) || in(0x1F300, 0x1FAFF) ||
                      in(0x20000, 0x3FFFD);
    columns += joins ? 0 : wide ? 2 : 1;
  }
  return columns;
}

std::vector<std::vector<std::string>> Rows(const std::vector<const LoggedRun*>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "updates", "epochs", "loss (last tenth)", "least val loss", "best metric", "samples/s", "memory"}};
  for (const LoggedRun* run : runs) {
    const RunSummary s = Summarise(*run);
    const std::string begun = fmt::format("{}", s.updates);
    rows.push_back({Printable(run->name),
                    s.left_out > 0 ? fmt::format("{} of {}", s.updates - s.left_out, begun) : begun,
                    fmt::format("{:g}{}", std::round(s.epochs * 100) / 100, s.part_of_one ? "+" : ""),
                    s.loss ? LossText(*s.loss) : "-",
                    s.validation_loss ? (s.by_averages ? "ema " : "") + LossText(*s.validation_loss) : "-",
                    s.best ? fmt::format("{} {}", Printable(s.metric), LossText(*s.best)) : "-",
                    s.images_per_s ? ThroughputText(*s.images_per_s) : "-",
                    s.memory_bytes ? fmt::format("{:.1f} MB", *s.memory_bytes * 1e-6) : "-"});
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

Series LoggedValues(const std::vector<MetricsRecord>& records, const std::string& key) {
  Series series;
  for (const MetricsRecord& record : records) {
    const auto step = Number(record, "step");
    const auto value = record.find(key);
    if (!step || value == record.end() || !(value->is_number() || value->is_null())) continue;
    series.x.push_back(*step);
    series.y.push_back(value->is_null() ? std::numeric_limits<double>::quiet_NaN() : value->get<double>());
  }
  return series;
}

RunSummary Summarise(const LoggedRun& run) {
  RunSummary summary;
  for (const MetricsRecord& record : run.records)
    summary.updates = std::max(summary.updates, static_cast<int64_t>(Number(record, "step").value_or(0)));
  for (const double skipped : FiniteValues(run, "skipped_updates"))
    summary.left_out = std::max(summary.left_out, static_cast<int64_t>(skipped));
  CountEpochs(run, &summary);
  if (std::vector<double> losses = LoggedValues(run.records, "loss").y; !losses.empty()) {
    losses.erase(losses.begin(), losses.end() - static_cast<long>((losses.size() + 9) / 10));
    std::erase_if(losses, [](double loss) { return !std::isfinite(loss); });
    summary.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }
  summary.by_averages = run.config.value("best_by", nlohmann::json()) == "ema";
  const std::string weights = summary.by_averages ? kOfAverages : "";
  if (const auto losses = FiniteValues(run, weights + "val_loss"); !losses.empty())
    summary.validation_loss = *std::min_element(losses.begin(), losses.end());
  if (const std::string metric = MetricOf(run); !metric.empty()) summary.metric = weights + metric;
  if (const auto values = FiniteValues(run, summary.metric); !values.empty())
    summary.best = *std::max_element(values.begin(), values.end());
  summary.images_per_s = ImagesPerSecond(run);
  if (const auto memory = FiniteValues(run, "memory_bytes"); !memory.empty())
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
    double factor = 1;
  };
  const Part parts[] = {{"training loss", "loss"},
                        {"validation loss", "val_loss"},
                        {"validation loss of averages", kOfAverages + std::string("val_loss")},
                        {metric, metric},
                        {metric.empty() ? "" : metric + " of averages", metric.empty() ? "" : kOfAverages + metric},
                        {"samples/s", "images_per_s"},
                        {"memory, MB", "memory_bytes", 1e-6}};
  for (const Part& part : parts) {
    if (part.key.empty()) continue;
    Panel panel{part.label, {}};
    bool any = false;
    for (size_t i = 0; i < runs.size(); ++i) {
      Series course = LoggedValues(runs[i]->records, part.key);
      any = any || !course.y.empty();
      for (double& value : course.y) value *= part.factor;
      course.color = static_cast<int>(i);
      if (part.key == "loss" && WorthSmoothing(course)) {
        panel.y_label = "training loss, running median";
        Series raw = std::exchange(course, RunningMedian(course));
        raw.faint = true;
        if (runs.size() <= kMostRawLosses) panel.series.push_back(std::move(raw));
      }
      // The first panel names every run, also one of which only others show something.
      if (chart.panels.empty()) course.name = Printable(runs[i]->name);
      if (!course.y.empty() || !course.name.empty()) panel.series.push_back(std::move(course));
    }
    if (any) chart.panels.push_back(std::move(panel));
  }
  return chart;
}

std::string ComparisonTable(const std::vector<const LoggedRun*>& runs) {
  const auto rows = Rows(runs);
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], ColumnsOf(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - ColumnsOf(row[i]), ' ');
      text += "  " + (i == 0 ? row[i] + space : space + row[i]);
    }
    text += '\n';
  }
  return text;
}

std::string ReportPage(const std::string& title, const std::vector<const LoggedRun*>& runs,
                       const std::string& predictions) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>"
      "body{{font:15px/1.5 system-ui,sans-serif;color:#1f2937;max-width:60em;margin:2em auto;padding:0 "
      "1em;overflow-wrap:anywhere}}"
      "table{{border-collapse:collapse;display:block;overflow-x:auto}}td,th{{padding:.25em "
      ".8em;text-align:right;border-bottom:1px solid #e5e7eb}}"
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
