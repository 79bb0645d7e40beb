// Settings as a user gives them: where each value comes from, what one of them changes, what two that exclude each
// other do, and files of before.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/json.h"
#include "core/train/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Shown {
  std::string value, origin;
};

class RunSettings : public RunFilesTest {
 protected:
  // What --show_settings says of each.
  std::map<std::string, Shown> Show(const std::string& command, const std::string& environment = "") const {
    const CommandResult result = Run(command + " --show_settings", Start::kAlone, environment);
    ExpectSuccess(result);
    std::map<std::string, Shown> shown;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  ") || line.size() < 54) continue;
      const auto trimmed = [](const std::string& text) { return text.substr(0, text.find_last_not_of(' ') + 1); };
      shown[trimmed(line.substr(2, 24))] = {trimmed(line.substr(27, 26)), line.substr(54)};
    }
    return shown;
  }
  void ExpectShown(const std::string& command, const std::map<std::string, Shown>& expected,
                   const std::string& environment = "") const {
    SCOPED_TRACE(environment + " " + command);
    const auto shown = Show(command, environment);
    for (const auto& [name, what] : expected) {
      ASSERT_TRUE(shown.contains(name)) << name;
      EXPECT_EQ(shown.at(name).value, what.value) << name;
      EXPECT_EQ(shown.at(name).origin, what.origin) << name;
    }
  }
};

constexpr char kShapes[] =
    "train --dataset=shapes --train_size=64 --validation_size=20 --device=cpu --output=run --suffix=a ";

TEST_F(RunSettings, EachValueIsShownWithItsOrigin) {
  std::ofstream(In("c.json")) << R"({"momentum": 0.25})";
  ExpectShown(kShapes + std::string("--model=vit_micro --lr=0.002 --config=c.json"),
              {{"lr", {"0.002", "flag"}},
               {"seed", {"7", "environment: SWITCHYARD_SEED"}},
               {"momentum", {"0.25", "config file: --config=c.json"}},
               {"clip", {"1", "recipe: vit_micro"}},
               {"patch", {"7 pixels", "model: vit_micro"}},
               {"classes", {"10", "dataset: shapes"}},
               {"crop_ratio", {"1", "dataset: shapes"}},
               {"augmentation", {"none", "recipe: vit_micro"}},
               {"mean", {"0.5", "model: vit_micro"}},
               {"optimizer", {"adamw", "default"}},
               {"steps", {"-", "not given"}}},
              "SWITCHYARD_SEED=7");
  EXPECT_FALSE(std::filesystem::exists(In("run"))) << "nothing else is done";
  // What the recipe does not say of images is the dataset's.
  ExpectShown(kShapes + std::string("--model=vit_tiny"), {{"augmentation", {"crop_flip", "dataset: shapes"}}});
}

TEST_F(RunSettings, OneSettingLeavesTheRestOfTheRecipeAlone) {
  ExpectShown("explain --model=vit_tiny --lr=0.002 --clip=0 --epochs=3",
              {{"lr", {"0.002", "flag"}},
               {"clip", {"0", "flag"}},
               {"epochs", {"3", "flag"}},
               {"warmup_lr", {"1e-06", "recipe: vit_tiny"}},
               {"min_lr", {"1e-05", "recipe: vit_tiny"}},
               {"warmup", {"0.05", "recipe: vit_tiny"}},
               {"weight_decay", {"0.05", "recipe: vit_tiny"}},
               {"label_smoothing", {"0.1", "recipe: vit_tiny"}}});
}

TEST_F(RunSettings, RatesAreScaledFromTheBatchThatTheRecipeMeansThemFor) {
  ExpectShown("explain --model=vit_micro", {{"base_batch_size", {"128 images", "recipe: vit_micro"}},
                                            {"batch_size", {"128 images", "recipe: vit_micro"}}});
  ExpectSuccess(Run(SmallTraining("--scale_lr=linear")), {"(0.001 scaled by --scale_lr=linear from batch 128 to 4)"});
  ExpectShown("explain --model=vit_micro --base_batch_size=512", {{"base_batch_size", {"512 images", "flag"}}});
}

TEST_F(RunSettings, AnEmptyValueTakesASettingBack) {
  std::ofstream(In("c.json")) << R"({"lr": 0.5, "steps": 9, "suffix": "x"})";
  ExpectShown("explain --model=vit_micro --config=c.json --lr= --steps= --suffix=",
              {{"lr", {"0.003", "recipe: vit_micro"}}, {"steps", {"-", "not given"}}, {"suffix", {"-", "not given"}}});
}

