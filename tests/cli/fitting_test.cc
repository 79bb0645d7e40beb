// What fits into memory, as the commands say it: limits, searches for a mesh, batches and recomputation that are found.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class Fitting : public RunFilesTest {};

// Each way takes the memory that a plan of it takes, and what is said of it is how to start it.
TEST_F(Fitting, SearchFindsTheWaysThatFitIntoMemory) {
  const std::string model = "--model=vit_micro --depth=2 --width=32 --heads=2 --device=cpu --steps=2 ",
                    batch = "--batch_size=16 ";
  const auto search = [&](const std::string& more) {
    const CommandResult result = Run("explain --json --search --world=4 " + model + batch + more);
    EXPECT_EQ(result.code, 0) << result.output;
    return nlohmann::json::parse(result.output, nullptr, false);
  };
  const auto planned = [&](const nlohmann::json& way, const std::string& memory) {
    const CommandResult result =
        Run(fmt::format("explain --json --world=4 {} {} --parallel=dp{},tp{},pp{},zero{}{} --batch_size={} "
                        "--accumulation={} --recompute={}",
                        model, memory, way["dp"].get<int>(), way["tp"].get<int>(), way["pp"].get<int>(),
                        way["zero"].get<int>(), way["sp"].get<bool>() ? ",sp" : "", way["batch_size"].get<int>(),
                        way["accumulation"].get<int>(), way["recompute"].get<std::string>()));
    return nlohmann::json::parse(result.output, nullptr, false);
  };
  const std::string ample = "--device_memory=1GB";
  const auto all = search(ample);
  ASSERT_TRUE(all.is_object());
  EXPECT_EQ(all["samples"], 64);
  EXPECT_EQ(all["too_large"], 0);
  EXPECT_GT(all["refused"], 0) << "pipelines beside --zero=2";
  EXPECT_TRUE(std::any_of(all["fitting"].begin(), all["fitting"].end(),
                          [](const auto& way) { return way["tp"] == 2 && way["pp"] == 2; }));
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (const auto& way : all["fitting"]) {
    EXPECT_EQ(way["dp"].get<int>() * way["tp"].get<int>() * way["pp"].get<int>(), 4);
    EXPECT_EQ(way["dp"].get<int>() * way["batch_size"].get<int>() * way["accumulation"].get<int>(), 64);
    least = std::min(least, way["device_bytes"].get<int64_t>());
    most = std::max(most, way["device_bytes"].get<int64_t>());
  }
  const std::string scant = fmt::format("--device_memory={}", (least + most) / 2);
  const auto some = search(scant + " --rates=compute:1T,memory:50G,link:1G");
  ASSERT_GT(some["fitting"].size(), 3u);
  double before = 0;
  bool micro_batches = false;
  for (const auto& way : some["fitting"]) {
    EXPECT_LE(way["device_bytes"], (least + most) / 2);
    EXPECT_GT(way["least_ms"], 0);
    EXPECT_LE(way["least_ms"], way["most_ms"]);
    EXPECT_LE(before, way["most_ms"]) << "in this order";
    before = way["most_ms"];
    micro_batches |= way["accumulation"] > 1;
  }
  EXPECT_TRUE(micro_batches) << "where a whole batch does not fit";
  for (const auto& [found, memory] : {std::pair(&all, ample), {&some, scant}}) {
    for (const size_t at : {size_t{0}, (*found)["fitting"].size() / 2, (*found)["fitting"].size() - 1}) {
      const auto& way = (*found)["fitting"][at];
      const auto plan = planned(way, memory);
      ASSERT_TRUE(plan.is_object()) << way;
      EXPECT_EQ(plan["device_bytes"], way["device_bytes"]) << way;
      EXPECT_LE(plan["memory_bytes"].get<int64_t>() + plan["peer_memory_bytes"].get<int64_t>(), plan["device_bytes"]);
    }
  }
  for (const auto& way : search("--tp=2 --zero=1 --recompute=blocks")["fitting"])
    EXPECT_EQ(fmt::format("{} {} {}", way["tp"].dump(), way["zero"].dump(), way["recompute"].dump()), "2 1 \"blocks\"");

  const std::string text = "explain --search --world=4 --tp=2 " + model + batch;
  ExpectSuccess(Run(text + "--rates=compute:1T,memory:50G,link:1G"),
                {"4 ranks, 32 samples an update", "most ms", "the first: --parallel=dp2,tp2"});
  ExpectSuccess(Run(text), {"most ms", "at 19.5 TFLOP/s and 2.039 TB/s, links of 300 GB/s",
                            "(an A100 (SXM, 80 GB) by its data sheet, as --rates names nothing else)"});
  ExpectSuccess(Run("explain --search --tp=1 " + model + batch), {"times need --rates=compute:"});
  ExpectRefused(Run(text + "--device_memory=100KB"), {"none of", "fits into 0.1 MB", "the smallest, --parallel=dp2"});
  ExpectRefused(Run(text + "--device_memory=80XB"), {"--device_memory", "80GiB", "found \"80XB\""});
  ExpectRefused(Run(text + "--measure --rates=compute:1T"), {"both say what the device reaches"});
  ExpectRefused(Run(text + "--rates=link:fast"), {"--rates", "node_link:25G", "found \"link:fast\""});
  ExpectRefused(Run(text + "--rates=link:3G,h100"), {"or first a machine, a100, h100, h200", "found \"h100\""});
  const std::string given = "explain --world=4 --zero=1 " + model + batch;
  ExpectSuccess(Run(given + "--rates=compute:1T,memory:50G,link:1G --device_memory=1GiB"),
                {"an update of this run takes", "at 1 TFLOP/s and 50 GB/s, links of 1 GB/s, all ranks on one node",
                 "of 1073.7 MB, fits"});
  ExpectSuccess(
      Run(given + "--precision=bf16 --ranks_per_node=2 --rates=h100,node_link:12.5G"),
      {"at 989 TFLOP/s and 3.35 TB/s, links of 450 GB/s and 12.5 GB/s between nodes (an H100 (SXM) by its data "
       "sheet but for what --rates says besides)\n"});
  const auto by_default = nlohmann::json::parse(Run(given + "--json 2>/dev/null").output, nullptr, false);
  EXPECT_LE(by_default["update_ms"]["least"], by_default["update_ms"]["most"]);
  EXPECT_GT(by_default["update_ms"]["least"], 0);
  EXPECT_EQ(search("--tp=2")["rates"], by_default["rates"]);
  ExpectSuccess(Run(given + "--device_memory=1MB"), {"of 1.0 MB, too large"});
}

