// Everything that decides a training run, resolved: one field a setting, same name, same meaning. Settings
// (core/settings) says where each came from; the Trainer sees this. The configuration is saved in the run folder as
// config.json, which --config reads back, and its properties in each checkpoint. A program without settings fills it by
// hand: the defaults are those of a run without a recipe. Plain data; thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/processes/time_limits.h"
#include "core/settings/settings.h"

namespace switchyard {

struct TrainConfig {
#define SY_GROUP(heading)
#define SY_SETTING(type, name, standard, ...) type name = standard;
#include "core/train/settings_table.inc"

  SettingValues own;  // of the model, by name: patch, depth, …; only kept and shown here
  // Where no terminal shows a bar: a line for each logged update, instead of one every ten seconds at most. What a user
  // who gives --log_every wants; kept nowhere.
  bool line_for_each_log = false;
};

// The rows of the fields, in their order.
const std::vector<Setting>& TrainSettings();

// The values as a configuration; what is absent has its default. Settings of other tables are left out; they go into
// `own`, which the caller fills.
TrainConfig ConfigOf(const Settings& settings);

// The fields of these kinds; what is absent is left out. `own` counts as properties.
nlohmann::ordered_json ToJson(const TrainConfig& config, std::initializer_list<SettingKind> kinds);

// Whether this is a run's config.json, as ToJson wrote it now or before: a foreign one has other keys.
bool IsRunConfig(const nlohmann::json& json);

// Values outside what their setting allows (--batch_size=-3) and settings that contradict each other are
// InvalidArgument that names the setting.
Status CheckTrainConfig(const TrainConfig& config);

}  // namespace switchyard
