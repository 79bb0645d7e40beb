// The table of a training run, with the models' own settings in it.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <set>

#include "absl/flags/reflection.h"
#include "absl/strings/str_split.h"
#include "core/data/augmentation.h"
#include "core/data/resize.h"
#include "core/optim/optimizer.h"
#include "core/optim/schedule.h"
#include "core/settings/sources.h"
#include "core/train/fitting.h"
#include "core/train/mixed_precision.h"
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
    if (alias.name == alias.setting)
      EXPECT_FALSE(alias.values.empty()) << alias.name << " has no words for its values";
    else
      EXPECT_EQ(RunTable().Find(AliasKey(alias.name)), nullptr) << alias.name << " is a setting";
    EXPECT_EQ(alias.setting.empty(), !alias.always.empty()) << alias.name;
    if (alias.setting.empty()) {
      EXPECT_FALSE(alias.instead.empty()) << alias.name << " does not say what to do";
      continue;
    }
    const Setting* const row = RunTable().Find(alias.setting);
    ASSERT_NE(row, nullptr) << alias.name << " stands for --" << alias.setting;
    for (const auto& [theirs, ours] : alias.values) {
      const auto value = ValueFromText(*row, ours);
      EXPECT_TRUE(value.ok() && CheckValue(*row, *value).ok()) << alias.name << "=" << theirs;
    }
    for (const auto& [theirs, others] : alias.beside) {
      for (const auto& [name, ours] : others) {
        const Setting* const other = RunTable().Find(name);
        ASSERT_NE(other, nullptr) << alias.name << "=" << theirs << " says something of --" << name;
        const auto value = ValueFromText(*other, ours);
        EXPECT_TRUE(value.ok() && CheckValue(*other, *value).ok()) << alias.name << "=" << theirs;
      }
    }
  }
}

