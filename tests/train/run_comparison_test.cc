#include "core/train/run_comparison.h"

#include <cmath>

#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class ComparedRuns : public Scratch {
 protected:
  // A run of `updates` whose loss falls from `loss`.
  void Write(const std::string& path, const std::string& log) {
    std::filesystem::create_directories(In(path) + "/0/log");
    std::filesystem::create_directories(In(path) + "/checkpoints");
    WriteText(In(path) + "/config.json", R"({"model": "mlp", "dataset": "shapes", "lr": 0.5})");
    WriteText(In(path) + "/0/log/metrics.jsonl", log);
  }
  static std::string Log(double loss) {
    std::string text;
    for (int step = 1; step <= 10; ++step) {
      text += fmt::format("{{\"step\":{},\"epoch\":1,\"loss\":{},\"images_per_s\":{},\"memory_bytes\":2e6}}\n", step,
                          loss / step, 100 * step);
    }
    return text + "{\"step\":10,\"epoch\":2,\"val_loss\":0.25,\"miou\":0.75,\"val_count\":8}\n";
  }
  static std::vector<const LoggedRun*> Pointers(const FoundRuns& found) {
    std::vector<const LoggedRun*> runs;
    for (const LoggedRun& run : found.runs) runs.push_back(&run);
    return runs;
  }
};

TEST_F(ComparedRuns, AreFoundInATreeAndWhatIsBrokenIsNamed) {
  Write("output/mlp/blue/first/run", Log(4));
  Write("output/mlp/blue/second/run", Log(2));
  Write("output/mlp/red/third/run", "{\"step\":1\n{\"step\":2}\n");
  Write("output/mlp/red/fourth/run", "");
  std::filesystem::remove(In("output/mlp/red/fourth/run/0/log/metrics.jsonl"));
  std::filesystem::create_directory_symlink(In("output/mlp/blue"), In("output/mlp/link"));
  const auto found = FindRuns(In("output"));
  ASSERT_TRUE(found.ok()) << Message(found.status());
  ASSERT_THAT(found->runs, SizeIs(2));
  EXPECT_EQ(found->runs[0].name, "first/run");
  EXPECT_EQ(found->runs[1].tag, "blue");
  ASSERT_THAT(found->broken, SizeIs(2));
  EXPECT_THAT(found->broken[0], HasSubstr("fourth/run/0/log/metrics.jsonl"));
  EXPECT_THAT(found->broken[1], HasSubstr("third/run/0/log/metrics.jsonl"));
  EXPECT_THAT(Message(FindRuns(In("nowhere")).status()), HasSubstr("expected a run folder"));
}

TEST_F(ComparedRuns, AreNamedWhereOnlyTheirSettingsAreLeft) {
  for (const char* folder : {"output/mlp/blue/first/run", "output/weights"}) {
    std::filesystem::create_directories(In(folder));
    WriteText(In(folder) + "/config.json", R"({"model": "mlp", "dataset": "shapes"})");
  }
  WriteText(In("output/mlp/blue/first/run/settings.txt"), "model = mlp\n");
  const auto found = FindRuns(In("output"));
  ASSERT_TRUE(found.ok()) << Message(found.status());
  EXPECT_THAT(found->runs, SizeIs(0));
  ASSERT_THAT(found->broken, SizeIs(1)) << "and not the folder of weights, whose config.json is no run's";
  EXPECT_THAT(found->broken[0], HasSubstr("first/run/0/log/metrics.jsonl"));
}

TEST_F(ComparedRuns, AreSummedUpByWhatTheyLogged) {
  Write("moved", Log(4));
  const auto found = FindRuns(In("moved"));
  ASSERT_TRUE(found.ok() && found->runs.size() == 1) << Message(found.status());
  const RunSummary summary = Summarise(found->runs[0]);
  EXPECT_EQ(found->runs[0].tag, "shapes") << "a run that was moved is known by its settings";
  EXPECT_EQ(summary.updates, 10);
  EXPECT_EQ(summary.epochs, 2);
  EXPECT_DOUBLE_EQ(*summary.loss, 0.4);
  EXPECT_EQ(summary.validation_loss, 0.25);
  EXPECT_EQ(summary.metric, "miou");
  EXPECT_EQ(summary.best, 0.75);
  EXPECT_NEAR(*summary.images_per_s, 341.417, 0.001) << "1000 images in 2.929 s";
  EXPECT_EQ(summary.memory_bytes, 2e6);
}