TEST_F(RunSettings, OfTwoThatExcludeEachOtherTheNearerToTheUserStays) {
  std::ofstream(In("c.json")) << R"({"batch_size": 2, "steps": 5})";
  const std::string explain = "explain --model=mlp --world=2 ";
  ExpectShown(explain + "--global_batch_size=16",
              {{"global_batch_size", {"16 images", "flag"}},
               {"batch_size", {"8 images", "flag: global_batch_size over 2 ranks x accumulation 1"}}},
              "SWITCHYARD_BATCH_SIZE=4");
  ExpectShown(explain + "--batch_size=4",
              {{"batch_size", {"4 images", "flag"}},
               {"global_batch_size", {"8 images", "flag: batch_size x 2 ranks x accumulation 1"}}},
              "SWITCHYARD_GLOBAL_BATCH_SIZE=16");
  ExpectShown(explain + "--config=c.json",
              {{"batch_size", {"8 images", "environment: global_batch_size over 2 ranks x accumulation 1"}}},
              "SWITCHYARD_GLOBAL_BATCH_SIZE=16");
  ExpectRefused(Run(explain + "--batch_size=4 --global_batch_size=16"), {"give one of them"});
  // An epoch count from nearer outranks steps.
  ExpectShown(explain + "--config=c.json --epochs=3", {{"steps", {"-", "not given"}}, {"epochs", {"3", "flag"}}});
  ExpectShown(explain + "--steps=7 --epochs=3", {{"steps", {"7 updates", "flag"}}});
}

// Also where it is not the user who shares them, but a search for what fits.
TEST_F(RunSettings, BucketsOfSharedUpdatesAreLarger) {
  const std::string explain = "explain --json --model=vit_small --device=null --world=2 --batch_size=2 --zero=2 ";
  const auto bytes = [&](const std::string& more) {
    return nlohmann::json::parse(Run(explain + more + " 2> /dev/null").output, nullptr, false).value("device_bytes", 0);
  };
  const int64_t usual = bytes("");
  EXPECT_GT(usual, 0);
  EXPECT_EQ(bytes("--bucket_mb=50.331648"), usual);
  EXPECT_LT(bytes("--bucket_mb=25"), usual);
  const auto found = nlohmann::json::parse(
      Run("explain --json --search --model=vit_small --device=null --world=2 --batch_size=2 --tp=1 --pp=1 2> /dev/null")
          .output,
      nullptr, false);
  int seen = 0;
  for (const auto& way : found["fitting"]) {
    if (way["zero"] != 2 || way["batch_size"] != 2) continue;
    ++seen;
    EXPECT_EQ(way["device_bytes"], usual);
  }
  EXPECT_EQ(seen, 1);
}

TEST_F(RunSettings, TheBatchOfARecipeIsDividedIntoPairsWhereImagesAreMixed) {
  const std::string explain = "explain --model=vit_micro --world=5 ";
  ExpectShown(explain, {{"batch_size", {"25 images", "recipe: vit_micro"}}});
  ExpectShown(explain + "--mixup=0.8", {{"batch_size", {"24 images", "recipe: vit_micro"}}});
}

