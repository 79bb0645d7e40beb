// What each command prints, and how settings reach it.
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class Commands : public RunFilesTest {
 protected:
  nlohmann::json SavedConfig() const { return Saved("run/mlp/shapes/a/run/config.json"); }
};

TEST_F(Commands, EveryCommandExplainsItself) {
  const CommandResult help = Run("help");
  ExpectSuccess(help);
  for (const std::string command : {"train", "eval", "predict", "export", "launch", "devices", "doctor", "models",
                                    "datasets", "ops", "explain", "bench", "conform", "version"}) {
    EXPECT_THAT(help.output, HasSubstr("\n  " + command + " "));
    ExpectSuccess(Run(command + " --help"), {command});
    EXPECT_EQ(Run("help " + command).output, Run(command + " --help").output);
  }
  EXPECT_EQ(Run("").code, 2);
}

TEST_F(Commands, HelpShowsDefaultsAsTheyAreTyped) {
  const CommandResult help = Run("train --help");
  ExpectSuccess(help, {"\nOptimizer and schedule\n", "--beta1                   of adam, adamw and lamb [0.9]"});
  EXPECT_THAT(help.output, Not(HasSubstr("0.899999")));
}

TEST_F(Commands, OneCpuDeviceIsListedAndEveryPluginAccountedFor) {
  // What a driver does to the process is warned of on standard error.
  const auto devices = nlohmann::json::parse(Run("devices --json 2> /dev/null").output, nullptr, false);
  ASSERT_TRUE(devices.is_object());
  int cpu = 0;
  for (const auto& device : devices["devices"]) cpu += device["plugin"] == "cpu";
  EXPECT_EQ(cpu, 1);
  ExpectSuccess(Run("doctor"), {"PLUGIN", "cpu", "reference", "null", "shm", "taken, 1 device"});
  ExpectSuccess(Run("models"), {"vit_micro", "86.57 M"});
  ExpectSuccess(Run("datasets"), {"fashion-mnist", "imagefolder", "shapes"});
  ExpectSuccess(Run("version"), {"plugin ABI 2."});
}

// What the plugins have bound, as they say it: in lists of plugins, of devices, and at the head of a run.
TEST_F(Commands, LibrariesAreShownInTheVersionsThatTheyGiveThemselves) {
  const std::string set = "SWITCHYARD_NULL_LIBRARIES=\"libfast 7.7.7\"";
  for (const std::string command : {"doctor", "devices"}) {
    const CommandResult shown = Run(command, Start::kAlone, set);
    ExpectSuccess(shown, {"\nLibraries that were bound, by their own account:\n"});
    EXPECT_THAT(shown.output, testing::ContainsRegex("\n  cpu +oneDNN [0-9]+[.][0-9]+[.][0-9]+, threads of"));
    EXPECT_THAT(shown.output, testing::ContainsRegex("\n  null +libfast 7[.]7[.]7\n"));
    EXPECT_THAT(shown.output, Not(testing::ContainsRegex("\n  (reference|shm|tcp) ")));
    const auto json =
        nlohmann::json::parse(Run(command + " --json 2> /dev/null", Start::kAlone, set).output, nullptr, false);
    ASSERT_TRUE(json.is_object());
    int found = 0;
    for (const auto& one : command == "doctor" ? json["candidates"] : json["devices"])
      found += one["libraries"].dump().find("libfast 7.7.7") != std::string::npos;
    EXPECT_EQ(found, command == "doctor" ? 1 : 2) << "the null plugin has two devices";
  }
  EXPECT_THAT(Run("devices").output, Not(HasSubstr("libfast")));
  // What oneDNN is held to holds for the plugin's own kernels too.
  EXPECT_THAT(Run("devices", Start::kAlone, "env -u SWITCHYARD_CPU_ISA ONEDNN_MAX_CPU_ISA=SSE41").output,
              HasSubstr("(baseline, halves computed in f32)"));
  const std::string run =
      "train --model=mlp --dataset=shapes --train_size=32 --validation_size=4 --steps=1 "
      "--batch_size=4 --workers=1 --output=run --device=null";
  ExpectSuccess(Run(run, Start::kAlone, set), {"\n  libraries   null: libfast 7.7.7\n"});
}