// The parameters of Colossal-AI's plugins (0.4) with the defaults that Python prints: who types them all asks for
// nothing that cannot be had.
TEST(RunTable, TheDefaultsOfPluginsThatPeopleComeFromAreTaken) {
  const std::vector<std::pair<std::string, std::string>> shared = {
      {"initial_scale", "65536"},  {"min_scale", "1"},          {"growth_factor", "2"},
      {"backoff_factor", "0.5"},   {"growth_interval", "1000"}, {"hysteresis", "2"},
      {"max_scale", "4294967296"}, {"max_norm", "0"},           {"fp8_communication", "False"}};
  const std::vector<std::pair<std::string, std::string>> hybrid = {{"tp_size", "1"},
                                                                   {"pp_size", "1"},
                                                                   {"sp_size", "None"},
                                                                   {"precision", "fp16"},
                                                                   {"zero_stage", "0"},
                                                                   {"enable_all_optimization", "False"},
                                                                   {"enable_fused_normalization", "False"},
                                                                   {"enable_flash_attention", "False"},
                                                                   {"enable_jit_fused", "False"},
                                                                   {"enable_sequence_parallelism", "False"},
                                                                   {"sequence_parallelism_mode", "None"},
                                                                   {"parallel_output", "True"},
                                                                   {"num_microbatches", "None"},
                                                                   {"microbatch_size", "None"},
                                                                   {"broadcast_buffers", "True"},
                                                                   {"ddp_bucket_cap_mb", "25"},
                                                                   {"find_unused_parameters", "False"},
                                                                   {"check_reduction", "False"},
                                                                   {"gradient_as_bucket_view", "False"},
                                                                   {"static_graph", "False"},
                                                                   {"zero_bucket_size_in_m", "12"},
                                                                   {"cpu_offload", "False"},
                                                                   {"communication_dtype", "None"},
                                                                   {"overlap_communication", "True"},
                                                                   {"custom_policy", "None"},
                                                                   {"pp_style", "1f1b"},
                                                                   {"num_model_chunks", "1"},
                                                                   {"scheduler_nodes", "None"},
                                                                   {"num_layers_per_stage", "None"},
                                                                   {"gradient_checkpoint_config", "None"},
                                                                   {"enable_metadata_cache", "True"},
                                                                   {"make_vocab_size_divisible_by", "64"},
                                                                   {"dp_outside", "True"},
                                                                   {"overlap_p2p", "True"},
                                                                   {"overlap_allgather", "False"},
                                                                   {"use_fp8", "False"},
                                                                   {"inner_ring_size", "None"}};
  const std::vector<std::pair<std::string, std::string>> low_level_zero = {{"stage", "1"},
                                                                           {"precision", "fp16"},
                                                                           {"norm_type", "2.0"},
                                                                           {"reduce_bucket_size_in_m", "12"},
                                                                           {"communication_dtype", "None"},
                                                                           {"overlap_communication", "True"},
                                                                           {"overlap_allgather", "False"},
                                                                           {"cpu_offload", "False"},
                                                                           {"master_weights", "True"},
                                                                           {"verbose", "False"},
                                                                           {"cast_inputs", "True"}};
  const std::vector<std::pair<std::string, std::string>> gemini = {{"chunk_config_dict", "None"},
                                                                   {"chunk_init_device", "None"},
                                                                   {"placement_policy", "static"},
                                                                   {"enable_gradient_accumulation", "False"},
                                                                   {"max_prefetch", "0"},
                                                                   {"shard_param_frac", "1.0"},
                                                                   {"offload_optim_frac", "0.0"},
                                                                   {"offload_param_frac", "0.0"},
                                                                   {"precision", "fp16"},
                                                                   {"master_weights", "True"},
                                                                   {"pin_memory", "False"},
                                                                   {"force_outputs_fp32", "False"},
                                                                   {"strict_ddp_mode", "False"},
                                                                   {"search_range_m", "32"},
                                                                   {"hidden_dim", "None"},
                                                                   {"min_chunk_size_m", "32"},
                                                                   {"memstats", "None"},
                                                                   {"gpu_margin_mem_ratio", "0.0"},
                                                                   {"norm_type", "2.0"},
                                                                   {"tp_size", "1"},
                                                                   {"enable_tensor_parallelism", "False"},
                                                                   {"extra_dp_size", "1"},
                                                                   {"enable_all_optimization", "False"},
                                                                   {"enable_fused_normalization", "False"},
                                                                   {"enable_flash_attention", "False"},
                                                                   {"enable_sequence_parallelism", "False"},
                                                                   {"enable_jit_fused", "False"},
                                                                   {"enable_sequence_overlap", "False"},
                                                                   {"enable_async_reduce", "True"},
                                                                   {"verbose", "False"}};
  const std::vector<std::pair<std::string, std::string>> ddp = {
      {"broadcast_buffers", "True"},        {"bucket_cap_mb", "25"},
      {"find_unused_parameters", "False"},  {"check_reduction", "False"},
      {"gradient_as_bucket_view", "False"}, {"static_graph", "False"}};
  for (const auto& plugin : {hybrid, low_level_zero, gemini, ddp}) {
    for (const auto& parameters : {plugin, shared}) {
      for (const auto& [name, value] : parameters) {
        Settings settings(RunTable());
        const Alias* const alias = RunTable().FindAlias(name);
        const Status given = alias != nullptr ? settings.GiveAlias(*alias, value, Origin::kFlag, "--" + name)
                                              : settings.GiveText(name, value, Origin::kFlag, "--" + name);
        EXPECT_TRUE(given.ok()) << name << "=" << value << ": " << Message(given);
      }
    }
    // All of them as Python's json writes them, in one object of a config file.
    nlohmann::json object;
    for (const auto& [name, value] : plugin) {
      if (value == "None")
        object[name] = nullptr;
      else if (value == "True" || value == "False")
        object[name] = value == "True";
      else
        object[name] = nlohmann::json::accept(value) ? nlohmann::json::parse(value) : nlohmann::json(value);
    }
    const std::string path = testing::TempDir() + "plugin.json";
    std::ofstream(path) << nlohmann::json{{"parallel", object}};
    Settings settings(RunTable());
    const Status taken = TakeConfigFile(path, settings);
    EXPECT_TRUE(taken.ok()) << Message(taken);
    EXPECT_FALSE(settings.Has("num_microbatches"));
  }
}

TEST(RunTable, AMistypedVariableOfElsewhereIsNamedToo) {
  setenv("AIAK_FUSED_OPTIMISER", "0", 1);
  EXPECT_THAT(MistypedVariables(RunTable()),
              testing::ElementsAre(
                  "AIAK_FUSED_OPTIMISER is no setting and changes nothing (did you mean AIAK_FUSED_OPTIMIZER?)"));
  unsetenv("AIAK_FUSED_OPTIMISER");
}