TEST_F(RunSettings, MicroBatchesDivideTheBatch) {
  const std::string explain = "explain --model=vit_micro --world=2 --pp=2 ", of = " of 8 images";
  ExpectShown(explain + "--batch_size=8 --num_microbatches=4",
              {{"batch_size", {"2 images", "flag: num_microbatches=4" + of}},
               {"accumulation", {"4", "flag: num_microbatches=4" + of}},
               {"num_microbatches", {"-", "not given"}},  // a file of what is shown divides once
               {"global_batch_size", {"8 images", "flag: batch_size x 1 ranks x accumulation 1"}}});
  ExpectShown(explain + "--batch-size=8 --microbatch-size=1",
              {{"batch_size", {"1 images", "flag: microbatch_size=1" + of}},
               {"accumulation", {"8", "flag: microbatch_size=1" + of}}});
  // Of both the number counts, and the one that is nearer to the user before any that is farther.
  ExpectShown(explain + "--global_batch_size=8 --microbatch_size=1 --num_microbatches=2",
              {{"batch_size", {"4 images", "flag: num_microbatches=2" + of}}});
  ExpectShown(explain + "--batch_size=8 --microbatch_size=2",
              {{"batch_size", {"2 images", "flag: microbatch_size=2" + of}}}, "SWITCHYARD_NUM_MICROBATCHES=8");
  ExpectShown(explain + "--batch_size=8 --accumulation=2 --num_microbatches=4",
              {{"batch_size", {"2 images", "flag: num_microbatches=4 of 16 images"}},
               {"accumulation", {"8", "flag: num_microbatches=4 of 16 images"}}});
  ExpectShown(explain + "--batch_size=auto --num_microbatches=4",
              {{"accumulation", {"4", "flag: num_microbatches of each micro-step"}}});
  // Where nobody says how many, there are four for each stage, or as many as the images allow.
  ExpectShown(explain + "--batch_size=16", {{"batch_size", {"2 images", "flag: pp=2 with 16 images"}},
                                            {"accumulation", {"8", "flag: pp=2 with 16 images"}}});
  ExpectShown(explain + "--batch_size=3", {{"batch_size", {"1 images", "flag: pp=2 with 3 images"}},
                                           {"accumulation", {"3", "flag: pp=2 with 3 images"}}});
  ExpectShown(explain + "--batch_size=11", {{"batch_size", {"1 images", "flag: pp=2 with 11 images"}},
                                            {"accumulation", {"11", "flag: pp=2 with 11 images"}}});
  ExpectShown(explain + "--batch_size=12", {{"batch_size", {"2 images", "flag: pp=2 with 12 images"}},
                                            {"accumulation", {"6", "flag: pp=2 with 12 images"}}});
  ExpectShown(explain + "--batch_size=auto", {{"accumulation", {"8", "flag: pp=2"}}});
  ExpectShown(explain + "--batch_size=8 --accumulation=3", {{"accumulation", {"3", "flag"}}});
  ExpectRefused(Run(explain + "--batch_size=1"), {"with 1 micro-batch an update"});
  ExpectRefused(Run(explain + "--batch_size=8 --num_microbatches=3"),
                {"--num_microbatches=3: expected a number that divides the 8 images of a rank and update"});
  ExpectRefused(Run(explain + "--batch_size=8 --microbatch_size=3"), {"--microbatch_size=3: expected a number"});
  ExpectRefused(Run(explain + "--batch_size=auto --microbatch_size=3"), {"both decide the batch; give one of them"});
  // A run that goes on keeps its global batch, however it is divided.
  ExpectSuccess(Run(SmallTraining("--batch_size=8 --num_microbatches=4 --microbatch_size=1")),
                {"--microbatch_size has no effect with --num_microbatches=4"});
  const std::string resume = "train --steps=9 --resume=run/mlp/shapes/a/run ";
  EXPECT_EQ(Show(resume).at("batch_size").value, "2 images");
  ExpectShown(resume + "--num_microbatches=2", {{"batch_size", {"4 images", "flag: num_microbatches=2" + of}}});
  EXPECT_FALSE(Saved("run/mlp/shapes/a/run/config.json").contains("num_microbatches"));
}

// By the names of other programs, as flags and as variables; the banner says what they became.
TEST_F(RunSettings, NamesOfOtherProgramsTrainAndTheBannerSaysWhatTheyAre) {
  const CommandResult run = Run(SmallTraining("--precision=bf16 --opt_level=O1 --learning-rate 0.25"), Start::kLaunch,
                                "AIAK_FUSED_OPTIMIZER=0 SWITCHYARD_OPT=sgd");
  ExpectSuccess(run, {"  alias       --opt_level=O1 (apex) is --amp=O1\n",
                      "  alias       --learning_rate=0.25 (Hugging Face) is --lr=0.25\n",
                      "  alias       AIAK_FUSED_OPTIMIZER=0 (AIAK) is --fused_optimizer=false\n",
                      "  alias       SWITCHYARD_OPT=sgd (timm) is --nesterov=true\n",
                      "  alias       SWITCHYARD_OPT=sgd (timm) is --optimizer=sgd\n", "sgd, lr 0.25", "bf16 (O1)"});
  const nlohmann::json kept = Saved("run/mlp/shapes/a/run/config.json");
  EXPECT_EQ(kept["amp"], "O1");
  EXPECT_EQ(kept["lr"], 0.25);
  EXPECT_EQ(kept["optimizer"], "sgd");
  EXPECT_EQ(kept["fused_optimizer"], false);
  ExpectRefused(Run(SmallTraining("--opt_level=O1 --amp=O2")), {"--opt_level=O1 and --amp=O2 both set --amp"});
  ExpectRefused(Run(SmallTraining("--opt_level=O1 --enabled=False")), {"--enabled=False both set --amp"});
}

// The switch of one program beside the level of another.
TEST_F(RunSettings, ABareAmpTakesTheLevelThatAnAliasSays) {
  for (const char* both : {"--amp --opt-level O2", "--opt_level=O2 --amp"})
    ExpectShown("train --dataset=shapes --device=cpu --loss-scale=1024 " + std::string(both),
                {{"amp", {"O2", "flag: --opt_level=O2 (apex)"}}});
}

// What is measured may choose other bits from run to run, so the one asks for the other.
TEST_F(RunSettings, MeasuredKernelsNeedNotRepeat) {
  const std::string run = "train --dataset=shapes --device=cpu ";
  ExpectShown(run + "--kernel-opt", {{"deterministic", {"false", "default: --kernel_opt"}}});
  ExpectShown(run + "--kernel-opt --deterministic", {{"deterministic", {"true", "flag"}}});
  ExpectShown(run, {{"deterministic", {"true", "default"}}});
  ExpectSuccess(Run(SmallTraining()));
  ExpectShown("train --device=cpu --epochs=5 --resume=run/mlp/shapes/a/run --kernel-opt",
              {{"deterministic", {"false", "default: --kernel_opt"}}});
}