// Of a model that is a few buckets large; what is found trains within the limit.
TEST_F(Fitting, SmallerBucketsAreFoundWhereNothingElseFits) {
  const std::string model =
      "--device=null --model=vit_micro --depth=6 --width=128 --heads=4 --dataset=synthetic --train_size=32 "
      "--validation_size=4 --steps=1 --memory_limit=7MiB --batch_size=1 --accumulation=4 ";
  const CommandResult found = Run("explain --search --world=2 --tp=1 --pp=1 " + model);
  ExpectSuccess(found, {" --bucket_mb="});
  ExpectRefused(Run("explain --search --world=2 --tp=1 --pp=1 --bucket_mb=50 " + model), {"none of", "fits into"});
  const auto train = [&](const std::string& more) {
    return Run("train " + model + " --recompute=blocks --zero=3 --offload=all " + more, Start::kLaunch);
  };
  ExpectRefused(train(""), {"--bucket_mb=0.5 would fit"});
  ExpectSuccess(train("--bucket_mb=0.5"));
}

// Where no way to share a model over the ranks fits, one that leaves parameters in host memory does, and trains in it.
TEST_F(Fitting, SearchOffloadsWhatFitsNoOtherWay) {
  const std::string model =
      "--model=vit_micro --dataset=shapes --train_size=16 --validation_size=4 --depth=12 --width=96 --heads=4 "
      "--optimizer=adamw --batch_size=1 --bucket_mb=0.5 --steps=2 --device=null ";
  const auto explain = [&](const std::string& more) { return Run("explain " + model + more); };
  const auto bytes_of = [&](const std::string& more) {
    return nlohmann::json::parse(explain("--json " + more).output, nullptr, false)["memory_bytes"].get<int64_t>();
  };
  const std::string offloaded = "--zero=3 --offload=all ";
  const int64_t limit = bytes_of("--world=2 " + offloaded);  // without windows, for which there is no room
  ASSERT_LT(limit, bytes_of(""));
  const std::string search = fmt::format("--search --world=2 --tp=1 --pp=1 --memory_limit={} ", limit);
  ExpectRefused(explain(search + "--offload=none"), {"none of", "fits into"});
  const CommandResult found = explain(search + "--json");
  ASSERT_EQ(found.code, 0) << found.output;
  const auto ways = nlohmann::json::parse(found.output, nullptr, false)["fitting"];
  EXPECT_TRUE(std::any_of(ways.begin(), ways.end(), [&](const auto& way) {
    return way["zero"] == 3 && way["device_bytes"] == limit;
  })) << ways.dump(2);
  for (const auto& way : ways) EXPECT_EQ(way["offload"], "all");
  ExpectSuccess(explain(search), {"the first: --parallel=dp2", "--offload=all"});
  const auto counts = nlohmann::json::parse(found.output, nullptr, false);
  EXPECT_EQ(ways.size() + counts["too_large"].get<size_t>() + counts["refused"].get<size_t>(), 4u)
      << "one for each --zero, not one for each --offload that was tried";

  // What goes to the host takes its time.
  const std::string rates = "--rates=compute:1T,memory:50G,link:1G";
  const auto at = [&](const std::string& host) {
    return nlohmann::json::parse(explain(search + rates + host + " --json").output, nullptr, false)["fitting"];
  };
  const auto slow = at(",host:1M"), by_default = at("");
  ASSERT_EQ(slow.size(), ways.size());
  for (const auto* found_ways : {&slow, &by_default}) {
    const double per_s = found_ways == &slow ? 1e6 : 25e9;
    for (const auto& way : *found_ways) {
      const double host_ms = 1e3 * way["host_traffic_bytes"].get<double>() / per_s;
      EXPECT_GT(way["host_traffic_bytes"], way["host_bytes"]) << "parameters come twice, moments are read and written";
      EXPECT_GE(way["least_ms"].get<double>(), host_ms * 0.999999);
      EXPECT_GT(way["most_ms"].get<double>(), host_ms);
    }
  }
  EXPECT_GT(slow[0]["most_ms"], by_default[0]["most_ms"]);
  ExpectSuccess(explain(search + rates), {"host MB", "at 25 GB/s (host: in --rates)"});

  const std::string within = fmt::format("--memory_limit={} ", limit);
  const auto train = [&](const std::string& suffix, const std::string& more) {
    return fmt::format("train --output=run --suffix={} {}{}", suffix, model, more);
  };
  const std::string memory = fmt::format("SWITCHYARD_NULL_MEMORY={}", limit);
  ExpectRefused(Run(train("a", ""), Start::kAlone, memory), {"out of memory"});
  ExpectSuccess(Run(train("b", offloaded), Start::kLaunch, memory), {"trained 2 updates"});

  // The same by a limit, on devices that have more.
  const CommandResult refused = Run(train("c", within));
  EXPECT_EQ(refused.code, 2) << "what would be refused again is not started again";
  ExpectRefused(refused, {fmt::format("--memory_limit={}: a training of vit_micro needs ", limit), "(weights ",
                          ", gradients ", ", optimizer state ", ", activations ", ", workspace ", " would fit, with "});
  ExpectRefused(Run(train("d", within), Start::kLaunch), {"--offload=all would fit"});
  EXPECT_FALSE(std::filesystem::exists(In("run/vit_micro/shapes/c"))) << "nothing is begun";
  const CommandResult trained = Run(train("e", within + offloaded), Start::kLaunch);
  ExpectSuccess(trained, {fmt::format("MB of device memory per rank (--memory_limit={})", limit), "trained 2 updates"});
  double peak = 0;
  const size_t line = trained.output.find("  memory      ");
  ASSERT_NE(line, std::string::npos) << trained.output;
  ASSERT_EQ(std::sscanf(trained.output.c_str() + line, " memory %lf MB of device memory at most", &peak), 1);
  EXPECT_GT(peak, 0);
  EXPECT_LE(peak, static_cast<double>(limit) / 1e6 + 0.05) << "said to a tenth";
  ExpectRefused(Run(train("f", fmt::format("--memory_limit={} ", limit - 1) + offloaded), Start::kLaunch),
                {"a training of vit_micro needs "});
  EXPECT_FALSE(std::filesystem::exists(In("run/vit_micro/shapes/f"))) << "nothing is begun";
}