TEST_F(Commands, OpsAndExplainNeedNoData) {
  const auto ops = nlohmann::json::parse(Run("ops --model=vit_micro --batch_size=2 --json").output, nullptr, false);
  ASSERT_TRUE(ops.is_object());
  EXPECT_EQ(ops["batch_size"], 2);
  EXPECT_GT(ops["ops"].size(), 10u);
  ExpectSuccess(Run("ops"), {"layer_norm"});
  const CommandResult plan = Run("explain --model=vit_micro --batch_size=2 --world=64 --window_overlap=0.5");
  EXPECT_THAT(plan.output, testing::HasSubstr("--window_overlap has no effect with --model=vit_micro"));
  ExpectSuccess(plan, {"64 ranks", "GFLOP", "activations", "traffic per rank"});
  ExpectSuccess(Run("explain --model=vit_micro --batch_size=2 --mode=dp --devices=4 --json"), {"\"ranks\": 4"});
  ExpectSuccess(Run("explain --model=vit_micro --batch_size=2 --world=4 --pp=2 --accumulation=4"),
                {"--pp=2: an update is 4 micro-batches", "stages wait for each other in 2", "0 to 1", "2 to 3"});
  ExpectSuccess(Run("explain --model=vit_micro --batch_size=2 --world=8 --pp=2 --tp=2 --amp=O2 --accumulation=4"),
                {"--pp=2: an update is 4 micro-batches", "0 to 1", "2 to 3"});
  ExpectSuccess(Run("explain --world=64 --tp=4 --pp=2 --zero=1 --device_memory=80GiB"),
                {"64 ranks", "an update is 8 micro-batches", "--memory_limit=80GiB: ", "fits"});
}

// As of a training, which they speak of.
TEST_F(Commands, ExplainAndBenchSayWhichSettingsChangeNothing) {
  const std::string explain = "explain --model=mlp --batch_size=2 --device=cpu ";
  EXPECT_THAT(Run(explain + "--zero=3 --offload=optimizer").output,
              testing::AllOf(HasSubstr("--zero has no effect with one rank"),
                             HasSubstr("--offload has no effect with --device=cpu")));
  EXPECT_THAT(Run(explain + "--zero=0 --offload=none --nohierarchical_allreduce").output, Not(HasSubstr("no effect")))
      << "what is off anyway";
  EXPECT_THAT(Run(explain + "--world=4 --hierarchical_allreduce").output,
              HasSubstr("--hierarchical_allreduce has no effect with these nodes"));
  for (const char* shared : {"--tp=2", "--pp=2 --global_batch_size=8"}) {  // by ranks of two nodes: nothing is summed
    const CommandResult alone = Run(fmt::format(
        "explain --model=vit_micro --device=cpu --world=2 --hierarchical_allreduce --ranks_per_node=1 {}", shared));
    ExpectSuccess(alone, {"--hierarchical_allreduce has no effect with --"});
  }
  EXPECT_THAT(
      Run(explain + "--world=4 --zero=1 --hierarchical_allreduce --ranks_per_node=2 --schedule=step --step_size=9e "
                    "--powersgd_compression --start_compress_iter=100000")
          .output,
      Not(HasSubstr("no effect")))
      << "nobody knows how long the run is";
  EXPECT_THAT(
      Run("bench --model=mlp --steps=1 --warmup_steps=0 --device=cpu --threads=1 --batch_size=2 --zero=2").output,
      HasSubstr("--zero has no effect with one rank"));
}

TEST_F(Commands, BenchRefusesCountsThatAreNone) {
  const std::string bench = "bench --model=mlp --steps=1 --device=cpu --threads=1 --batch_size=2 ";
  ExpectRefused(Run(bench + "--warmup_steps=-5"), {"--warmup_steps: expected at least 0", "found -5"});
  for (const char* ranks : {"0", "-3"})
    ExpectRefused(Run(bench + "--compare=ddp --nproc_per_node=" + ranks),
                  {"--nproc_per_node: expected at least 1 rank to compare on, found " + std::string(ranks)});
}