// As in Gemini.
TEST_F(RunSettings, AShareOfParametersAsksForDividingThem) {
  const std::string run = "train --dataset=shapes --device=cpu ";
  ExpectShown(run + "--shard_param_frac=0.5", {{"zero", {"3", "default: --shard_param_frac"}}});
  ExpectShown(run + "--shard_param_frac=0", {{"zero", {"2", "default: --shard_param_frac"}}});
  ExpectShown(run + "--shard_param_frac=0.5 --zero=1", {{"zero", {"1", "flag"}}});
  ExpectShown(run, {{"zero", {"0", "default"}}});
}

// Not those that are only planned, which may be larger than this machine.
TEST_F(RunSettings, KernelsOfRunsAloneAreMeasured) {
  const auto measured = [&] {
    const std::string folder = In("cache/switchyard");
    return std::filesystem::exists(folder) &&
           std::any_of(std::filesystem::directory_iterator(folder), {},
                       [](const auto& file) { return file.path().filename().string().starts_with("cpu-ways-"); });
  };
  ExpectSuccess(Run("explain --model=mlp --dataset=shapes --device=cpu --kernel_opt"));
  EXPECT_FALSE(measured());
  ExpectSuccess(Run(SmallTraining("--kernel_opt --deterministic")), {"--kernel_opt has no effect"});
  EXPECT_FALSE(measured());
  std::filesystem::remove_all(In("run"));
  ExpectSuccess(Run(SmallTraining("--kernel_opt")));
  EXPECT_TRUE(measured());
}

TEST_F(RunSettings, WordsOfPythonAreUnderstood) {
  ExpectShown(
      "train --dataset=shapes --device=cpu --amp=True --loss_scale=None --milestones=None --resume=None --tag=None "
      "--sync_batchnorm=False --max_norm=None",
      {{"amp", {"on", "flag: --amp=True (PyTorch)"}},
       {"loss_scale", {"-", "not given"}},
       {"tag", {"-", "not given"}},
       {"sync_batchnorm", {"false", "flag"}}});
}

TEST_F(RunSettings, ABareMixupHasItsUsualStrength) {
  const std::string run = "train --dataset=shapes --device=cpu ";
  ExpectShown(run + "--mixup --cutmix", {{"mixup", {"0.8", "flag"}}, {"cutmix", {"1", "flag"}}});
  ExpectShown(run + "--mixup 0.2 --cutmix=0.5", {{"mixup", {"0.2", "flag"}}, {"cutmix", {"0.5", "flag"}}});
  const std::string mlp = run + "--model=mlp ";
  ExpectShown(mlp, {{"label_smoothing", {"0", "default"}}});
  ExpectShown(mlp + "--cutmix", {{"label_smoothing", {"0.1", "default: --cutmix"}}});
  ExpectShown(mlp + "--mixup --label_smoothing=0", {{"label_smoothing", {"0", "flag"}}});
}

// As people type them who come from parsers that want a word behind every flag.
TEST_F(RunSettings, ASwitchTakesAYesOrNoBehindASpace) {
  ExpectShown(
      "train --dataset=shapes --device=cpu --opt-level O3 --keep-batchnorm-fp32 True --loss-scale 128.0 "
      "--fused_optimizer 0 --sync_batchnorm false --fp16 True --pin_memory True --static_graph 1 "
      "--show_settings yes --nodownload",
      {{"keep_batchnorm_fp32", {"true", "flag"}},
       {"fused_optimizer", {"false", "flag"}},
       {"sync_batchnorm", {"false", "flag"}},
       {"precision", {"fp16", "flag: --fp16=True (Hugging Face)"}},
       {"pin_memory", {"1", "flag: --pin_memory=True (PyTorch)"}},
       {"download", {"false", "flag"}}});
  ExpectRefused(Run("train --fp16 maybe"), {"found \"maybe\" behind --fp16; if it is its value, type --fp16=maybe"});
  ExpectRefused(Run("train --nodownload true"), {"found \"true\" behind --nodownload"});
  ExpectRefused(Run("train --lr 0.1 0.2"), {"expected flags alone, which begin with --, found \"0.2\"\n"});
  // Where files may follow, a word behind a switch is one.
  ExpectRefused(Run("predict --checkpoint=none --ema 1"), {"cannot read 1: "});
}

