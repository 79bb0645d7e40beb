// Settings that a user chose and that change nothing: those of another optimizer or schedule, of another task, of what
// is turned off. They are warned about and not refused, as a line for many runs may name them. Thread-safe: pure
// functions. chosen(name): did the user choose this one?
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/train/config.h"

namespace switchyard {

inline constexpr int64_t kUnknownLength = int64_t{1} << 40;  // updates of a run that nobody counted

// What decides about the effect of settings beside other settings.
struct RunFacts {
  int64_t updates = 0, updates_per_epoch = 0;  // 0 of an epoch: nobody knows
  int ranks = 1;                               // that divide the data
  bool hierarchy = true;                       // of those, several are on one node and some on another
  bool batch_norms = true;                     // the model has some
  Content content = Content::kLabelledImages;  // that the model learns from
  bool own_memory = true;                      // of the device, beside the host's
  bool pins_batches = true;                    // batches go to the device through pinned memory, unless told otherwise
};
// A sentence for each such setting of a training run. config: resolved.
std::vector<std::string> SettingsWithoutEffect(const TrainConfig& config, const RunFacts& facts,
                                               absl::FunctionRef<bool(const std::string& setting)> chosen);

// Of these, the settings of another task alone, which do nothing in evaluation and prediction either.
std::vector<std::string> SettingsOfOtherTasks(const TrainConfig& config, Content content,
                                              absl::FunctionRef<bool(const std::string& setting)> chosen);

// Settings that say what a run begins with, how it updates weights and where it holds what it updates; and a sentence
// for each that was chosen for a command that updates nothing: "eval".
std::vector<std::string> NamesOfUpdates();
std::vector<std::string> SettingsOfUpdates(const std::string& command,
                                           absl::FunctionRef<bool(const std::string& setting)> chosen);

}  // namespace switchyard