// What is kept of the residual stream for the backward pass: what each norm reads, two bytes an element less.
TEST_F(Commands, ExplainTellsWhatHalfResidualsSave) {
  constexpr int64_t kDepth = 3, kTokens = 17, kWidth = 64, kBatch = 8, kMaps = 2 * kDepth + 1;
  const auto activations = [&](const std::string& more) {
    const auto plan = nlohmann::json::parse(
        Run("explain --model=vit_micro --image_size=28 --patch=7 --width=64 --depth=3 --batch_size=8 --device=cpu "
            "--precision=bf16 --json " +
            more)
            .output,
        nullptr, false);
    return plan.is_object() ? plan["memory_by_class"]["activations"].get<int64_t>() : int64_t{0};
  };
  const int64_t of_a_map = 2 * kBatch * kTokens * kWidth;
  const int64_t saved = activations("") - activations("--residual_precision=half");
  EXPECT_GE(saved, kMaps * of_a_map);
  EXPECT_LE(saved, (kMaps + 2) * of_a_map) << "and the stream's gradient, where the peak is";
  const CommandResult shown =
      Run("explain --model=vit_micro --precision=bf16 --residual_precision=half --show_settings");
  EXPECT_THAT(shown.output, testing::ContainsRegex("residual_precision +half +flag"));
}

// A run whose length is not said is one that comes to compress.
TEST_F(Commands, ExplainAndBenchTellOfGradientsOfLowRank) {
  const std::string model = "--model=vit_micro --depth=2 --batch_size=2 --device=cpu --world=8 ";
  const auto told = [&](const std::string& more) {
    return nlohmann::json::parse(Run("explain --json " + model + more + " 2> /dev/null").output, nullptr, false);
  };
  const double plain = told("")["wire_bytes"], compressed = told("--powersgd_compression")["wire_bytes"];
  EXPECT_LT(compressed, plain / 5);
  EXPECT_EQ(told("--powersgd_compression --steps=1001")["wire_bytes"], compressed);
  EXPECT_EQ(told("--powersgd_compression --steps=1000")["wire_bytes"], plain);
  EXPECT_EQ(told("--search --tp=1 --pp=1 --zero=0 --powersgd_compression")["fitting"][0]["wire_bytes"], compressed);
  // What ranks of a divided model compress are parts, which is another training: whoever starts it is told.
  const std::string divided =
      "train --model=vit_micro --dataset=shapes --train_size=16 --validation_size=4 --batch_size=4 --steps=3 "
      "--device=cpu --output=run --powersgd_compression --start_compress_iter=2 ";
  const char* const said = "compression parts of divided weights, each on its rank";
  ExpectSuccess(Run(divided + "--suffix=tp --tp=2", Start::kLaunch), {said});
  EXPECT_THAT(Run(divided + "--suffix=dp", Start::kLaunch).output, Not(HasSubstr(said)));
  const std::string never = "--powersgd_compression has no effect: it would begin after 1000 updates";
  EXPECT_THAT(Run("explain --powersgd_compression " + model).output, Not(HasSubstr("has no effect")));
  ExpectSuccess(Run("explain --powersgd_compression --steps=9 " + model), {never});
  // What is timed is compressed, wherever that begins: the schedule is that of a run which comes to it.
  for (const char* begins : {"", " --start_compress_iter=5"}) {
    const CommandResult bench =
        Run(fmt::format("bench --model=mlp --width=16 --batch_size=4 --steps=1 --warmup_steps=0 --device=cpu --profile "
                        "--json --powersgd_compression{} 2>&1",
                        begins));
    EXPECT_THAT(bench.output, AllOf(HasSubstr("orthonormalize"), Not(HasSubstr("has no effect"))));
  }
}