// What another program lets one choose and this one does not is said where it is asked for, or refused.
TEST_F(RunSettings, WhatIsAlwaysSoMayBeAskedForInTheWordsOfOthers) {
  ExpectSuccess(
      Run(SmallTraining("--gradient_as_bucket_view --norm_type=2.0"), Start::kAlone, "SWITCHYARD_STATIC_GRAPH=1"),
      {"  alias       --gradient_as_bucket_view=true (Colossal-AI) is always so: gradients are views",
       "  alias       --norm_type=2.0 (Colossal-AI) is always so: ",
       "  alias       SWITCHYARD_STATIC_GRAPH=1 (Colossal-AI) is always so: "});
  ExpectSuccess(Run(SmallTraining("--gradient_as_bucket_view=False --suffix=b")),
                {"--gradient_as_bucket_view=False (Colossal-AI) is always so: gradients are views into buckets"});
  ExpectRefused(Run(SmallTraining("--dp_outside=False")),
                {"--dp_outside=False: cannot be chosen here, where the data axis is the outermost of the mesh"});
  ExpectRefused(Run(SmallTraining("--placement_policy=auto")), {"switchyard explain --search"});
  ExpectRefused(Run(SmallTraining("--steady_cuda_ram_ratio=0.9")), {"--memory_limit says how much"});
}

TEST_F(RunSettings, ArgumentsOfColossalAisPluginsAreSettings) {
  const std::string explain = "explain --model=vit_micro --world=2 ";
  const auto of = [](const std::string& typed) { return "flag: " + typed + " (Colossal-AI)"; };
  ExpectShown(explain + "--partition_grad --reduce_bucket_size_in_m=12 --comm_dtype=torch.bfloat16",
              {{"zero", {"2", of("--partition_grad=true")}},
               {"bucket_mb", {"50.331648 MB", of("--reduce_bucket_size_in_m=12")}},
               {"allreduce_dtype", {"bf16", of("--comm_dtype=torch.bfloat16")}}});
  ExpectShown(explain + "--stage=1 --cpu_offload=False --min_chunk_size_m=32 --strict_ddp_mode",
              {{"zero", {"1", of("--stage=1")}},
               {"offload", {"none", of("--cpu_offload=False")}},
               {"bucket_mb", {"134.217728 MB", of("--min_chunk_size_m=32")}},
               {"tp", {"1", of("--strict_ddp_mode=true")}}});
  ExpectShown(explain + "--bucket_cap_mb=25", {{"bucket_mb", {"26.2144 MB", of("--bucket_cap_mb=25")}}});
  ExpectShown(explain + "--pp_size=2 --batch_size=4 --accumulation=2 --pp_style=1f1b",
              {{"pp_interleave", {"1", of("--pp_style=1f1b")}}});
  // Interleaved in two, or in as many chunks as another parameter of theirs says.
  ExpectShown(explain + "--pp_size=2 --batch_size=4 --accumulation=2 --pp_style=interleaved",
              {{"pp_interleave", {"2", of("--pp_style=interleaved")}}});
  for (const char* both :
       {"--pp_style=interleaved --num_model_chunks=3", "--num_model_chunks=3 --pp_style=interleaved"})
    ExpectShown(explain + "--pp_size=2 --batch_size=4 --accumulation=2 " + both,
                {{"pp_interleave", {"3", of("--num_model_chunks=3")}}});
  ExpectRefused(Run(explain + "--pp_style=zbv"), {"--pp_style=zbv: expected 1f1b or interleaved"});
  ExpectRefused(Run(explain + "--strict_ddp_mode --tp_size=2"), {"both set --tp"});
  // And those of apex.
  ExpectShown(explain + "--cast_model_type=torch.float16 --min_loss_scale=2 --max_loss_scale=131072 --verbosity=0",
              {{"precision", {"fp16", "flag: --cast_model_type=torch.float16 (apex)"}},
               {"min_scale", {"2", "flag: --min_loss_scale=2 (apex)"}},
               {"max_scale", {"131072", "flag: --max_loss_scale=131072 (apex)"}}});
  ExpectRefused(Run(explain + "--patch_torch_functions=0"), {"--amp=O1 as patched functions do"});
}

TEST_F(RunSettings, ValuesOfOtherProgramsAreOurs) {
  ExpectShown("explain --model=mlp --optimizer hybrid_adam --pin_memory",
              {{"optimizer", {"adamw", "flag: --optimizer=hybrid_adam (Colossal-AI)"}}, {"pin_memory", {"1", "flag"}}});
  ExpectShown("explain --model=mlp --optimizer=sgd --pin-memory=False",
              {{"optimizer", {"sgd", "flag"}}, {"pin_memory", {"0", "flag: --pin-memory=False (PyTorch)"}}});
  ExpectShown("explain --model=mlp", {{"pin_memory", {"auto", "default"}}});
  ExpectRefused(Run("explain --optimizer=hybrid_sgd"), {"--optimizer: expected sgd, adam"});
  ExpectSuccess(Run(SmallTraining("--optimizer=hybrid_adam --pin_memory=1")),
                {"  alias       --optimizer=hybrid_adam (Colossal-AI) is --optimizer=adamw",
                 "--pin_memory has no effect with --device=cpu"});
  EXPECT_EQ(Saved("run/mlp/shapes/a/run/config.json")["optimizer"], "adamw");
}