TEST_F(ComparedRuns, AreDrawnTogetherWithAColourEach) {
  Write("output/mlp/blue/first/run", Log(4));
  Write("output/mlp/blue/a<b/run", Log(2));
  const auto found = FindRuns(In("output"));
  ASSERT_TRUE(found.ok());
  const auto runs = Pointers(*found);
  const Chart chart = ComparisonChart("t", runs);
  ASSERT_THAT(chart.panels, SizeIs(5));
  EXPECT_EQ(chart.panels[2].y_label, "miou");
  for (const Panel& panel : chart.panels) {
    ASSERT_THAT(panel.series, SizeIs(2)) << panel.y_label;
    EXPECT_NE(panel.series[0].color, panel.series[1].color);
  }
  EXPECT_THAT(ComparisonTable(runs), AllOf(HasSubstr("first/run"), HasSubstr("0.7500"), HasSubstr("2.0 MB")));
  WriteText(found->runs[1].folder + "/settings.txt", "lr 0.5 flag");
  const std::string page = ReportPage("t", runs);
  EXPECT_THAT(page, AllOf(HasSubstr("a&lt;b/run"), Not(HasSubstr("a<b")), HasSubstr("<svg"), HasSubstr("lr 0.5 flag"),
                          Not(HasSubstr("http://127")), Not(HasSubstr("<script"))));
}

TEST_F(ComparedRuns, ShowTheAveragedWeightsAndTakeTheBestByThem) {
  const std::string log =
      "{\"step\":1,\"epoch\":1,\"loss\":3}\n"
      "{\"step\":1,\"epoch\":1,\"val_loss\":2.5,\"top1\":0.25,\"ema_val_loss\":2.25,\"ema_top1\":0.5,\"val_count\":8}\n"
      "{\"step\":2,\"epoch\":2,\"val_loss\":2,\"top1\":0.375,\"ema_val_loss\":1.5,\"ema_top1\":0.75,\"val_count\":8}\n";
  Write("run", log);
  const auto runs = FindRuns(In("run"));
  ASSERT_TRUE(runs.ok() && runs->runs.size() == 1) << Message(runs.status());
  LoggedRun run = runs->runs[0];
  EXPECT_EQ(Summarise(run).metric, "top1");
  EXPECT_EQ(Summarise(run).validation_loss, 2);
  run.config["best_by"] = "ema";
  const RunSummary summary = Summarise(run);
  EXPECT_EQ(summary.metric, "ema_top1");
  EXPECT_EQ(summary.best, 0.75);
  EXPECT_EQ(summary.validation_loss, 1.5);
  EXPECT_THAT(ComparisonTable({&run}), AllOf(HasSubstr("ema 1.5000"), HasSubstr("ema_top1 0.7500")));
  const Chart chart = ComparisonChart("t", {&run});
  ASSERT_THAT(chart.panels, SizeIs(5));
  EXPECT_EQ(chart.panels[2].y_label, "validation loss of averages");
  EXPECT_THAT(chart.panels[2].series.at(0).y, ElementsAre(2.25, 1.5));
  EXPECT_EQ(chart.panels[4].y_label, "top1 of averages");
  EXPECT_THAT(chart.panels[4].series.at(0).y, ElementsAre(0.5, 0.75));
}

TEST_F(ComparedRuns, CountUpdatesThatWereMade) {
  Write("run", "{\"step\":1,\"loss\":3,\"skipped_updates\":1}\n{\"step\":6,\"loss\":3,\"skipped_updates\":6}\n");
  const auto runs = FindRuns(In("run"));
  ASSERT_TRUE(runs.ok() && runs->runs.size() == 1) << Message(runs.status());
  EXPECT_EQ(Summarise(runs->runs[0]).left_out, 6);
  EXPECT_THAT(ComparisonTable({&runs->runs[0]}), HasSubstr("0 of 6"));
}

TEST_F(ComparedRuns, CountImagesOverTheTimeThatTheyTook) {
  const auto rate = [&](const std::string& log) {
    Write("run", log);
    return Summarise(FindRuns(In("run"))->runs.at(0)).images_per_s;
  };
  EXPECT_DOUBLE_EQ(*rate("{\"step\":1,\"images_per_s\":10}\n{\"step\":100,\"images_per_s\":990}\n"), 500);
  EXPECT_DOUBLE_EQ(*rate("{\"step\":1,\"images_per_s\":10}\n{\"step\":100,\"val_loss\":1}\n"), 10);
  EXPECT_FALSE(rate("{\"step\":1,\"images_per_s\":null}\n"));
}