TEST_F(Commands, TrainsEvaluatesAndPredicts) {
  ExpectSuccess(Run(SmallTraining("--steps=40")), {"switchyard: mlp on shapes", "4 images per update", "accuracy",
                                                   "images/s", "run/mlp/shapes/a/run/loss.png"});
  EXPECT_TRUE(std::filesystem::exists(SmallRun() + "/loss.png"));
  EXPECT_THAT(Run(SmallTraining("--suffix=b")).output, testing::ContainsRegex("model +[0-9]+ parameters, image 28"));
  const CommandResult evaluation = Run("eval --checkpoint=run/mlp/shapes/a/run --json");
  ExpectSuccess(evaluation);
  EXPECT_EQ(nlohmann::json::parse(evaluation.output, nullptr, false)["count"], 20);
  folder_.Write("a.jpg", JpegBytes(Pattern(40, 50, 3)));
  folder_.Write("b.png", PngBytes(Pattern(9, 11, 1)));
  const CommandResult prediction =
      Run("predict a.jpg b.png --checkpoint=run/mlp/shapes/a/run/checkpoints/best --top=2 --json");
  ExpectSuccess(prediction);
  const auto files = nlohmann::json::parse(prediction.output, nullptr, false);
  ASSERT_EQ(files.size(), 2u) << prediction.output;
  EXPECT_EQ(files[1]["file"], "b.png");
  ASSERT_EQ(files[0]["classes"].size(), 2u);
  EXPECT_GE(files[0]["classes"][0]["probability"], files[0]["classes"][1]["probability"]);
  ExpectRefused(Run("predict a.jpg --checkpoint=run/mlp/shapes/a/run --overlay"),
                {"--overlay lays masks over images", "one class of each"});
}

TEST_F(Commands, TwoRanksTrainTogetherAndOneOfThemSpeaks) {
  for (const Start start : {Start::kLaunch, Start::kMpirun}) {
    if (start == Start::kMpirun && !HasMpirun()) continue;
    const CommandResult result = Run(SmallTraining("--suffix=" + std::to_string(static_cast<int>(start))), start);
    ExpectSuccess(result, {"8 images per update: 4 per rank, 2 ranks", "rank 0 on ", "rank 1 on ", "over 2 ranks"});
    EXPECT_EQ(result.output.find("switchyard: mlp"), result.output.rfind("switchyard: mlp")) << result.output;
  }
}

TEST_F(Commands, AFlagWinsOverTheEnvironmentAndThatOverTheFile) {
  std::ofstream(In("settings.json")) << R"({"seed": 5, "lr": 0.5, "momentum": 0.25, "optimizer": "sgd"})";
  ExpectSuccess(Run(SmallTraining("--config=settings.json --seed 7 --notensorboard"), Start::kAlone,
                    "SWITCHYARD_LR=0.125 SWITCHYARD_SEED=6"));
  const nlohmann::json saved = SavedConfig();
  EXPECT_EQ(saved["seed"], 7);
  EXPECT_EQ(saved["lr"], 0.125);
  EXPECT_EQ(saved["momentum"], 0.25);
  EXPECT_EQ(saved["optimizer"], "sgd");
  EXPECT_EQ(saved["tensorboard"], false);
}

TEST_F(Commands, TheSavedSettingsOfARunStartItAgain) {
  ExpectSuccess(Run(SmallTraining()));
  const nlohmann::json first = SavedConfig();
  ExpectSuccess(Run("train --config=run/mlp/shapes/a/run/config.json --suffix=b"));
  nlohmann::json second = Saved("run/mlp/shapes/b/run/config.json");
  second["suffix"] = "a";
  EXPECT_EQ(first, second);
  // A batch that is given outranks both batch sizes of the file.
  ExpectSuccess(Run("train --config=run/mlp/shapes/a/run/config.json --suffix=c --batch_size=8"),
                {"8 images per update"});
}

TEST_F(Commands, ARunsPageAndItsEventFileShowSamplesWithTheirPredictions) {
  ExpectSuccess(Run(SmallTraining()));
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(In("run/mlp/shapes/a/run/0/log"))) {
    const std::string name = entry.path().filename();
    if (name.starts_with("events.out")) events += Text("run/mlp/shapes/a/run/0/log/" + name);
  }
  for (const char* tag : {"images", "Label/ground_truth", "Label/predicted"}) EXPECT_THAT(events, HasSubstr(tag));

  ExpectSuccess(Run("plot run/mlp/shapes/a/run --html --to=report"), {".html"});
  const std::string page = Text("report/mlp-shapes.html");
  for (const char* part : {"Sample predictions", "<figure><img", "data:image/png;base64,", "<figcaption>", "&nbsp;%"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, testing::Not(testing::ContainsRegex("(src|href)=.(http|/|[.])"))) << "nothing lies outside";

  std::filesystem::remove_all(In("run/mlp/shapes/a/run/checkpoints"));
  ExpectSuccess(Run("plot run/mlp/shapes/a/run --html --to=report"));
  EXPECT_THAT(Text("report/mlp-shapes.html"), HasSubstr("<p>None: no checkpoint at"));
}