TEST_F(RunSettings, TheHelpOfExportNamesAllPrograms) {
  ExpectSuccess(Run("export --help"), {"huggingface", "timm", "torchvision", "microsoft", " torch [huggingface]"});
}

TEST_F(RunSettings, OverlapOfCommunicationIsPlannedAndChangesNoBit) {
  const auto plan = [&](const std::string& more) {
    const std::string explain = "explain --json --model=vit_micro --batch_size=2 --device=null --bucket_mb=0.1 ";
    return nlohmann::json::parse(Run(explain + more + " 2> /dev/null").output, nullptr, false);
  };
  const nlohmann::json beside = plan("--world=2"), in_turn = plan("--world=2 --overlap=0");
  ASSERT_TRUE(beside.is_object() && in_turn.is_object());
  EXPECT_EQ(beside["overlap"], true);
  EXPECT_EQ(in_turn["overlap"], false);
  EXPECT_GT(beside["collectives"], 2);
  EXPECT_EQ(beside["collectives"], in_turn["collectives"]);
  ExpectSuccess(Run("explain --model=mlp --world=2 --nooverlap"),
                {"--overlap=0: each collective right before what reads it"});

  std::set<std::string> weights;
  for (const char* more : {"--suffix=beside", "--suffix=in_turn --overlap=0"}) {
    ExpectSuccess(Run(SmallTraining(std::string("--bucket_mb=0.01 ") + more), Start::kLaunch));
    const std::string suffix = std::string(more).substr(9, std::string(more).find(' ') - 9);
    std::stringstream bytes;
    bytes << std::ifstream(In("run/mlp/shapes/" + suffix + "/run/checkpoints/latest/model.safetensors")).rdbuf();
    EXPECT_GT(bytes.str().size(), 1000u);
    weights.insert(bytes.str());
  }
  EXPECT_EQ(weights.size(), 1u);
  ExpectSuccess(Run(SmallTraining("--suffix=alone --overlap=0")), {"--overlap has no effect with one rank"});
}

// What launchers of others append, and what scripts hand on: it works where it is so, and is told what to do elsewhere.
TEST_F(RunSettings, PlacesThatScriptsAppendHaveToBeTheRanks) {
  const std::string place = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 ";
  ExpectShown(SmallTraining("--local-rank=0 --nproc_per_node=1 --addr=here"),
              {{"local_rank", {"0", "flag"}},
               {"nproc_per_node", {"1", "flag"}},
               {"master_addr", {"here", "flag: --addr=here (Ascend)"}}},
              place);
  ExpectShown(SmallTraining("--local_rank -1"), {{"local_rank", {"-1", "flag"}}});
  ExpectRefused(Run(SmallTraining("--local_rank=1"), Start::kAlone, place),
                {"--local_rank=1, but this process is local rank 0 of 1 (started by env); leave it out"});
  ExpectRefused(Run(SmallTraining("--local_rank=1")), {"(started by alone)", "switchyard launch --nproc_per_node=N"});
  ExpectRefused(
      Run(SmallTraining("--nproc_per_node=4")),
      {"this node has one rank of this run", "`switchyard launch --nproc_per_node=4 train …` starts as many"});
  ExpectRefused(Run(SmallTraining("--nproc_per_node=2 --mode=dp")), {"--devices=2"});
  ExpectRefused(Run(SmallTraining("--addr=there"), Start::kAlone, place + "MASTER_ADDR=here"),
                {"--master_addr=there, but MASTER_ADDR=here", "switchyard launch --master_addr=there"});
  ExpectSuccess(Run(SmallTraining("--addr=127.0.0.1 --nproc_per_node=2"), Start::kLaunch),
                {"alias       --addr=127.0.0.1 (Ascend) is --master_addr=127.0.0.1", "2 ranks"});
  const nlohmann::json kept = Saved("run/mlp/shapes/a/run/config.json");
  for (const char* place_of_a_start : {"nproc_per_node", "master_addr", "local_rank"})
    EXPECT_FALSE(kept.contains(place_of_a_start));
  ExpectSuccess(Run("launch --nproc_per_node=2 --addr=127.0.0.1 version"), {"switchyard"});
  ExpectSuccess(Run(SmallTraining("--suffix=b --addr=here")), {"--master_addr has no effect with one rank"});
}

