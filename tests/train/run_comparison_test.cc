#include "core/train/run_comparison.h"

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
  EXPECT_EQ(summary.images_per_s, 600);
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

}  // namespace
}  // namespace switchyard
