// The table of a training run, with the models' own settings in it.
#include <fstream>
#include <set>

#include "core/data/augmentation.h"
#include "core/data/resize.h"
#include "core/optim/optimizer.h"
#include "core/optim/schedule.h"
#include "gmock/gmock.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

TEST(RunTable, EachSettingIsThereOnceWithADefaultThatItAllows) {
  std::set<std::string> names;
  for (const Setting& row : RunTable().rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " is there twice";
    EXPECT_FALSE(row.help.empty()) << row.name;
    EXPECT_FALSE(row.group.empty()) << row.name;
    EXPECT_TRUE(CheckValue(row, row.standard).ok()) << row.name << ": " << Message(CheckValue(row, row.standard));
    EXPECT_TRUE(row.yields_to.empty() || RunTable().Find(row.yields_to) != nullptr) << row.name;
  }
  for (const Setting& row : TrainSettings()) EXPECT_TRUE(names.contains(row.name)) << row.name;
}

TEST(RunTable, AliasesAreNamesOfNothingElseAndMeanWhatTheirSettingsAllow) {
  std::set<std::string> keys;
  for (const Alias& alias : RunTable().aliases()) {
    EXPECT_TRUE(keys.insert(AliasKey(alias.name)).second) << alias.name << " is there twice";
    EXPECT_EQ(RunTable().Find(AliasKey(alias.name)), nullptr) << alias.name << " is a setting";
    const Setting* const row = RunTable().Find(alias.setting);
    ASSERT_NE(row, nullptr) << alias.name << " stands for --" << alias.setting;
    for (const auto& [theirs, ours] : alias.values) {
      const auto value = ValueFromText(*row, ours);
      EXPECT_TRUE(value.ok() && CheckValue(*row, *value).ok()) << alias.name << "=" << theirs;
    }
  }
}

// A row of the page for each alias, and no row that the table does not know:
// | theirs | ours | …, where theirs is "`--name` …" or "`NAME` …".
TEST(RunTable, ThePageForPeopleFromElsewhereIsTheTableOfAliases) {
  std::ifstream page(std::string(SWITCHYARD_SOURCE) + "/models/README.md");
  ASSERT_TRUE(page.good());
  std::set<std::string> told;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    std::string name = line.substr(3, line.find_first_of("` =", 3) - 3);
    if (name.starts_with("--")) name = name.substr(2);
    const Alias* const alias = RunTable().FindAlias(name);
    if (alias == nullptr) continue;  // spelled as ours, or a flag of `launch`
    told.insert(AliasKey(name));
    EXPECT_THAT(line, ::testing::HasSubstr("`--" + alias->setting)) << name;
  }
  for (const Alias& alias : RunTable().aliases())
    EXPECT_TRUE(told.contains(AliasKey(alias.name))) << "models/README.md has no line of --" << alias.name;
}

TEST(RunTable, FamiliesThatShareANameMeanTheSameType) {
  for (const ModelInfo& info : Models()) {
    for (const Setting& row : info.family->settings()) EXPECT_EQ(row.type, RunTable().Find(row.name)->type) << row.name;
  }
}

TEST(RunTable, WhatRecipesSayIsForARecipeToSay) {
  for (const ModelInfo& info : Models()) {
    for (const SettingValues& said : {info.recipe, info.preprocessing}) {
      for (const auto& [name, value] : said) {
        const Setting* const row = RunTable().Find(name);
        ASSERT_NE(row, nullptr) << info.name << ": " << name;
        EXPECT_NE(row->by, Origin::kDefault) << name << ": the help says that nobody but the user sets it";
        EXPECT_TRUE(ValueFromJson(*row, value, true).ok() && CheckValue(*row, value).ok()) << info.name << ": " << name;
      }
    }
  }
}

TEST(RunTable, ChoicesAreWhatTheirReadersKnow) {
  const auto all = [](const char* name, const auto& parse) {
    const Setting& row = *RunTable().Find(name);
    EXPECT_FALSE(row.choices.empty()) << name;
    for (const std::string& choice : row.choices) EXPECT_TRUE(parse(choice).ok()) << name << ": " << choice;
  };
  all("optimizer", ParseOptimizer);
  all("schedule", ParseSchedule);
  all("scale_lr", ParseRateScaling);
  all("augmentation", ParseAugmentation);
  all("interpolation", ParseInterpolation);
}

TEST(RunTable, AConfigurationComesBackFromItsJson) {
  TrainConfig config;
  config.steps = 7;
  config.lr = 0.1f;
  config.milestones = {"3", "4"};
  config.suffix = "a";
  config.own = {{"width", 16}};
  const Json json = ToJson(config, {SettingKind::kProperty, SettingKind::kPlace});
  EXPECT_EQ(json["lr"], 0.1);
  EXPECT_EQ(json["width"], 16);
  EXPECT_EQ(json["max_fallback"], "inf");
  EXPECT_FALSE(json.contains("data")) << "absent is absent";
  Settings settings(RunTable());
  for (const auto& [name, value] : json.items()) {
    const auto stored = ValueFromJson(*RunTable().Find(name), value, true);
    ASSERT_TRUE(stored.ok()) << Message(stored.status());
    ASSERT_TRUE(settings.Give(name, *stored, Origin::kConfigFile, "test").ok());
  }
  TrainConfig back = ConfigOf(settings);
  back.own = config.own;
  EXPECT_EQ(Json(ToJson(back, {SettingKind::kProperty, SettingKind::kPlace})), json);
  EXPECT_TRUE(IsRunConfig(json));
  EXPECT_FALSE(IsRunConfig({{"hidden_size", 768}}));
  EXPECT_FALSE(IsRunConfig({{"model", "mlp"}, {"dataset", "shapes"}, {"seed", "x"}, {"output", "run"}}));
}

TEST(RunTable, ValuesOutsideTheirRangeAreRefusedInAConfigurationToo) {
  TrainConfig config;
  EXPECT_TRUE(CheckTrainConfig(config).ok()) << Message(CheckTrainConfig(config));
  config.workers = 0;
  EXPECT_THAT(Message(CheckTrainConfig(config)), testing::HasSubstr("--workers: expected at least 1, found 0"));
}

}  // namespace
}  // namespace switchyard