// Plans come first: the windows through which ranks reach each other's memory are there where they fit beside them.
TEST_F(Fitting, WhatTrainsWithinALimitTrainsWithinALargerOne) {
  const std::string model =
      "--model=vit_micro --dataset=shapes --train_size=128 --validation_size=4 --batch_size=16 --accumulation=4 "
      "--steps=2 --device=null --ranks_per_device=2 ";
  const auto explained = [&](const std::string& more) {
    const CommandResult told = Run("explain --json --world=2 " + model + more);
    EXPECT_EQ(told.code, 0) << told.output;
    return nlohmann::json::parse(told.output, nullptr, false);
  };
  const auto whole = explained("");
  ASSERT_TRUE(whole.is_object());
  const int64_t plan = whole["memory_bytes"], windows = whole["peer_memory_bytes"];
  ASSERT_LT(0, plan);
  ASSERT_LT(plan, windows) << "so that there are limits within which either fits, and not both";
  EXPECT_EQ(whole["device_bytes"], plan + windows);
  bool trained_before = false;
  for (const int64_t limit : {plan - 1, plan, windows, windows + 1000, plan + windows - 1, plan + windows}) {
    SCOPED_TRACE(limit);
    const std::string within = fmt::format("--memory_limit={} ", limit);
    const auto told = explained(within);
    const CommandResult run =
        Run(fmt::format("train --output=run --suffix={} {}{}", limit, model, within), Start::kLaunch);
    const bool trained = run.code == 0,
               through_windows = run.output.find("and device memory (peer/1)") != std::string::npos;
    EXPECT_EQ(trained, limit >= plan) << run.output;
    EXPECT_EQ(told["fits"], trained);
    EXPECT_GE(trained, trained_before) << run.output;
    trained_before = trained;
    if (!trained) continue;
    EXPECT_EQ(through_windows, limit >= plan + windows) << run.output;
    EXPECT_EQ(told["peer_memory_bytes"], through_windows ? windows : 0);
    EXPECT_EQ(told["device_bytes"], through_windows ? plan + windows : plan);
  }
  const std::string between = fmt::format("--memory_limit={} ", windows + 1000);
  ExpectSuccess(Run("explain --world=2 " + model + between), {"do not fit beside the plan", " MB, fits"});
  const std::string search = "explain --search --world=2 --tp=1 --pp=1 --zero=0 " + model;
  ExpectSuccess(Run(search + between), {"* collectives go through host memory"});
  EXPECT_THAT(Run(search).output, testing::Not(HasSubstr("* collectives")));
}