TEST_F(RunSettings, PlacesOfAStartAreVariablesToo) {
  const std::string place = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 ";
  ExpectShown(SmallTraining(),
              {{"local_rank", {"0", "environment: SWITCHYARD_LOCAL_RANK"}},
               {"nproc_per_node", {"1", "environment: SWITCHYARD_NPROC_PER_NODE"}},
               {"master_addr", {"here", "environment: SWITCHYARD_MASTER_ADDR"}}},
              place + "SWITCHYARD_LOCAL_RANK=0 SWITCHYARD_NPROC_PER_NODE=1 SWITCHYARD_MASTER_ADDR=here");
  ExpectRefused(Run(SmallTraining(), Start::kAlone, place + "SWITCHYARD_LOCAL_RANK=1"), {"--local_rank=1, but this"});
  ExpectRefused(Run(SmallTraining(), Start::kAlone, place + "MASTER_ADDR=here SWITCHYARD_MASTER_ADDR=there"),
                {"--master_addr=there, but MASTER_ADDR=here"});
  // A shell may keep it for its launches.
  ExpectSuccess(Run(SmallTraining("--show_settings"), Start::kAlone, "SWITCHYARD_NPROC_PER_NODE=4"),
                {"SWITCHYARD_NPROC_PER_NODE=4 changes nothing here: this node has one rank of this run"});
  // Launchers read them, and the ranks are where these say.
  const std::string ranks = "launch bash -c \"echo \\$WORLD_SIZE at \\$SWITCHYARD_ADDR\\$SWITCHYARD_MASTER_ADDR.\"";
  for (const char* address : {"SWITCHYARD_ADDR", "SWITCHYARD_MASTER_ADDR"})
    ExpectSuccess(Run(ranks, Start::kAlone, address + std::string("=there SWITCHYARD_NPROC_PER_NODE=2")), {"2 at ."});
  ExpectRefused(Run("launch --nnodes=2 --node_rank=1 --master_port=1 --rdzv_timeout=1 true", Start::kAlone,
                    "SWITCHYARD_TOKEN=a_secret_of_this_test SWITCHYARD_ADDR=127.0.0.9"),
                {"127.0.0.9"});
}

TEST_F(RunSettings, TheConfigOfARunOnOneRankServesFour) {
  ExpectSuccess(Run(SmallTraining("--batch_size=16")));
  const std::string config = "--config=run/mlp/shapes/a/run/config.json";
  EXPECT_EQ(Saved("run/mlp/shapes/a/run/config.json")["global_batch_size"], 16);
  const auto on_four = Show("explain --world=4 " + config);
  EXPECT_EQ(on_four.at("global_batch_size").value, "16 images");
  EXPECT_EQ(on_four.at("batch_size").value, "4 images");
  EXPECT_THAT(on_four.at("batch_size").origin, HasSubstr("divided over 4 ranks"));
  ExpectSuccess(Run("train --suffix=b " + config, Start::kLaunch), {"16 images per update: 8 per rank, 2 ranks"});
  // And back: what did not fit into one rank's memory is not asked of it.
  const auto on_one = Show("explain --config=run/mlp/shapes/b/run/config.json");
  EXPECT_EQ(on_one.at("batch_size").value, "8 images");
  EXPECT_EQ(on_one.at("accumulation").value, "2");
  // What is typed stays, the rest follows; what cannot be is said.
  EXPECT_EQ(Show("explain --world=2 --accumulation=4 " + config).at("batch_size").value, "2 images");
  ExpectRefused(Run("explain --world=3 " + config), {"16 images cannot be divided over 3 data-parallel ranks", config});
  std::ofstream(In("c.json")) << R"({"model": "mlp", "batch_size": 8, "global_batch_size": 100})";
  ExpectRefused(Run("explain --config=c.json"), {"--batch_size=8", "--global_batch_size=100; give one of them"});
}

TEST_F(RunSettings, TheAxesOfTheMeshAreGivenAtOnce) {
  const std::string flag = "flag: --parallel=dp2,tp2,zero1,sp (several at once)";
  ExpectShown("explain --model=vit_micro --parallel=dp2,tp2,zero1,sp", {{"dp", {"2", flag}},
                                                                        {"tp", {"2", flag}},
                                                                        {"zero", {"1", flag}},
                                                                        {"sp", {"true", flag}},
                                                                        {"pp", {"1", "default"}}});
  std::ofstream(In("mesh.json")) << R"({"model": "vit_micro", "parallel": {"pp": 2, "zero": 1}})";
  ExpectShown("explain --config=mesh.json --world=2",
              {{"pp", {"2", "config file: --config=mesh.json: parallel"}}, {"tp", {"1", "default"}}});
  ExpectShown("explain --model=vit_micro --world=2",
              {{"tp", {"2", "environment: SWITCHYARD_PARALLEL=tp2 (several at once)"}}}, "SWITCHYARD_PARALLEL=tp2");
  // What --dp asks for is what explain plans, and what a start must have.
  ExpectSuccess(Run("explain --model=vit_micro --batch_size=4 --parallel=dp3,tp2"), {"6 ranks"});
  ExpectRefused(Run(kShapes + std::string("--model=mlp --parallel=dp3 --batch_size=4"), Start::kLaunch),
                {"--dp=3: expected 3 ranks, found 2; start as many (switchyard launch --nproc_per_node=3, "});
  ExpectRefused(Run("explain --model=vit_micro --paralel=tp2"), {"did you mean --parallel?"});
  ExpectRefused(
      Run("explain --model=vit_micro --parallel=tp2,ep4"),
      {"--parallel: expected numbers behind dp, tp, pp, zero, sp, separated by commas, as in dp2,tp2; found \"ep4\""});
}

