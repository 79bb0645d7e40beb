// Runs beside one another, from what they left in their folders: found in a tree of outputs, summed up in a table,
// drawn in one chart. A run is a folder with config.json and the log of node 0 (run_folder.h); what is missing or
// broken is named, and the others are still compared. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/train/metrics.h"
#include "core/train/picture.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct LoggedRun {
  std::string folder;
  std::string model, tag;  // what it is compared by
  std::string name;        // the rest of its path: "baseline/run"
  nlohmann::json config;   // its settings
  std::vector<MetricsRecord> records;
  std::string warning;  // a sentence that names the file where something of its log is missing; "": nothing is
};

struct FoundRuns {
  std::vector<LoggedRun> runs;      // by path
  std::vector<std::string> broken;  // a sentence for each that cannot be compared, naming the file
};

// The runs in `path`, which may be one itself. Links and checkpoints are passed over. NotFound where there is no such
// folder; a tree without runs gives none.
StatusOr<FoundRuns> FindRuns(const std::string& path);

// Runs that would be compared under one name are called by as many of the folders above them as tell them apart.
// Folders differ.
void TellApart(std::vector<LoggedRun>& runs);

// The values of a field over the updates ("step"). What is not finite, null in the log, is NaN here: it breaks a line.
Series LoggedValues(const std::vector<MetricsRecord>& records, const std::string& key);

// What a run comes to. Absent: its log does not say. Numbers that are not finite are passed over.
struct RunSummary {
  int64_t updates = 0;       // begun
  int64_t left_out = 0;      // of them, as their gradients were not finite
  double epochs = 0;         // as many as were trained: 2.05
  bool part_of_one = false;  // and a part of a further one, whose length the log does not say
  bool by_averages = false;  // the averaged weights decide about the best: what validation says is of them
  // Mean of the last tenth of the logged training losses, NaN where none of them is finite, and the least validation
  // loss.
  std::optional<double> loss, validation_loss;
  std::string metric;                  // "top1" or "ema_top1": the first that evaluation logs beside its loss
  std::optional<double> best;          // its greatest
  std::optional<double> images_per_s;  // over the time of the updates, without what evaluations and checkpoints took
  std::optional<double> memory_bytes;  // most
};
RunSummary Summarise(const LoggedRun& run);

// Running median of the training loss, with the loss itself behind it where the runs are few, validation loss, the
// first metric, those of averaged weights, throughput and memory over the updates, a colour for each run. Panels of
// which no run says anything are left out.
Chart ComparisonChart(const std::string& title, const std::vector<const LoggedRun*>& runs);

// A table with a line for each run, for a terminal.
std::string ComparisonTable(const std::vector<const LoggedRun*>& runs);

// One page of one or several runs that a browser shows without a server: the charts, the table and each run's settings
// with their origins (settings.txt of its folder).
// predictions: HTML of one run's sample predictions, or why there are none; "": several runs.
std::string ReportPage(const std::string& title, const std::vector<const LoggedRun*>& runs,
                       const std::string& predictions = "");

}  // namespace switchyard