TEST(RunTable, NoVariableThatIsReadIsTakenForAMistypedOne) {
  std::vector<std::string> names;
  for (const Setting& row : RunTable().rows()) names.push_back(VariableOf(row.name));
  for (const Alias& alias : RunTable().aliases()) names.push_back(VariableOf(alias));
  for (const Shorthand& shorthand : RunTable().shorthands()) names.push_back(VariableOf(shorthand.name));
  for (const std::string& name : names) setenv(name.c_str(), "1", 0);
  EXPECT_THAT(MistypedVariables(RunTable()), testing::IsEmpty());
  for (const std::string& name : names) unsetenv(name.c_str());
}

// --overlap was of volumes' windows once, and communication's had a longer name.
TEST(RunTable, FilesOfBeforeAreReadWhereASettingHadAnotherName) {
  const auto expect = [](const Settings& settings) {
    EXPECT_EQ(settings.Get<float>("window_overlap"), 0.5f);
    EXPECT_EQ(settings.Get<bool>("overlap"), false);
  };
  Settings saved(RunTable()), file(RunTable());
  const Status taken = TakeSaved({{"overlap", 0.5}, {"overlap_communication", false}}, "state.json", saved);
  ASSERT_TRUE(taken.ok()) << Message(taken);
  expect(saved);
  const std::string path = testing::TempDir() + "of_before.json";
  std::ofstream(path) << R"({"overlap": 0.5, "overlap_communication": false})";
  const Status read = TakeConfigFile(path, file);
  ASSERT_TRUE(read.ok()) << Message(read);
  expect(file);
  Settings now(RunTable());
  ASSERT_TRUE(TakeSaved({{"overlap", false}, {"window_overlap", 0.5}}, "state.json", now).ok());
  expect(now);
  for (const Setting& row : RunTable().rows()) {
    EXPECT_TRUE(row.formerly.empty() || RunTable().FindRenamed(row.formerly) == &row)
        << "two had the name " << row.formerly;
  }
}

TEST(RunTable, ShorthandsAreNamesOfNothingElseAndStandForSettings) {
  for (const Shorthand& shorthand : RunTable().shorthands()) {
    EXPECT_EQ(RunTable().Find(shorthand.name), nullptr) << shorthand.name;
    EXPECT_EQ(RunTable().FindAlias(shorthand.name), nullptr) << shorthand.name;
    for (const Alias& part : shorthand.parts) EXPECT_NE(RunTable().Find(part.setting), nullptr) << part.setting;
  }
}

// The words in backticks of a text of the page, up to their '='.
std::vector<std::string> QuotedNames(const std::string& text) {
  std::vector<std::string> names;
  const std::vector<std::string> parts = absl::StrSplit(text, '`');
  for (size_t i = 1; i < parts.size(); i += 2) {
    const std::vector<std::string> words = absl::StrSplit(parts[i], absl::ByAnyChar(" ,;"));
    for (const std::string& word : words) names.push_back(word.substr(0, word.find('=')));
  }
  return names;
}

bool IsVariable(const std::string& word) {
  return word.find('_') != std::string::npos && std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::isupper(c) || std::isdigit(c) || c == '_';
         });
}

// What a name on the page stands for: "lr" of --lr and SWITCHYARD_LR, AIAK_… as it is, "" of what is no name.
std::string NameOf(const std::string& word) {
  constexpr std::string_view kOurs = "SWITCHYARD_";
  if (word.starts_with("--")) return AliasKey(word.substr(2));
  if (!IsVariable(word)) return "";
  return word.starts_with(kOurs) ? AliasKey(word.substr(kOurs.size())) : word;
}