TEST_F(Fitting, ExplainTellsWhatLiesInAFileFromWhatLiesInHostMemory) {
  const auto explained = [&](const std::string& more) {
    return nlohmann::json::parse(
        Run("explain --model=vit_micro --device=null --offload=optimizer --json " + more).output, nullptr, false);
  };
  const auto in_memory = explained(""), in_file = explained("--offload_dir=" + folder_.path());
  ASSERT_TRUE(in_memory.is_object() && in_file.is_object());
  EXPECT_EQ(in_memory["file_bytes"], 0);
  EXPECT_EQ(in_file["file_bytes"], in_file["memory_by_class"]["host state"]);
  EXPECT_GT(in_file["file_bytes"], 0);
  EXPECT_EQ(in_file["host_bytes"].get<int64_t>() + in_file["file_bytes"].get<int64_t>(), in_memory["host_bytes"]);
}

TEST_F(Fitting, AMemoryLimitHoldsForEveryCommandThatUsesADevice) {
  ExpectSuccess(Run(SmallTraining("--memory_limit=1GB")),
                {"(--memory_limit=1GB)", "at most on a rank, of 1000.0 MB (--memory_limit=1GB)"});
  folder_.Write("a.jpg", JpegBytes(Pattern(40, 50, 3)));
  const std::string of_run = " --device=cpu --checkpoint=" + SmallRun();
  ExpectSuccess(Run("eval --memory_limit=100MiB" + of_run));
  ExpectRefused(Run("eval --memory_limit=10KiB" + of_run), {"--memory_limit=10KiB: an evaluation of mlp needs"});
  ExpectRefused(Run("predict a.jpg --memory_limit=10KiB" + of_run),
                {"--memory_limit=10KiB: an evaluation of mlp needs"});
  const std::string bench = "bench --model=mlp --width=16 --batch_size=2 --steps=2 --device=cpu ";
  ExpectSuccess(Run(bench + "--memory_limit=1GB"));
  ExpectRefused(Run(bench, Start::kAlone, "SWITCHYARD_MEMORY_LIMIT=10KB"),
                {"--memory_limit=10KB: a training of mlp needs", "none of the settings that take less would fit"});
  ExpectRefused(Run(bench + "--memory_limit=10kb"),
                {"--memory_limit: expected bytes such as 80GiB", "found \"10kb\"", "given by --memory_limit=10kb"});
  ExpectRefused(Run(bench + "--batch_size=auto --memory_limit=10KB"), {"--batch_size=auto", "within --memory_limit"});
}