TEST_F(ComparedRuns, CountTheEpochsThatWereTrained) {
  const auto epochs = [&](const std::string& settings, const std::string& log) {
    Write("run", log);
    WriteText(In("run/config.json"), R"({"model": "mlp", "dataset": "shapes")" + settings + "}");
    const RunSummary summary = Summarise(FindRuns(In("run"))->runs.at(0));
    return fmt::format("{:g}{}", summary.epochs, summary.part_of_one ? "+" : "");
  };
  const std::string first = "{\"step\":14,\"epoch\":1,\"loss\":1}\n",
                    ends = "{\"step\":20,\"epoch\":1,\"val_count\":8}\n{\"step\":40,\"epoch\":2,\"val_count\":8}\n",
                    last = "{\"step\":41,\"epoch\":3,\"loss\":1}\n",
                    at_last = "{\"step\":41,\"epoch\":3,\"val_count\":8}\n";
  EXPECT_EQ(epochs(R"(, "steps": 41, "eval_every": 1)", first + ends + last + at_last), "2.05");
  EXPECT_EQ(epochs(R"(, "epochs": 9, "eval_every": 1)", first + ends + last), "2.05");
  EXPECT_EQ(epochs(R"(, "epochs": 2, "eval_every": 0)", first + "{\"step\":40,\"epoch\":2,\"val_count\":8}\n"), "2");
  EXPECT_EQ(epochs(R"(, "steps": 41, "eval_every": 0)", first + last + at_last), "2+");
  EXPECT_EQ(epochs(R"(, "epochs": 9)", first), "0+");
}

TEST_F(ComparedRuns, ShowTheLossThatWas) {
  std::string spike, gap;
  for (int step = 1; step <= 400; ++step) {
    spike += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step == 105 ? 6e7 : 2);
    gap += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step > 350 ? "null" : "2");
  }
  Write("runs/mlp/t/a/run", spike);
  Write("runs/mlp/t/b/run", gap);
  Write("runs/mlp/t/c/run", "{\"step\":1,\"val_loss\":5e22}\n");
  const auto found = FindRuns(In("runs"));
  ASSERT_TRUE(found.ok() && found->runs.size() == 3);
  const auto runs = Pointers(*found);
  const Panel losses = ComparisonChart("t", runs).panels[0];
  EXPECT_EQ(losses.y_label, "training loss, running median");
  ASSERT_THAT(losses.series, SizeIs(5)) << "raw and smoothed of two runs, and the third's name";
  EXPECT_TRUE(losses.series[0].faint && losses.series[0].name.empty());
  EXPECT_EQ(losses.series[0].y[104], 6e7);
  EXPECT_THAT(losses.series[1].y, testing::Each(2));
  EXPECT_TRUE(std::isnan(losses.series[3].y[360])) << "the line breaks";
  EXPECT_EQ(losses.series[4].name, "c/run");
  EXPECT_TRUE(std::isnan(*Summarise(*runs[1]).loss)) << "nothing of the last tenth is finite";
  EXPECT_THAT(ComparisonTable(runs), AllOf(HasSubstr("5e+22"), HasSubstr("2.0000"), testing::ContainsRegex(" nan ")));
}

TEST_F(ComparedRuns, StandInLineWhateverTheScriptOfTheirNames) {
  for (const char* name : {"runs/mlp/t/日本/é", "runs/mlp/t/a/run"}) Write(name, "{\"step\":12345,\"loss\":1}\n");
  const auto found = FindRuns(In("runs"));
  ASSERT_TRUE(found.ok() && found->runs.size() == 2);
  EXPECT_THAT(ComparisonTable(Pointers(*found)),
              AllOf(HasSubstr("  run     updates"), HasSubstr("  日本/é    12345"), HasSubstr("  a/run     12345")));
}

TEST_F(ComparedRuns, WithOneNameAreCalledByTheirFolders) {
  for (const char* run : {"mine/first/run", "theirs/first/run", "theirs/second/run"}) Write(run, Log(2));
  auto found = FindRuns(In("."));
  ASSERT_TRUE(found.ok() && found->runs.size() == 3) << Message(found.status());
  TellApart(found->runs);
  std::vector<std::string> names;
  for (const LoggedRun& run : found->runs) names.push_back(run.name);
  EXPECT_THAT(names, ElementsAre("mine/first/run", "theirs/first/run", "second/run"));
}

TEST(Legends, TakeAsManyRowsAsTheyNeed) {
  Chart chart{"t", "x", {{"y", {}}}};
  for (int i = 0; i < 9; ++i)
    chart.panels[0].series.push_back({fmt::format("a run with a long name {}", i), {0, 1}, {0.0, 1.0 + i}, i});
  const Raster tall = RenderImage(chart, 1);
  chart.panels[0].series.resize(1);
  const Raster usual = RenderImage(chart, 1);
  EXPECT_EQ(usual.height, 420);
  EXPECT_EQ(tall.height, 420 + 2 * 18);
}

TEST(Legends, SayHowManyMoreThereAre) {
  Chart chart{"t", "x", {{"y", {}}}};
  for (int i = 0; i < 100; ++i)
    chart.panels[0].series.push_back({fmt::format("a run with a long name {}", i), {0, 1}, {0.0, 1.0 + i}, i});
  EXPECT_EQ(RenderImage(chart, 1).height, 420 + 5 * 18);
  EXPECT_THAT(RenderSvg(chart), AllOf(HasSubstr(" name 0<"), HasSubstr(">and 80 more<"), Not(HasSubstr(" name 99<"))));
}

}  // namespace
}  // namespace switchyard