// A row of the page for each alias, and no row that the table does not know:
// | theirs | ours | …, where theirs names flags "`--name` …" and variables "`NAME` …".
TEST(RunTable, ThePageForPeopleFromElsewhereIsTheTableOfAliases) {
  const std::set<std::string> not_ours = {"no_python", "MASTER_ADDR"};  // of torchrun, and what launchers set
  std::ifstream page(std::string(SWITCHYARD_SOURCE) + "/models/README.md");
  ASSERT_TRUE(page.good());
  std::set<std::string> told;
  bool reached = false;
  for (std::string line; std::getline(page, line);) {
    reached = reached || line == "## Coming from elsewhere";
    if (!reached) continue;
    SCOPED_TRACE(line);
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    const bool row = line.starts_with("| ") && cells.size() > 1;
    for (size_t i = 0; i < cells.size(); ++i) {
      for (const std::string& word : QuotedNames(cells[i])) {
        const std::string name = NameOf(word);
        if (name.empty()) continue;
        const Alias* const alias = RunTable().FindAlias(name);
        const bool known = alias != nullptr || RunTable().Find(name) != nullptr || not_ours.contains(name) ||
                           absl::FindCommandLineFlag(name) != nullptr;
        EXPECT_TRUE(known) << word << " is neither an alias nor a setting nor a flag of a command";
        if (!row || i > 0 || alias == nullptr) continue;
        told.insert(AliasKey(name));
        EXPECT_THAT(line, ::testing::HasSubstr(alias->setting.empty() ? alias->always : "`--" + alias->setting))
            << name;
      }
    }
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

// Another value that the row allows, from the one given; null where none was found.
Json AnotherValue(const Setting& row, const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  std::vector<Json> candidates = {row.standard};
  candidates.insert(candidates.end(), row.choices.begin(), row.choices.end());
  if (value.is_number_integer()) candidates.emplace_back(value.get<int64_t>() + 1);
  if (value.is_number_float()) candidates.emplace_back(value.get<double>() / 2);
  for (const Json& candidate : candidates) {
    if (!candidate.is_null() && candidate != value && CheckValue(row, candidate).ok()) return candidate;
  }
  return {};
}

// Each setting of the table in turn is given by the user, the recipe's own among them: all else that the recipe says
// holds on.
TEST(RunTable, ARecipeSurvivesAnyOneOverride) {
  int of_recipes = 0;
  for (const ModelInfo& info : Models()) {
    const auto model = ResolveModel({.name = info.name});
    ASSERT_TRUE(model.ok()) << Message(model.status());
    for (const Setting& row : RunTable().rows()) {
      const auto own = info.recipe.find(row.name);
      const Json value = own == info.recipe.end() ? row.standard : AnotherValue(row, own->second);
      if (value.is_null()) continue;
      SCOPED_TRACE(fmt::format("{} with --{}={}", info.name, row.name, value.dump()));
      Settings settings(RunTable());
      const Status given = settings.Give(row.name, value, Origin::kFlag, "--" + row.name);
      ASSERT_TRUE(given.ok()) << Message(given);
      FillFromModel(settings, *model, nullptr);
      settings.ResolveYields();
      of_recipes += own != info.recipe.end();
      EXPECT_EQ(settings.Value(row.name), value);
      for (const auto& [name, said] : info.recipe) {
        const std::string& kept = name == "global_batch_size" ? "base_batch_size" : name;
        if (kept == row.name) continue;
        EXPECT_EQ(settings.Value(kept), said) << kept;
        EXPECT_EQ(settings.OriginOf(kept), Origin::kRecipe) << kept;
      }
    }
  }
  EXPECT_GT(of_recipes, 100);
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

TEST(RunTable, AMemoryLimitIsANumberOfBytesWithAUnitOrWithout) {
  const auto give = [](const std::string& text) {
    Settings settings(RunTable());
    const Status given = settings.GiveText("memory_limit", text, Origin::kFlag, "--memory_limit=" + text);
    return given.ok() ? StatusOr<uint64_t>(MemoryLimitOf(ConfigOf(settings))) : given;
  };
  const std::vector<std::pair<std::string, uint64_t>> taken = {{"80GiB", uint64_t{80} << 30},
                                                               {"512MiB", 512 << 20},
                                                               {"24GB", 24000000000},
                                                               {"1.5KiB", 1536},
                                                               {"8589934592", uint64_t{1} << 33},
                                                               {"100B", 100},
                                                               {"2TB", 2000000000000},
                                                               {"1e30", kNoMemoryLimit},
                                                               {"", kNoMemoryLimit}};
  for (const auto& [text, bytes] : taken) {
    const auto limit = give(text);
    ASSERT_TRUE(limit.ok()) << text << ": " << Message(limit.status());
    EXPECT_EQ(*limit, bytes) << text;
  }
  for (const std::string text : {"80XB", "GiB", "-1GiB", "0", "nan", "inf", "12 34", "80GiB80"}) {
    EXPECT_EQ(Message(give(text).status()),
              fmt::format("--memory_limit: expected bytes such as 80GiB, 24GB or 8589934592, found \"{0}\" (given by "
                          "--memory_limit={0})",
                          text));
  }
  TrainConfig config;
  config.memory_limit = "much";
  EXPECT_THAT(Message(CheckTrainConfig(config)), testing::HasSubstr("--memory_limit: expected bytes"));
  // As explain called it.
  Settings settings(RunTable());
  const Alias& before = *RunTable().FindAlias("device_memory");
  ASSERT_TRUE(settings.GiveAlias(before, "3MB", Origin::kFlag, "--device_memory=3MB").ok());
  EXPECT_EQ(MemoryLimitOf(ConfigOf(settings)), 3000000u);
  EXPECT_THAT(Message(settings.GiveAlias(before, "80XB", Origin::kFlag, "--device_memory=80XB")),
              testing::HasSubstr("--memory_limit"));
}

TEST(RunTable, ValuesOutsideTheirRangeAreRefusedInAConfigurationToo) {
  TrainConfig config;
  EXPECT_TRUE(CheckTrainConfig(config).ok()) << Message(CheckTrainConfig(config));
  config.workers = 0;
  EXPECT_THAT(Message(CheckTrainConfig(config)), testing::HasSubstr("--workers: expected at least 1, found 0"));
}

// What a setting is after these flags, or why they are refused.
std::string After(const std::vector<std::pair<std::string, std::string>>& flags, const std::string& setting) {
  Settings settings(RunTable());
  for (const auto& [name, text] : flags) {
    const std::string flag = "--" + name + "=" + text;
    const Status given = RunTable().Find(name) != nullptr
                             ? settings.GiveText(name, text, Origin::kFlag, flag)
                             : settings.GiveAlias(*RunTable().FindAlias(name), text, Origin::kFlag, flag);
    if (!given.ok()) return Message(given);
  }
  settings.ResolveYields();
  return ValueText(settings.Value(setting));
}

TEST(NamesOfOtherPrograms, AWordSaysOfOtherSettingsWhatItsProgramMeans) {
  for (const auto& [word, optimizer, nesterov] : {std::tuple{"sgd", "sgd", "true"},
                                                  {"nesterov", "sgd", "true"},
                                                  {"momentum", "sgd", "false"},
                                                  {"lars", "lars", "false"},
                                                  {"nlars", "lars", "true"},
                                                  {"adamw", "adamw", ""}}) {
    EXPECT_EQ(After({{"opt", word}}, "optimizer"), optimizer) << word;
    EXPECT_EQ(After({{"opt", word}}, "nesterov"), nesterov) << word;
  }
  EXPECT_EQ(After({{"optimizer", "sgd"}}, "nesterov"), "");
  for (const char* schedule : {"linear", "cosine", "constant"}) {
    const std::pair<std::string, std::string> type = {"lr_scheduler_type", schedule};
    EXPECT_EQ(After({type}, "warmup"), "0");
    EXPECT_EQ(After({type, {"warmup_steps", "100"}}, "warmup"), "100");
    EXPECT_EQ(After({{"warmup_ratio", "0.1"}, type}, "warmup"), "0.1");
  }
  EXPECT_EQ(After({{"lr_scheduler_type", "constant_with_warmup"}}, "warmup"), "");
}

TEST(NamesOfOtherPrograms, WhatAWordSaysBesideItsSettingGivesWayToWhatIsSaidItself) {
  EXPECT_EQ(After({{"opt", "sgd"}, {"nesterov", "false"}}, "nesterov"), "false");
  EXPECT_EQ(After({{"nesterov", "false"}, {"opt", "sgd"}}, "nesterov"), "false");
  // The word does not hold, or is nearer than the other.
  Settings overruled(RunTable()), nearer(RunTable());
  ASSERT_TRUE(overruled.GiveAlias(*RunTable().FindAlias("opt"), "sgd", Origin::kConfigFile, "file: opt=sgd").ok());
  ASSERT_TRUE(overruled.GiveText("optimizer", "lamb", Origin::kFlag, "--optimizer=lamb").ok());
  overruled.ResolveYields();
  EXPECT_FALSE(overruled.Has("nesterov"));
  ASSERT_TRUE(nearer.GiveText("nesterov", "false", Origin::kConfigFile, "file").ok());
  ASSERT_TRUE(nearer.GiveAlias(*RunTable().FindAlias("opt"), "sgd", Origin::kFlag, "--opt=sgd").ok());
  nearer.ResolveYields();
  EXPECT_EQ(nearer.Get<bool>("nesterov"), true);
  EXPECT_EQ(nearer.Translated().at("nesterov"), "--opt=sgd (timm)");
  // The same, said twice, in either order.
  const auto twice = [](bool word_first) {
    Settings settings(RunTable());
    const auto word = [&] {
      return settings.GiveAlias(*RunTable().FindAlias("opt"), "sgd", Origin::kFlag, "--opt=sgd");
    };
    EXPECT_TRUE(!word_first || word().ok());
    EXPECT_TRUE(settings.GiveText("optimizer", "sgd", Origin::kFlag, "--optimizer=sgd").ok());
    EXPECT_TRUE(word_first || word().ok());
    settings.ResolveYields();
    return settings.Has("nesterov") && settings.Get<bool>("nesterov");
  };
  EXPECT_TRUE(twice(true));
  EXPECT_TRUE(twice(false));
  // Two words of one value that say different things beside it.
  EXPECT_THAT(After({{"opt", "sgd"}, {"opt", "momentum"}}, "nesterov"),
              testing::HasSubstr("both set --nesterov; give one of them"));
}

TEST(NamesOfOtherPrograms, NoWorkersAreOneThread) {
  for (const char* name : {"workers", "dataloader_num_workers"}) {
    EXPECT_EQ(After({{name, "0"}}, "workers"), "1");
    EXPECT_EQ(After({{name, "3"}}, "workers"), "3");
    EXPECT_THAT(After({{name, "-1"}}, "workers"), testing::HasSubstr("--workers: expected at least 1, found -1"));
  }
  const std::string path = testing::TempDir() + "no_workers.json";
  std::ofstream(path) << R"({"workers": 0})";
  Settings settings(RunTable());
  const Status taken = TakeConfigFile(path, settings);
  ASSERT_TRUE(taken.ok()) << Message(taken);
  EXPECT_EQ(settings.Get<int>("workers"), 1);
}

TEST(NamesOfOtherPrograms, AShareOfTheRunIsNeverACountOfUpdates) {
  for (const auto& [theirs, ours] :
       {std::pair{"1", "1.0"}, {"0", "0.0"}, {"0.1", "0.1"}, {".25", "0.25"}, {"1e-2", "0.01"}})
    EXPECT_EQ(After({{"warmup_ratio", theirs}}, "warmup"), ours);
  for (const char* wrong : {"5", "-0.1", "nan", "20e"})
    EXPECT_THAT(After({{"warmup_ratio", wrong}}, "warmup"),
                testing::HasSubstr("expected a number from 0 to 1, which Hugging Face calls warmup_ratio"));
}

TEST(NamesOfOtherPrograms, ADefaultOfTheirsGivesWayToTheValueBesideIt) {
  for (const auto& [none, said, setting, value] :
       {std::tuple{std::pair{"warmup_ratio", "0.0"}, std::pair{"warmup_steps", "100"}, "warmup", "100"},
        {{"warmup_ratio", "0"}, {"warmup", "100"}, "warmup", "100"},
        {{"warmup_steps", "0"}, {"warmup_ratio", "0.1"}, "warmup", "0.1"},
        {{"max_steps", "-1"}, {"steps", "7"}, "steps", "7"}}) {
    EXPECT_EQ(After({none, said}, setting), value) << none.first;
    EXPECT_EQ(After({said, none}, setting), value) << said.first;
  }
  EXPECT_THAT(After({{"warmup_ratio", "0.1"}, {"warmup_steps", "100"}}, "warmup"),
              testing::HasSubstr("both set --warmup"));
}

TEST(NamesOfOtherPrograms, StepsOfMinusOneTakeBackWhatAFileSays) {
  Settings settings(RunTable());
  ASSERT_TRUE(settings.GiveText("steps", "9", Origin::kConfigFile, "file").ok());
  const Status given = settings.GiveAlias(*RunTable().FindAlias("max_steps"), "-1", Origin::kFlag, "--max_steps=-1");
  ASSERT_TRUE(given.ok()) << Message(given);
  EXPECT_FALSE(settings.Has("steps"));
  EXPECT_EQ(After({{"max_steps", "12"}}, "steps"), "12");
  EXPECT_THAT(After({{"max_steps", "-2"}}, "steps"), testing::HasSubstr("--steps: expected at least 1, found -2"));
}

TEST(NamesOfOtherPrograms, WordsForASettingsValuesServeItsOtherNames) {
  for (const char* name : {"optimizer", "opt"}) {
    for (const char* word : {"hybrid_adam", "HybridAdam", "CPUAdam", "FusedAdam", "adamw"})
      EXPECT_EQ(After({{name, word}}, "optimizer"), "adamw") << name << " " << word;
    EXPECT_EQ(After({{name, "sgd"}}, "optimizer"), "sgd");
  }
  for (const char* name : {"collective", "dist_backend"}) {
    EXPECT_EQ(After({{name, "gloo"}}, "collective"), "tcp") << name;
    EXPECT_EQ(After({{name, "mpi"}}, "collective"), "mpi") << name;
  }
}

struct Meaning {
  std::string precision, amp, loss_scale;
  std::optional<double> of_device;  // its static loss scale
  std::string text;
};

TEST(MixedPrecisionSettings, MeanWhatIsSaidOfThem) {
  const std::vector<Meaning> cases = {
      {"fp32", "", "", {}, "fp32"},
      {"fp32", "O0", "", {}, "fp32"},
      {"bf16", "", "", {}, "bf16 (O1), fp32 master weights"},
      {"fp16", "", "", {}, "fp16 (O1), fp32 master weights, dynamic loss scale from 65536 (default)"},
      {"fp16", "on", "", {}, "fp16 (O1), fp32 master weights, dynamic loss scale from 65536 (default)"},
      {"fp16", "on", "", 1024, "fp16 (O2), norms in fp32, fp32 master weights, loss scale 1024"},
      {"fp16", "O2", "", {}, "fp16 (O2), norms in fp32, fp32 master weights, dynamic loss scale from 65536 (apex)"},
      {"fp16", "", "", 512, "fp16 (O1), fp32 master weights, loss scale 512"},
      {"fp16", "O3", "", 1024, "fp16 (O3), fp32 master weights"},
      {"fp16", "O2", "128", {}, "fp16 (O2), norms in fp32, fp32 master weights, loss scale 128"},
      {"bf16", "O2", "-1", {}, "bf16 (O2), norms in fp32, fp32 master weights, dynamic loss scale from 65536 (apex)"},
      {"fp32", "", "dynamic", 1024, "fp32, dynamic loss scale from 65536 (default)"}};
  for (const Meaning& c : cases) {
    TrainConfig config;
    config.precision = c.precision;
    if (!c.amp.empty()) config.amp = c.amp;
    if (!c.loss_scale.empty()) config.loss_scale = c.loss_scale;
    const auto mixed = MixedPrecisionOf(config, c.of_device);
    ASSERT_TRUE(mixed.ok()) << Message(mixed.status());
    EXPECT_EQ(Text(*mixed, true).find("from the checkpoint's, else") != std::string::npos, mixed->loss_scale.dynamic);
    EXPECT_EQ(Text(*mixed), c.text) << c.precision << " " << c.amp << " " << c.of_device.value_or(0);
  }
}

TEST(MixedPrecisionSettings, ResidualsAreHalfAtO1WhereTheyAreChosen) {
  for (const auto& [amp, chosen, half] :
       {std::tuple("O1", "", false), {"O1", "f32", false}, {"O1", "half", true}, {"O2", "half", false}}) {
    TrainConfig config;
    config.precision = "bf16";
    config.amp = amp;
    if (*chosen) config.residual_precision = chosen;
    const auto mixed = MixedPrecisionOf(config);
    ASSERT_TRUE(mixed.ok()) << Message(mixed.status());
    EXPECT_EQ(mixed->residuals_in_half, half) << amp << " " << chosen << ": O2 has them by itself";
    EXPECT_EQ(Text(*mixed).find("half residuals") != std::string::npos, half);
  }
  TrainConfig config;
  config.residual_precision = "f32";
  EXPECT_TRUE(MixedPrecisionOf(config).ok()) << "fp32 has them in fp32";
}

TEST(MixedPrecisionSettings, PresetsAreThoseOfTheirSystems) {
  const auto scale = [](const char* preset) {
    TrainConfig config;
    config.precision = "fp16";
    config.scaler_preset = preset;
    return MixedPrecisionOf(config)->loss_scale;
  };
  const LossScaleOptions standard = scale("default"), apex = scale("apex"), torch = scale("torch");
  EXPECT_EQ(standard.growth_interval, 1000);
  EXPECT_EQ(standard.hysteresis, 2);
  EXPECT_EQ(standard.maximum, 4294967296.0f);
  EXPECT_EQ(standard.minimum, 1);
  for (const LossScaleOptions& o : {apex, torch}) {
    EXPECT_EQ(o.growth_interval, 2000);
    EXPECT_EQ(o.hysteresis, 1);
  }
  EXPECT_EQ(apex.maximum, 16777216);
  EXPECT_EQ(torch.maximum, 4294967296.0f);
  for (const LossScaleOptions& o : {standard, apex, torch}) {
    EXPECT_TRUE(o.dynamic);
    EXPECT_EQ(o.initial, 65536);
    EXPECT_EQ(o.growth_factor, 2);
    EXPECT_EQ(o.backoff_factor, 0.5f);
  }
}

TEST(MixedPrecisionSettings, ContradictionsAreNamed) {
  const auto refusal = [](const std::function<void(TrainConfig&)>& change) {
    TrainConfig config;
    config.precision = "fp16";
    change(config);
    return Message(CheckTrainConfig(config));
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](TrainConfig& c) { c.amp = "O0"; }),
              HasSubstr("--amp=O0 computes in fp32, and --precision=fp16"));
  EXPECT_THAT(refusal([](TrainConfig& c) {
                c.amp = "O1";
                c.precision = "fp32";
              }),
              HasSubstr("--amp=O1 computes in a half type, and --precision=fp32; give --precision=fp16 or bf16"));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.num_losses = 2; }), HasSubstr("--num_losses=2: every model here has one"));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.keep_batchnorm_fp32 = true; }),
              HasSubstr("--keep_batchnorm_fp32 is about a model in a half type"));
  EXPECT_THAT(refusal([](TrainConfig& c) {
                c.precision = "fp32";
                c.residual_precision = "half";
              }),
              HasSubstr("--residual_precision=half is about products in a half type, and --precision=fp32 has none"));
  for (const char* level : {"O2", "O3"}) {
    EXPECT_THAT(refusal([&](TrainConfig& c) {
                  c.amp = level;
                  c.residual_precision = "f32";
                }),
                HasSubstr(fmt::format("--residual_precision=f32 contradicts --amp={}", level)));
  }
  EXPECT_THAT(refusal([](TrainConfig& c) { c.loss_scale = "much"; }),
              HasSubstr("--loss_scale: expected a number from 1e-37 to 1e37, or dynamic (or -1), found much"));
  for (const char* scale : {"0", "-2", "-1.0", "inf", "nan", "1e60", "1e-45", "3e38", "1e-60"}) {
    EXPECT_THAT(refusal([&](TrainConfig& c) { c.loss_scale = scale; }),
                HasSubstr(fmt::format(
                    "--loss_scale: expected a number from 1e-37 to 1e37, or dynamic (or -1), found {}", scale)));
  }
  for (const float scale : {0.0f, -1.0f, 1e-45f, 3e38f, std::numeric_limits<float>::infinity(), -INFINITY, NAN}) {
    EXPECT_THAT(refusal([&](TrainConfig& c) { c.init_scale = scale; }), HasSubstr("--init_scale: expected"));
    EXPECT_THAT(refusal([&](TrainConfig& c) { c.min_scale = scale; }), HasSubstr("--min_scale: expected"));
    EXPECT_THAT(refusal([&](TrainConfig& c) { c.max_scale = scale; }), HasSubstr("--max_scale: expected"));
  }
  EXPECT_THAT(refusal([](TrainConfig& c) {
                c.scaler_preset = "torch";
                c.growth_interval = 500;
              }),
              HasSubstr("--growth_interval=500 contradicts --scaler_preset=torch, which has 2000"));
  EXPECT_THAT(refusal([](TrainConfig& c) {
                c.amp = "O2";
                c.hysteresis = 2;
              }),
              HasSubstr("--hysteresis=2 contradicts the preset apex of --amp=O2, which has 1"));
  EXPECT_EQ(refusal([](TrainConfig& c) {
              c.amp = "O2";
              c.hysteresis = 1;
              c.min_scale = 4;
            }),
            Message(OkStatus()))
      << "the preset says the same of the one and nothing of the other";
  EXPECT_EQ(refusal([](TrainConfig& c) { c.growth_interval = 500; }), Message(OkStatus()));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.growth_factor = 1; }), HasSubstr("--growth_factor: expected above 1"));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.backoff_factor = 1; }), HasSubstr("--backoff_factor: expected above 0"));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.min_scale = 1e6f; }), HasSubstr("in ascending order"));
}

}  // namespace
}  // namespace switchyard