TEST_F(Fitting, AnAutomaticBatchIsTheLargestPowerOfTwoThatFits) {
  const std::string run =
      "train --model=mlp --dataset=shapes --train_size=600 --validation_size=20 --steps=2 --device=null --output=run "
      "--suffix=a --batch_size=auto";
  ExpectSuccess(Run(run), {"512 images per update"});  // the data ends before the memory does
  const CommandResult small = Run(run + " --suffix=b", Start::kAlone, "SWITCHYARD_NULL_MEMORY=16000000");
  ExpectSuccess(small);
  const int batch = Saved("run/mlp/shapes/b/run/config.json")["batch_size"];
  EXPECT_LT(batch, 512);
  EXPECT_EQ(batch & (batch - 1), 0) << batch;
  // Twice as much does not fit, and the refusal names a batch that does.
  ExpectRefused(
      Run("train --model=mlp --dataset=shapes --train_size=4000 --steps=1 --device=null --output=run --batch_size=4000",
          Start::kAlone, "SWITCHYARD_NULL_MEMORY=16000000"),
      {"out of memory", "would fit"});
  ExpectRefused(Run(run, Start::kAlone, "SWITCHYARD_NULL_MEMORY=100000"), {"--batch_size=auto", "for a single image"});
}

// With --sp the ranks that share a model divide the samples of a batch, of which there may be any number; and what adds
// gradients in one way or another stands in nobody's way where there are none.
TEST_F(Fitting, BatchesThatSequenceParallelRanksCanDivideAreFound) {
  const std::string run =
      "train --model=mlp --dataset=shapes --width=16 --train_size=64 --validation_size=13 --steps=2 --device=cpu "
      "--output=run --suffix=a --batch_size=auto --tp=2 --sp";
  ExpectSuccess(Run(run, Start::kLaunch), {"2 of which share each model", "of 13 validation images"});
  const std::string eval = "eval --device=cpu --tp=2 --sp --checkpoint=" + SmallRun();
  ExpectSuccess(Run(eval, Start::kLaunch), {"13 images"});
  ExpectSuccess(Run(eval + " --batch_size=5", Start::kLaunch), {"13 images"});
  ExpectSuccess(Run(eval + " --batch_size=auto", Start::kLaunch), {"13 images"});
  ExpectSuccess(Run(eval + " --hierarchical_allreduce --ranks_per_node=1", Start::kLaunch), {"13 images"});
}