TEST_F(RunSettings, ARunThatGoesOnSaysWhatItTookFromItsCheckpoint) {
  ExpectSuccess(Run(SmallTraining("--lr=0.5 --dropout=0.25")));
  const std::string run = "run/mlp/shapes/a/run";
  const auto shown = Show("train --device=cpu --epochs=5 --resume=" + run);
  EXPECT_EQ(shown.at("lr").value, "0.5");
  EXPECT_THAT(shown.at("lr").origin, HasSubstr("checkpoint: "));
  EXPECT_EQ(shown.at("dropout").value, "0.25");
  EXPECT_EQ(shown.at("steps").value, "-") << "the run's 6 steps yield to the epochs that are typed";
  EXPECT_EQ(shown.at("output").origin, "default") << "a place is never taken along";
}

// 0 is a rate as any other is, in files too.
TEST_F(RunSettings, ARunWithoutARateStaysOne) {
  ExpectSuccess(Run(SmallTraining("--lr=0 --min_lr=0")), {"adamw, lr 0,"});
  ExpectSuccess(Run("train --device=cpu --epochs=5 --resume=run/mlp/shapes/a/run"), {"adamw, lr 0,"});
  std::ofstream(In("c.json")) << R"({"lr": 0, "min_lr": 0})";
  ExpectShown("train --model=vit_micro --dataset=shapes --config=c.json",
              {{"lr", {"0", "config file: --config=c.json"}}});
}

TEST_F(RunSettings, WhatAnEvaluationDoesNotReadIsSaid) {
  ExpectSuccess(Run(SmallTraining()));
  const std::string evaluation =
      "--device=cpu --checkpoint=run/mlp/shapes/a/run --lr=0 --min_lr=1 --steps=9 --reset_head";
  for (const std::string command : {"eval ", "export x --names=timm "}) {
    ExpectSuccess(Run(command + evaluation),
                  {"--lr has no effect with", "--steps has no effect with", "--reset_head has no effect with"});
  }
}

TEST_F(RunSettings, EachSettingOfAugmentationReachesThePixels) {
  // The images are larger than what the model takes, so that the filter matters.
  std::set<std::string> weights;
  const auto weights_with = [&](const std::string& flags) {
    std::filesystem::remove_all(In("run"));
    ExpectSuccess(Run(SmallTraining("--augmentation=resized_crop " + flags)));
    std::stringstream bytes;
    bytes << std::ifstream(SmallRun() + "/checkpoints/latest/model.safetensors").rdbuf();
    return bytes.str();
  };
  size_t runs = 0;
  for (const char* flags :
       {"", "--auto_augment=rand-m9-n4-p1", "--erase_prob=1", "--erase_prob=1 --erase_mode=rand",
        "--erase_prob=1 --erase_count=5", "--train_interpolation=bicubic", "--train_interpolation=random"}) {
    const std::string found = weights_with(flags);
    ASSERT_FALSE(found.empty());
    weights.insert(found);
    EXPECT_EQ(weights.size(), ++runs) << flags << " changed nothing";
  }
  std::filesystem::remove_all(In("run"));
  ExpectSuccess(
      Run(SmallTraining("--aa=rand-m9 --color_jitter=0.4 --recount=2")),
      {"--color_jitter has no effect with --auto_augment", "--erase_count has no effect with --erase_prob=0"});
  ExpectRefused(Run(SmallTraining("--auto_augment=rand-m9-q2")), {"--auto_augment", "rand-m9-mstd0.5-inc1", "q2"});
  ExpectRefused(Run(SmallTraining("--erase_mode=pixle")), {"--erase_mode", "did you mean pixel?"});
}

// What only the data say is left open where they are not here: nothing is fetched to list settings.
TEST_F(RunSettings, AreShownWithoutTheData) {
  const std::string nowhere = "SWITCHYARD_DATA= XDG_CACHE_HOME=" + In("nowhere");
  const CommandResult result = Run("train --dataset=beans --model=resnet18 --show_settings", Start::kAlone, nowhere);
  ExpectSuccess(result, {"the data are not here", "optimizer"});
  EXPECT_THAT(result.output, Not(HasSubstr("fetching")));
  EXPECT_FALSE(std::filesystem::exists(In("nowhere/switchyard/data")));
}

}  // namespace
}  // namespace switchyard
