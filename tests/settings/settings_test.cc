// Settings of one start: which source wins, and what is known of where a value came from.
#include "core/settings/settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "core/settings/listing.h"
#include "core/settings/sources.h"
#include "gmock/gmock.h"
#include "tests/settings/table.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SettingsOfAStart : public testing::Test {
 protected:
  void Give(const std::string& name, const std::string& text, Origin origin) {
    const std::string source = origin == Origin::kFlag ? "--" + name : OriginName(origin) + " of a test";
    const Status status = settings_.GiveText(name, text, origin, source);
    EXPECT_TRUE(status.ok()) << Message(status);
  }
  Settings settings_{SmallTable()};
};

TEST_F(SettingsOfAStart, TheNearestSourceWinsInWhateverOrderTheySpeak) {
  std::vector<Origin> order = {Origin::kCheckpoint, Origin::kConfigFile, Origin::kEnvironment, Origin::kFlag};
  do {
    Settings settings(SmallTable());
    for (const Origin origin : order) {
      const Status status = settings.GiveText("seed", std::to_string(static_cast<int>(origin)), origin, "test");
      ASSERT_TRUE(status.ok());
    }
    EXPECT_EQ(settings.Get<uint64_t>("seed"), static_cast<uint64_t>(Origin::kFlag));
    EXPECT_EQ(settings.OriginOf("seed"), Origin::kFlag);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(SettingsOfAStart, OneSettingChangesItselfOnly) {
  Give("lr", "0.5", Origin::kFlag);
  settings_.Fill({{"lr", 5e-4}, {"min_lr", 1e-5}}, Origin::kRecipe, "vit_tiny");
  EXPECT_EQ(settings_.Get<float>("lr"), 0.5f);
  EXPECT_EQ(settings_.Get<float>("min_lr"), 1e-5f);
  EXPECT_EQ(settings_.OriginOf("min_lr"), Origin::kRecipe);
  EXPECT_EQ(settings_.SourceOf("min_lr"), "vit_tiny");
  EXPECT_TRUE(settings_.IsGiven("lr"));
  EXPECT_FALSE(settings_.IsGiven("min_lr"));
}

class AliasesOfAStart : public testing::Test {
 protected:
  Status Give(const std::string& alias, const std::string& text) {
    return settings_.GiveAlias(*settings_.table().FindAlias(alias), text, Origin::kFlag, "--" + alias + "=" + text);
  }
  const SettingTable table_{
      SmallTable().rows(),
      {{.name = "learning-rate", .of = "theirs", .setting = "lr"},
       {.name = "sched", .of = "theirs", .setting = "schedule", .values = {{"cos", "cosine"}}},
       {.name = "THEIR_SEED", .of = "theirs", .setting = "seed", .suffix = "0"},
       {.name = "min_lr_in_milli", .of = "theirs", .setting = "min_lr", .factor = 0.001},
       {.name = "schedule", .of = "theirs", .setting = "schedule", .values = {{"poly", "linear"}}},
       {.name = "static_graph",
        .of = "theirs",
        .setting = "",
        .values = {{"true", ""}},
        .always = "the graph stays as it is",
        .instead = "leave it out"}}};
  Settings settings_{table_};
};

TEST_F(AliasesOfAStart, GiveTheSettingThatTheyStandForAndSaySo) {
  ASSERT_TRUE(Give("Learning_Rate", "0.5").ok());
  ASSERT_TRUE(Give("sched", "cos").ok());
  ASSERT_TRUE(Give("their_seed", "4").ok());
  EXPECT_EQ(settings_.Get<float>("lr"), 0.5f);
  EXPECT_EQ(settings_.Get<std::string>("schedule"), "cosine");
  EXPECT_EQ(settings_.Get<uint64_t>("seed"), 40u);
  EXPECT_EQ(settings_.Translated().at("schedule"), "--sched=cos (theirs)");
  EXPECT_THAT(SettingsListing(settings_), HasSubstr("flag: --sched=cos (theirs)"));
  EXPECT_EQ(VariableOf(table_.aliases()[0]), "SWITCHYARD_LEARNING_RATE");
  EXPECT_EQ(VariableOf(table_.aliases()[2]), "THEIR_SEED");
}

TEST_F(AliasesOfAStart, RefuseWordsThatTheyDoNotKnowAndWhatContradicts) {
  EXPECT_THAT(Message(Give("sched", "tanh")), AllOf(HasSubstr("--sched=tanh"), HasSubstr("expected cos")));
  ASSERT_TRUE(settings_.GiveText("lr", "0.5", Origin::kFlag, "--lr=0.5").ok());
  EXPECT_TRUE(Give("learning_rate", "0.5").ok()) << "the same value";
  EXPECT_THAT(Message(Give("learning_rate", "0.1")), AllOf(HasSubstr("--lr=0.5"), HasSubstr("--learning_rate=0.1")));
  Settings other(table_);
  ASSERT_TRUE(other.GiveAlias(table_.aliases()[0], "0.1", Origin::kFlag, "--learning_rate=0.1").ok());
  EXPECT_THAT(Message(other.GiveText("lr", "0.5", Origin::kFlag, "--lr=0.5")), HasSubstr("both set --lr"));
  EXPECT_TRUE(other.GiveText("lr", "0.7", Origin::kConfigFile, "file").ok()) << "from farther";
  EXPECT_EQ(other.Get<float>("lr"), 0.1f);
}

TEST_F(AliasesOfAStart, WhatIsAlwaysSoMayBeAskedForAndNothingElse) {
  ASSERT_TRUE(Give("static_graph", "1").ok());
  EXPECT_EQ(settings_.AlwaysSo(),
            (std::map<std::string, std::string>{{"--static_graph=1 (theirs)", "the graph stays as it is"}}));
  EXPECT_THAT(SettingsListing(settings_),
              HasSubstr("--static_graph=1 (theirs) is always so: the graph stays as it is"));
  EXPECT_TRUE(settings_.Translated().empty()) << "no setting of ours came of it";
  EXPECT_EQ(Message(Give("static_graph", "0")), "--static_graph=0: cannot be chosen here, where the graph stays as it is; leave it out");
  EXPECT_EQ(Message(Give("static_graph", "often")),
            "--static_graph=often: cannot be chosen here, where the graph stays as it is; leave it out");
}

TEST_F(AliasesOfAStart, NumbersInAnotherUnitAreMultiplied) {
  ASSERT_TRUE(Give("min_lr_in_milli", "250").ok());
  EXPECT_EQ(settings_.Get<float>("min_lr"), 0.25f);
  EXPECT_THAT(Message(Give("min_lr_in_milli", "few")),
              HasSubstr("expected a number, which theirs calls min_lr_in_milli"));
}

TEST_F(AliasesOfAStart, ASettingsOwnNameTakesWordsOfOthersForItsValues) {
  ASSERT_TRUE(settings_.GiveText("schedule", "poly", Origin::kFlag, "--schedule").ok());
  EXPECT_EQ(settings_.Get<std::string>("schedule"), "linear");
  EXPECT_EQ(settings_.Translated().at("schedule"), "--schedule=poly (theirs)");
  Settings ours(table_);
  ASSERT_TRUE(ours.GiveText("schedule", "step", Origin::kFlag, "--schedule=step").ok());
  EXPECT_TRUE(ours.Translated().empty());
  EXPECT_THAT(Message(ours.GiveText("schedule", "poli", Origin::kFlag, "--schedule=poli")),
              HasSubstr("expected cosine"));
  setenv("SWITCHYARD_SCHEDULE", "poly", 1);
  Settings of_environment(table_);
  const Status taken = TakeEnvironment(of_environment);
  setenv("SWITCHYARD_SCHEDULE", "step", 1);
  Settings plain(table_);
  const Status taken_plain = TakeEnvironment(plain);
  unsetenv("SWITCHYARD_SCHEDULE");
  ASSERT_TRUE(taken.ok() && taken_plain.ok()) << Message(taken) << Message(taken_plain);
  EXPECT_EQ(of_environment.Translated().at("schedule"), "SWITCHYARD_SCHEDULE=poly (theirs)");
  EXPECT_EQ(plain.Get<std::string>("schedule"), "step");
  const std::string path = testing::TempDir() + "words.json";
  std::ofstream(path) << R"({"schedule": "poly"})";
  Settings of_file(table_);
  ASSERT_TRUE(TakeConfigFile(path, of_file).ok());
  EXPECT_EQ(of_file.Get<std::string>("schedule"), "linear");
}

TEST_F(AliasesOfAStart, AreKeysOfAConfigFile) {
  const std::string path = testing::TempDir() + "aliases.json";
  std::ofstream(path) << R"({"learning-rate": 0.5, "sched": "cos", "THEIR_SEED": 4, "static_graph": true})";
  const Status taken = TakeConfigFile(path, settings_);
  ASSERT_TRUE(taken.ok()) << Message(taken);
  EXPECT_EQ(settings_.Get<float>("lr"), 0.5f);
  EXPECT_EQ(settings_.OriginOf("lr"), Origin::kConfigFile);
  EXPECT_EQ(settings_.Get<std::string>("schedule"), "cosine");
  EXPECT_EQ(settings_.Get<uint64_t>("seed"), 40u);
  EXPECT_EQ(settings_.Translated().at("lr"), "--config=" + path + ": learning-rate=0.5 (theirs)");
  EXPECT_EQ(settings_.AlwaysSo().size(), 1u);
  std::ofstream(path) << R"({"learning_rate": 0.5, "lr": 0.25})";
  EXPECT_THAT(Message(TakeConfigFile(path, settings_ = Settings(table_))),
              AllOf(HasSubstr(path + ": learning_rate=0.5"), HasSubstr("both set --lr")));
  std::ofstream(path) << R"({"learning_rate": {}})";
  EXPECT_THAT(Message(TakeConfigFile(path, settings_)), HasSubstr("{} is no value for the setting learning_rate"));
  std::ofstream(path) << R"({"learning_rate": null, "seed": null})";
  const Status nothing = TakeConfigFile(path, settings_ = Settings(table_));
  ASSERT_TRUE(nothing.ok()) << Message(nothing);
  EXPECT_FALSE(settings_.Has("lr") || settings_.Has("seed"));
}

// As --amp, which says that there is a level, beside --opt_level, which says which.
TEST(ABareFlag, LeavesTheChoiceToAnAliasThatMakesIt) {
  const SettingTable table(
      {Describe<std::optional<std::string>>(
          "amp", "Precision", {.help = "level", .choices = {"O1", "O2"}, .word = "on", .bare = "on"}, std::nullopt)},
      {{.name = "opt_level", .of = "theirs", .setting = "amp"}});
  const auto level = [&](const std::vector<std::string>& given) -> std::string {
    Settings settings(table);
    for (const std::string& flag : given) {
      const std::string value = flag.substr(flag.find('=') + 1);
      const Status taken = flag.starts_with("--amp")
                               ? settings.GiveText("amp", value, Origin::kFlag, flag)
                               : settings.GiveAlias(table.aliases()[0], value, Origin::kFlag, flag);
      if (!taken.ok()) return Message(taken);
    }
    return *settings.Get<std::string>("amp");
  };
  EXPECT_EQ(level({"--amp=on", "--opt_level=O2"}), "O2");
  EXPECT_EQ(level({"--opt_level=O2", "--amp=on"}), "O2");
  EXPECT_EQ(level({"--amp=on"}), "on");
  EXPECT_THAT(level({"--amp=O1", "--opt_level=O2"}), HasSubstr("--amp=O1 and --opt_level=O2 both set --amp"));
  EXPECT_THAT(level({"--opt_level=O2", "--amp=O1"}), HasSubstr("--opt_level=O2 and --amp=O1 both set --amp"));
}

class ShorthandsOfAStart : public testing::Test {
 protected:
  Status Give(const std::string& text) {
    return settings_.GiveShorthand(*table_.FindShorthand("both"), text, Origin::kFlag, "--both=" + text);
  }
  Status TakeFile(const std::string& json) {
    const std::string path = testing::TempDir() + "shorthand.json";
    std::ofstream(path) << json;
    return TakeConfigFile(path, settings_);
  }
  const SettingTable table_{SmallTable().rows(), {}, {ShorthandOf("both", "two", {"batch_size", "seed", "download"})}};
  Settings settings_{table_};
};

TEST_F(ShorthandsOfAStart, GiveEachOfTheirSettingsAndNoOther) {
  const Status given = Give("batch_size4,seed7");
  ASSERT_TRUE(given.ok()) << Message(given);
  EXPECT_EQ(settings_.Get<int>("batch_size"), 4);
  EXPECT_EQ(settings_.Get<uint64_t>("seed"), 7u);
  EXPECT_FALSE(settings_.Has("download"));
  EXPECT_EQ(settings_.Translated().at("seed"), "--both=batch_size4,seed7 (several at once)");
  Settings other(table_);
  ASSERT_TRUE(other.GiveText("seed", "3", Origin::kConfigFile, "file").ok());
  ASSERT_TRUE(other.GiveShorthand(table_.shorthands()[0], "", Origin::kFlag, "--both=").ok());
  EXPECT_FALSE(other.Has("seed")) << "taken back";
}

TEST_F(ShorthandsOfAStart, AreAnObjectOrATextOfAConfigFile) {
  Status given = TakeFile(R"({"both": {"seed": 9, "download": false}})");
  ASSERT_TRUE(given.ok()) << Message(given);
  EXPECT_EQ(settings_.Get<uint64_t>("seed"), 9u);
  EXPECT_EQ(settings_.Get<bool>("download"), false);
  EXPECT_THAT(Message(TakeFile(R"({"both": "batch_size2,download"})")), HasSubstr("both set --download"));
  settings_ = Settings(table_);
  given = TakeFile(R"({"both": "batch_size2,download"})");
  ASSERT_TRUE(given.ok()) << Message(given);
  EXPECT_EQ(settings_.Get<int>("batch_size"), 2);
  EXPECT_EQ(settings_.OriginOf("batch_size"), Origin::kConfigFile);
  EXPECT_THAT(Message(TakeFile(R"({"both": 3})")),
              HasSubstr("both: expected a text such as \"batch_size2\" or an object"));
  EXPECT_THAT(Message(TakeFile(R"({"both": {"seed": -1}})")),
              AllOf(HasSubstr("found -1 (given by --config="), HasSubstr("shorthand.json: both)")));
}

// A booster's arguments in one object: settings that are no part of the text too, and other programs' names.
TEST_F(ShorthandsOfAStart, TakeAnySettingInAnObject) {
  const SettingTable table{SmallTable().rows(),
                           {{.name = "train_batch", .of = "another program", .setting = "batch_size"}},
                           {ShorthandOf("both", "two", {"seed", "download"})}};
  const auto take = [&](const std::string& json) {
    settings_ = Settings(table);
    return TakeFile(json);
  };
  const Status given = take(R"({"both": {"seed": 9, "train_batch": 4, "lr": 0.5}})");
  ASSERT_TRUE(given.ok()) << Message(given);
  EXPECT_EQ(settings_.Get<uint64_t>("seed"), 9u);
  EXPECT_EQ(settings_.Get<int>("batch_size"), 4);
  EXPECT_EQ(settings_.Get<float>("lr"), 0.5f);
  EXPECT_TRUE(take(R"({"seed": 9, "both": {"seed": 9}})").ok());
  EXPECT_THAT(Message(take(R"({"seed": 8, "both": {"seed": 9}})")),
              AllOf(HasSubstr("seed is given twice"), HasSubstr("9"), HasSubstr("8")));
  EXPECT_THAT(Message(take(R"({"both": {"train_batch": 4, "batch_size": 5}})")), HasSubstr("both set --batch_size"));
  EXPECT_THAT(Message(take(R"({"both": {"sede": 9}})")),
              AllOf(HasSubstr("unknown setting sede"), HasSubstr("did you mean seed?")));
}

// However it is given, by one sentence that does not repeat it.
TEST_F(ShorthandsOfAStart, AValueOfMoreBytesThanAPathHasIsRefused) {
  const std::string text(900'000, 'x');
  const SettingTable table{SmallTable().rows(),
                           {{.name = "ending", .of = "another program", .setting = "suffix"}},
                           {ShorthandOf("both", "two", {"seed", "download"})}};
  settings_ = Settings(table);
  const auto in_file = [&](const nlohmann::json& json) { return TakeFile(json.dump()); };
  for (const auto& [name, status] : std::vector<std::pair<std::string, Status>>{
           {"suffix", settings_.GiveText("suffix", text, Origin::kFlag, "--suffix=" + text)},
           {"lr", settings_.GiveText("lr", text, Origin::kEnvironment, "SWITCHYARD_LR")},
           {"suffix", in_file({{"suffix", text}})},
           {"schedule", in_file({{"schedule", text}})},
           {"ending", in_file({{"ending", text}})},
           {"both", in_file({{"both", text}})},
           {"debug", in_file({{"debug", std::vector<std::string>(100'000, "sync")}})},
           {"schedule", TakeSaved({{"schedule", text}}, "state.json", settings_)}}) {
    EXPECT_THAT(Message(status), HasSubstr("--" + name + ": expected a value of at most 4096 bytes, found one of"));
    EXPECT_LT(Message(status).size(), 400u) << name;
  }
  EXPECT_TRUE(settings_.GiveText("suffix", std::string(4095, 'x'), Origin::kFlag, "--suffix").ok());
}

TEST_F(ShorthandsOfAStart, RefuseWhatIsNoPartAndWhatContradicts) {
  for (const std::string text : {"seeds3", "3", "seed3,,batch_size2", "lr3", "seed=3"})
    EXPECT_THAT(Message(Give(text)), HasSubstr("expected numbers behind batch_size, seed, download")) << text;
  EXPECT_THAT(Message(Give("seed99999999999999999999")), HasSubstr("--both=seed99999999999999999999"));
  ASSERT_TRUE(settings_.GiveText("seed", "3", Origin::kFlag, "--seed=3").ok());
  EXPECT_TRUE(Give("seed3").ok()) << "the same value";
  EXPECT_THAT(Message(Give("seed4")), AllOf(HasSubstr("--seed=3 and --both=seed4 both set --seed")));
  EXPECT_THAT(Message(Give("batch_size2,batch_size3")), HasSubstr("both set --batch_size"));
}

// A checkpoint may come from anybody, and its settings are listed.
TEST_F(SettingsOfAStart, AListingHasNoControlCharacters) {
  ASSERT_TRUE(settings_.Give("suffix", "a\x1b[31m", Origin::kCheckpoint, "from\x1b[2J/state.json").ok());
  const std::string listing = SettingsListing(settings_);
  EXPECT_EQ(listing.find('\x1b'), std::string::npos) << listing;
  EXPECT_THAT(listing, AllOf(HasSubstr("a\\x1b[31m"), HasSubstr("from\\x1b[2J")));
}

TEST_F(SettingsOfAStart, AbsenceIsNoValue) {
  EXPECT_FALSE(settings_.Has("suffix"));
  EXPECT_EQ(settings_.Get<std::string>("suffix"), std::nullopt);
  EXPECT_FALSE(settings_.Has("lr"));
  EXPECT_EQ(settings_.Get<float>("lr"), 1e-3f) << "the default";
  EXPECT_EQ(settings_.OriginOf("lr"), Origin::kDefault);
  Give("min_lr", "0", Origin::kFlag);
  settings_.Fill("min_lr", 1e-5, Origin::kRecipe);
  EXPECT_EQ(settings_.Get<float>("min_lr"), 0.0f) << "a 0 that was given is given";
}

TEST_F(SettingsOfAStart, AnEmptyValueTakesBackWhatFartherSourcesSay) {
  Give("suffix", "a", Origin::kConfigFile);
  Give("suffix", "", Origin::kFlag);
  Give("lr", "0.5", Origin::kEnvironment);
  Give("lr", "", Origin::kFlag);
  settings_.Fill("lr", 5e-4, Origin::kRecipe);
  EXPECT_FALSE(settings_.Has("suffix"));
  EXPECT_EQ(settings_.Get<float>("lr"), 5e-4f);
  EXPECT_EQ(settings_.OriginOf("lr"), Origin::kRecipe);
}

TEST_F(SettingsOfAStart, OfTwoThatExcludeEachOtherTheNearerStays) {
  for (const auto& [farther, nearer] :
       {std::pair("batch_size", "global_batch_size"), {"global_batch_size", "batch_size"}}) {
    Settings settings(SmallTable());
    ASSERT_TRUE(settings.GiveText(farther, "8", Origin::kEnvironment, "SWITCHYARD_X").ok());
    ASSERT_TRUE(settings.GiveText(nearer, "64", Origin::kFlag, "--x").ok());
    settings.ResolveYields();
    EXPECT_FALSE(settings.Has(farther));
    EXPECT_TRUE(settings.Has(nearer));
  }
  Give("batch_size", "8", Origin::kFlag);
  Give("global_batch_size", "64", Origin::kFlag);
  settings_.ResolveYields();
  EXPECT_TRUE(settings_.Has("batch_size") && settings_.Has("global_batch_size")) << "whoever reads them decides";
}

TEST_F(SettingsOfAStart, ARefusalNamesTheSource) {
  EXPECT_EQ(Message(settings_.GiveText("lr", "fast", Origin::kEnvironment, "SWITCHYARD_LR")),
            "SWITCHYARD_LR: \"fast\" is not a value for --lr: expected a number");
  EXPECT_EQ(Message(settings_.GiveText("lr", "-1", Origin::kConfigFile, "--config=c.json")),
            "--lr: expected at least 0, found -1 (given by --config=c.json)");
  EXPECT_THAT(Message(settings_.GiveText("lrr", "1", Origin::kFlag, "--lrr=1")),
              HasSubstr("unknown setting lrr (did you mean lr?)"));
}

TEST_F(SettingsOfAStart, OfACheckpointOnlyPropertiesAreTaken) {
  const Status status = TakeSaved({{"lr", 0}, {"download", "evil.so"}, {"suffix", 7}}, "state.json", settings_);
  ASSERT_TRUE(status.ok()) << Message(status);
  EXPECT_EQ(settings_.OriginOf("lr"), Origin::kCheckpoint);
  EXPECT_EQ(settings_.Get<float>("lr"), 0.0f) << "a run may have had no rate";
  for (const char* absent : {"download", "suffix"}) EXPECT_FALSE(settings_.Has(absent)) << absent;
  EXPECT_THAT(Message(TakeSaved({{"lr", "fast"}}, "state.json", settings_)), HasSubstr("setting lr: \"fast\""));
  EXPECT_THAT(Message(TakeSaved({{"lr", -2}}, "state.json", settings_)), HasSubstr("expected at least 0"));
  EXPECT_FALSE(TakeSaved({{"unknown", 1}}, "state.json", settings_).ok());
  EXPECT_FALSE(TakeSaved(7, "state.json", settings_).ok());
}

TEST_F(SettingsOfAStart, TheEnvironmentIsReadUnderTheSameNames) {
  setenv("SWITCHYARD_MIN_LR", "0.25", 1);
  ASSERT_TRUE(TakeEnvironment(settings_).ok());
  unsetenv("SWITCHYARD_MIN_LR");
  EXPECT_EQ(settings_.Get<float>("min_lr"), 0.25f);
  EXPECT_EQ(settings_.SourceOf("min_lr"), "SWITCHYARD_MIN_LR");
}

TEST_F(SettingsOfAStart, AMistypedVariableIsNamedAndAPluginsOwnIsNot) {
  setenv("SWITCHYARD_BATCHSIZE", "8", 1);
  setenv("SWITCHYARD_BATCH_SIZE", "8", 1);
  setenv("SWITCHYARD_ACME_MEMORY", "8", 1);
  setenv("SWITCHYARD_min_lr", "8", 1);
  EXPECT_THAT(MistypedVariables(settings_.table()),
              testing::UnorderedElementsAre(
                  "SWITCHYARD_BATCHSIZE is no setting and changes nothing (did you mean SWITCHYARD_BATCH_SIZE?)",
                  "SWITCHYARD_min_lr is no setting and changes nothing (did you mean SWITCHYARD_MIN_LR?)"));
  for (const char* name :
       {"SWITCHYARD_BATCHSIZE", "SWITCHYARD_BATCH_SIZE", "SWITCHYARD_ACME_MEMORY", "SWITCHYARD_min_lr"})
    unsetenv(name);
}

TEST_F(SettingsOfAStart, TheListingShowsValueUnitAndOriginOfEach) {
  Give("batch_size", "8", Origin::kFlag);
  settings_.Fill("lr", 5e-4, Origin::kRecipe, "vit_tiny");
  const std::string text = SettingsListing(settings_);
  EXPECT_THAT(text, AllOf(HasSubstr("\nOptimizer\n"), HasSubstr("\nBatch\n")));
  EXPECT_THAT(text, testing::ContainsRegex("\n  batch_size +8 images +flag\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\n  lr +0.0005 +recipe: vit_tiny\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\n  seed +42 +default\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\n  suffix +- +not given\n"));
}

TEST_F(SettingsOfAStart, TheHelpComesFromTheSameTable) {
  const std::string text = SettingsHelp(SmallTable());
  EXPECT_THAT(text, HasSubstr("\n  --lr                      peak rate [the recipe's]\n"));
  EXPECT_THAT(text, HasSubstr("\n  --schedule                course: cosine, step, linear [cosine]\n"));
  EXPECT_THAT(text, HasSubstr("\n  --batch_size              of a rank; or auto [1 images]\n"));
  EXPECT_THAT(text, Not(HasSubstr("0.899999")));
}

}  // namespace
}  // namespace switchyard