// Mixup and cutmix pair the samples of a batch, whoever chooses how many those are.
TEST_F(Fitting, BatchesWhoseSamplesArePairedAreFound) {
  const std::string model = "--model=vit_micro --depth=2 --width=32 --heads=2 --device=cpu --steps=2 --mixup=0.8 ";
  const std::string run = "train --dataset=shapes --train_size=64 --validation_size=13 --output=run " + model;
  ExpectSuccess(Run(run + "--suffix=automatic --batch_size=auto"), {"64 images per update"});
  ExpectSuccess(Run(run + "--suffix=stages --pp=2 --batch_size=8", Start::kLaunch), {"8 images per update"});
  EXPECT_EQ(Saved("run/vit_micro/shapes/stages/run/config.json")["batch_size"], 2) << "of 8 micro-batches each has one";

  const auto search = [&](const std::string& more) {
    const CommandResult result = Run("explain --json --search --world=4 --global_batch_size=64 " + model + more);
    EXPECT_EQ(result.code, 0) << result.output;
    const auto ways = nlohmann::json::parse(result.output, nullptr, false)["fitting"];
    const auto plain = std::find_if(ways.begin(), ways.end(), [](const nlohmann::json& way) {
      return way["dp"].get<int>() * way["pp"].get<int>() == 4 && way["zero"] == 0 && way["recompute"] == "none";
    });
    EXPECT_NE(plain, ways.end()) << result.output;
    return plain == ways.end() ? nlohmann::json() : *plain;
  };
  // More micro-batches where it does not fit, also of stages that the user asked for; none of a single sample.
  for (const char* stages : {"--pp=1 ", "--pp=2 "}) {
    const auto roomy = search(fmt::format("{}--memory_limit=1GB", stages));
    ASSERT_TRUE(roomy.is_object());
    const auto tight = search(fmt::format("{}--memory_limit={}", stages, roomy["device_bytes"].get<int64_t>() - 1));
    ASSERT_TRUE(tight.is_object());
    EXPECT_GT(tight["accumulation"], roomy["accumulation"]);
    EXPECT_EQ(tight["batch_size"].get<int>() % 2, 0);
  }
}