TEST_F(Commands, PlotKeepsChartsApartWhoseTagsAreNearlyOneFileName) {
  for (const char* tag : {"a b", "a_b", "日本", "中国"}) {
    const std::string run = In(std::string("runs/mlp/") + tag + "/x/run");
    std::filesystem::create_directories(run + "/0/log");
    std::ofstream(run + "/config.json") << R"({"model": "mlp", "dataset": "shapes"})";
    std::ofstream(run + "/0/log/metrics.jsonl") << R"({"step":1,"loss":1})"
                                                << "\n";
  }
  ExpectSuccess(Run("plot runs --to=report"));
  for (const char* name : {"mlp-a_b", "mlp-a_b-2", "mlp-日本", "mlp-中国"})
    EXPECT_TRUE(std::filesystem::exists(In(std::string("report/") + name + ".png"))) << name;
}

TEST_F(Commands, PlotNamesALogWhoseLastLineIsTornAndGoesOn) {
  const std::string log = In("a/run/0/log/metrics.jsonl");
  std::filesystem::create_directories(In("a/run/0/log"));
  std::ofstream(In("a/run/config.json")) << R"({"model": "mlp", "dataset": "shapes"})";
  std::ofstream(log) << "{\"step\":1,\"loss\":1}\n";
  EXPECT_THAT(Run("plot a/run a --to=report").output, testing::Not(HasSubstr("torn")));
  std::ofstream(log, std::ios::app) << "{\"step\":2,\"lo";
  const CommandResult result = Run("plot a/run a --to=report");
  ExpectSuccess(result, {"a/run/0/log/metrics.jsonl: its last line is torn"});
  EXPECT_EQ(result.output.find("torn"), result.output.rfind("torn")) << "once";
}

TEST_F(Commands, BenchComparesConfigurationsAndNamesTheOneThatFails) {
  const std::string bench = "bench --model=mlp --width=16 --batch_size=4 --steps=3 --device=cpu ";
  const CommandResult compared =
      Run(bench + "--compare=single,ddp,ddp:optimizer=nothing,ddp:O1:precision=bf16,dp,dp:tp=2 --json 2>/dev/null",
          Start::kAlone, "SWITCHYARD_NPROC_PER_NODE=2 SWITCHYARD_MASTER_ADDR=here");
  EXPECT_EQ(compared.code, 1) << "one failed";
  const nlohmann::json rows = nlohmann::json::parse(compared.output, nullptr, false);
  ASSERT_EQ(rows.size(), 6u) << compared.output;
  EXPECT_EQ(rows[0].at("ratio"), 1);
  EXPECT_EQ(rows[0].at("ranks"), 1);
  EXPECT_THAT(rows[2].at("failure").get<std::string>(), testing::HasSubstr("optimizer"));
  EXPECT_THAT(rows[5].at("failure").get<std::string>(), testing::HasSubstr("--mode=dp keeps a whole model"));
  for (const int row : {1, 3, 4}) {
    EXPECT_EQ(rows[row].at("ranks"), 2);
    EXPECT_EQ(rows[row].at("updates"), 9) << "three rounds of three";
    EXPECT_GT(rows[row].at("images_per_s"), 0);
  }
  ExpectRefused(Run(bench + "--nproc_per_node=2"),
                {"give --compare=ddp with it", "switchyard launch --nproc_per_node=2 bench"});
  ExpectRefused(Run(bench + "--compare=fsdp"), {"--compare=fsdp: expected dp"});
}

}  // namespace
}  // namespace switchyard