TEST_F(Fitting, AutomaticRecomputationIsWhatTheMemoryAsksFor) {
  const std::string model =
      "--model=vit_micro --dataset=shapes --train_size=48 --depth=4 --width=32 --heads=2 --batch_size=16 ";
  const std::string run = "train " + model + "--validation_size=20 --steps=2 --device=null --output=run ";
  const auto bytes_of = [&](const std::string& recompute) {
    const CommandResult told = Run("explain " + model + "--device=null --steps=2 --json --recompute=" + recompute);
    return nlohmann::json::parse(told.output, nullptr, false)["memory_bytes"].get<int64_t>();
  };
  const int64_t whole = bytes_of("none"), some = bytes_of("every:2"), least = bytes_of("blocks");
  ASSERT_LT(least, some);
  ASSERT_LT(some, whole);
  const auto memory = [](int64_t bytes) { return fmt::format("SWITCHYARD_NULL_MEMORY={}", bytes); };

  ExpectSuccess(Run(run + "--suffix=a --recompute=auto"), {"trained 2 updates"});
  EXPECT_EQ(Saved("run/vit_micro/shapes/a/run/config.json")["recompute"], "none") << "there is memory enough";
  ExpectSuccess(Run(run + "--suffix=b --recompute=auto", Start::kAlone, memory(some)),
                {"recompute   every:2 (auto: the least that fits into", "trained 2 updates"});
  EXPECT_EQ(Saved("run/vit_micro/shapes/b/run/config.json")["recompute"], "every:2");
  // What it became stays with the run, also where there is memory enough.
  ExpectSuccess(Run("train --device=null --steps=3 --resume=run/vit_micro/shapes/b/run"), {"recompute   every:2"});

  ExpectRefused(
      Run(run + "--suffix=c", Start::kAlone, memory(some)),
      {"out of memory", fmt::format("--recompute=every:2 takes {:.1f} MB instead of {:.1f} MB, which would fit",
                                    static_cast<double>(some) / 1e6, static_cast<double>(whole) / 1e6)});
  ExpectRefused(
      Run(run + "--suffix=d --recompute=auto", Start::kAlone, memory(least - 1)),
      {"--recompute=auto", fmt::format("{:.1f} MB even with --recompute=blocks", static_cast<double>(least) / 1e6)});
  ExpectRefused(Run(run + "--recompute=auto --batch_size=auto"), {"both ask what fits; give one of them"});

  const CommandResult explained =
      Run("explain --steps=2 --device=null --recompute=auto " + model, Start::kAlone, memory(some));
  ExpectSuccess(explained, {"--recompute=auto is every:2 here",
                            fmt::format("--recompute=every:2: {:.1f} MB instead of {:.1f} MB",
                                        static_cast<double>(some) / 1e6, static_cast<double>(whole) / 1e6)});
}

// Each stage plans itself and has only some of the blocks; all of them do what the one with the least room needs.
TEST_F(Fitting, StagesAgreeOnTheRecomputationThatFitsAll) {
  const std::string model =
      "--model=vit_micro --dataset=shapes --train_size=48 --depth=4 --width=32 --heads=2 --batch_size=16 --pp=2 "
      "--num_microbatches=4 ";
  const auto largest = [&](const std::string& recompute) {
    const CommandResult told =
        Run("explain " + model + "--world=2 --device=null --steps=2 --json --recompute=" + recompute);
    const auto json = nlohmann::json::parse(told.output, nullptr, false);
    int64_t most = 0;
    for (const auto& stage : json["pipeline"]["stages"]) most = std::max(most, stage["memory_bytes"].get<int64_t>());
    return most;
  };
  const int64_t some = largest("every:4"), whole = largest("none");
  ASSERT_LT(0, some);
  ASSERT_LT(some, whole);
  // Which is one block of the first stage: its plan is the larger one. One null device has the memory of both ranks.
  const std::string memory = fmt::format("SWITCHYARD_RANKS_PER_DEVICE=2 SWITCHYARD_NULL_MEMORY={}", 2 * some);
  ExpectSuccess(Run("train " + model +
                        "--validation_size=20 --steps=2 --device=null --output=run --suffix=a "
                        "--recompute=auto",
                    Start::kLaunch, memory),
                {"recompute   every:4 (auto: the least that fits into", "trained 2 updates"});
  ExpectSuccess(Run("explain --world=2 --steps=2 --device=null --recompute=auto " + model, Start::kAlone, memory),
                {"--recompute=auto is every:4 here"});
}

}  // namespace
}  // namespace switchyard
