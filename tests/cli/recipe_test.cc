// Optimizer and schedule as a user sets them: what the banner says, which settings contradict each other or do nothing,
// what `explain` counts, and what happens to an update whose gradients are not finite.
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class RecipeSettings : public RunFilesTest {
 protected:
  nlohmann::json SavedConfig() const { return Saved("run/mlp/shapes/a/run/config.json"); }
  nlohmann::json Json(const std::string& arguments, Start start = Start::kAlone) const {
    const CommandResult result = Run(arguments, start);
    EXPECT_EQ(result.code, 0) << result.output;
    const size_t begin = result.output.find('{');
    return nlohmann::json::parse(begin == std::string::npos ? "" : result.output.substr(begin), nullptr, false);
  }
};

TEST_F(RecipeSettings, TheBannerShowsThePeakAndWhatItWasScaledFrom) {
  ExpectSuccess(Run(SmallTraining("--lr=0.5 --scale_lr=linear --base_batch_size=16 --warmup=0.125e")),
                {"lr 0.125 (0.5 scaled by --scale_lr=linear from batch 16 to 4)", "after 0.125 epochs of warm-up"});
  ExpectSuccess(Run(SmallTraining("--lr=0.5 --warmup=0 --suffix=b")), {"lr 0.5, cosine, weight decay"});
}

TEST_F(RecipeSettings, GivingOneSettingLeavesTheOthersToTheRecipe) {
  ExpectSuccess(
      Run("train --model=vit_micro --dataset=shapes --channels=1 --train_size=8 --validation_size=4 "
          "--batch_size=4 --steps=1 --device=cpu --output=run --suffix=a --lr=0.002"));
  std::ifstream file(In("run/vit_micro/shapes/a/run/config.json"));
  const nlohmann::json saved = nlohmann::json::parse(file, nullptr, false);
  EXPECT_EQ(saved["lr"], 0.002);
  EXPECT_EQ(saved["min_lr"], 1e-5);
}

// A bare --amp is O1 in fp16; what stands behind it is its value only if it is a level.
TEST_F(RecipeSettings, MixedPrecisionIsSaidByOneWord) {
  ExpectSuccess(Run(SmallTraining("--amp --log_every=2")),
                {"precision   fp16 (O1), fp32 master weights, dynamic loss scale from 65536 (default)"});
  // What the device decided is the run's from now on, wherever it goes on.
  EXPECT_EQ(SavedConfig()["precision"], "fp16");
  EXPECT_EQ(SavedConfig()["amp"], "O1");
  EXPECT_EQ(SavedConfig()["loss_scale"], "dynamic");
  std::ifstream log(SmallRun() + "/0/log/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(log, line));
  EXPECT_EQ(nlohmann::json::parse(line)["loss_scale"], 65536);
  ExpectSuccess(Run(SmallTraining("--suffix=b --amp O2 --precision=bf16 --loss_scale=128")),
                {"bf16 (O2), norms in fp32, fp32 master weights, loss scale 128"});
  ExpectSuccess(Run(SmallTraining("--suffix=c --precision=bf16 --growth_interval=5")),
                {"bf16 (O1), fp32 master weights\n",
                 "--growth_interval has no effect with --precision=bf16: it belongs to --loss_scale=dynamic"});
  ExpectSuccess(Run("eval --checkpoint=run/mlp/shapes/b/run --device=cpu"), {"top-1"});
}

TEST_F(RecipeSettings, TheLossScaleOfAResumedRunFollowsItsPrecision) {
  const auto resumed = [this](const std::string& run, const std::string& more) {
    return Run("train --resume=run/mlp/shapes/" + run + "/run --device=cpu " + more);
  };
  ExpectSuccess(Run(SmallTraining("--precision=fp16")), {"dynamic loss scale from 65536"});
  const CommandResult bf16 = resumed("a", "--precision=bf16 --steps=8");
  ExpectSuccess(bf16, {"bf16 (O1), fp32 master weights\n", "loss scale of this run, dynamic, was for --precision=fp16",
                       "--loss_scale=dynamic would keep it"});
  std::ifstream state(In("run/mlp/shapes/a/run/checkpoints/latest/state.json"));
  EXPECT_FALSE(nlohmann::json::parse(state, nullptr, false)["config"].contains("loss_scale"));
  // And back, where it starts anew; unless it is the user's.
  ExpectSuccess(resumed("a", "--precision=fp16 --steps=10"), {"dynamic loss scale from the checkpoint's, else 65536"});
  ExpectSuccess(resumed("a", "--precision=bf16 --steps=12 --loss_scale=dynamic"), {"bf16 (O1)", "dynamic loss scale"});
  ExpectSuccess(resumed("a", "--precision=fp32 --steps=14"), {"fp32, dynamic loss scale"});
  ExpectSuccess(Run(SmallTraining("--suffix=b --precision=fp16 --loss_scale=128")), {"loss scale 128"});
  const CommandResult kept = resumed("b", "--precision=bf16 --steps=8");
  ExpectSuccess(kept, {"bf16 (O1), fp32 master weights, loss scale 128"});
  EXPECT_THAT(kept.output, Not(HasSubstr("would keep it")));
}

TEST_F(RecipeSettings, ContradictionsAreRefusedAndSayWhatToDo) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--schedule=multistep", "--schedule=multistep needs --milestones"},
      {"--schedule=multistep --milestones=4,2", "expected ascending numbers of updates, found 2 behind 4"},
      {"--schedule=multistep --milestones=2,2", "found 2 behind 2"},
      {"--schedule=multistep --milestones=-3",
       "whole and at least 1, of epochs (30e), or shares of the run (0.3), found \"-3\""},
      {"--schedule=multistep --milestones=1.5", "found \"1.5\""},
      {"--schedule=multistep --milestones=1,soon", "found \"soon\""},
      {"--schedule=multistep --milestones=0e", "found \"0e\""},
      {"--schedule=multistep --milestones=3e,4", "expected epochs throughout, found 4 beside 3e"},
      {"--schedule=multistep --milestones=3e,2e", "expected ascending epochs, found 2e behind 3"},
      {"--schedule=step --step_size=e", "--step_size: expected numbers of updates (1000)"},
      {"--schedule=step", "--schedule=step needs --step_size"},
      {"--optimizer=sgd --nesterov --momentum=0", "give a momentum, as --momentum=0.9, or --nonesterov"},
      {"--nesterov", "--nesterov is a momentum of sgd and lars, and --optimizer=adamw"},
      {"--optimizer=sgd --momentum=1", "--momentum: expected at least 0 and below 1, found 1"},
      {"--optimizer=sgd --nesterov --dampening=0.1", "--dampening=0.1 takes a part of them; give --dampening=0"},
      {"--layer_decay=0", "--layer_decay: expected above 0"},
      {"--ema_decay=1", "--ema_decay: expected below 1"},
      {"--best_by=ema", "give their memory, as --ema_decay=0.9999"},
      {"--beta1=1", "--beta1: expected at least 0 and below 1"},
      {"--beta2=1", "--beta2: expected at least 0 and below 1"},
      {"--gamma=2 --schedule=step --step_size=1", "--gamma: expected above 0 and at most 1, found 2"},
      {"--gamma=0", "--gamma: expected above 0"},
      {"--amp=O4", "--amp: expected O0, O1, O2 or O3, found O4"},
      {"--amp --precision=fp32", "--amp=O1 computes in a half type, and --precision=fp32"},
      {"--amp=O2 --growth_interval=100", "--growth_interval=100 contradicts the preset apex of --amp=O2"},
      {"--lr=0.001 --min_lr=0.01", "--lr=0.001 would rise to --min_lr=0.01"},
      {"--lr=0.001 --warmup_lr=0.01 --warmup=2", "would fall from --warmup_lr=0.01"},
      {"--batch_size=auto --global_batch_size=8", "both decide the batch; give one of them"},
      {"--on_nonfinite=skp", "expected stop or skip, found skp (did you mean skip?)"},
      {"--heads=3",
       "it has no --heads; what it has is --image_size, --channels, --classes, --width, --depth, --dropout"},
      {"--patch=4", "it has no --patch"},
      {"--mlp_ratio=2", "it has no --mlp_ratio"},
      {"--drop_path=0.1", "it has no --drop_path"},
  };
  for (const auto& [flags, words] : cases) ExpectRefused(Run(SmallTraining(flags)), {words});
}

TEST_F(RecipeSettings, ASettingThatDoesNothingIsSaidSo) {
  const CommandResult result = Run(SmallTraining(
      "--momentum=0.5 --step_size=3 --scale_lr_factor=2 --epochs=7 --warmup=0 --warmup_lr=0.0001 --beta2=0.9"));
  ExpectSuccess(result, {"--momentum has no effect with --optimizer=adamw: it belongs to sgd",
                         "--step_size has no effect with --schedule=cosine", "--scale_lr_factor has no effect",
                         "--epochs has no effect with --steps=6", "--warmup_lr has no effect with --warmup=0"});
  EXPECT_THAT(result.output, Not(HasSubstr("--beta2 has no effect")));
  ExpectSuccess(Run(SmallTraining("--suffix=lamb --optimizer=lamb --weight_decay=0 --adam_w_mode=1 --clip=2 "
                                  "--momentum=0.5 --max_grad_norm=2 --trust_coefficient=0.1 --dampening=0.1")),
                {"--adam_w_mode has no effect with --weight_decay=0", "lamb clips by --max_grad_norm",
                 "--momentum has no effect with --optimizer=lamb: it belongs to sgd and lars",
                 "--trust_coefficient has no effect with --optimizer=lamb", "--dampening has no effect"});
  ExpectSuccess(
      Run(SmallTraining("--suffix=lars --optimizer=lars --weight_decay=0 --trust_coefficient=0.1 --beta1=0.8 "
                        "--use_nvlamb --max_grad_norm=3")),
      {"--trust_coefficient has no effect with --weight_decay=0", "--beta1 has no effect with --optimizer=lars",
       "--use_nvlamb has no effect with --optimizer=lars", "--max_grad_norm has no effect with --optimizer=lars"});
  ExpectSuccess(
      Run(SmallTraining("--suffix=skip --precision=fp16 --on_nonfinite=skip --sync_batchnorm --zero=3")),
      {"--on_nonfinite=skip has no effect with --loss_scale=dynamic", "--sync_batchnorm has no effect with one rank",
       "--sync_batchnorm has no effect with --model=mlp", "--zero has no effect with one rank"});
  ExpectSuccess(Run(SmallTraining("--suffix=late --schedule=multistep --milestones=50,60")),
                {"--milestones has no effect: the rate would first change after 50 updates, and the run has 6"});
  ExpectSuccess(Run(SmallTraining("--suffix=short --per_epoch")), {"with --per_epoch the rate never changes"});
  ExpectSuccess(
      Run(SmallTraining("--suffix=task --window_overlap=0.5 --loss=ce")),
      {"--window_overlap has no effect with --model=mlp: it belongs to models of volumes", "--loss has no effect"});
  ExpectSuccess(Run("eval --checkpoint=run/mlp/shapes/a/run --device=cpu --window_weights=gaussian"),
                {"--window_weights has no effect with --model=mlp"});
  const std::string device = " --checkpoint=run/mlp/shapes/a/run --device=cpu ";
  ExpectSuccess(Run("eval" + device + "--offload=all --offload_dir=nowhere"),
                {"--offload has no effect with eval: it belongs to train", "--offload_dir has no effect with eval"});
  ExpectSuccess(Run("export exported" + device + "--names=timm --offload=optimizer"),
                {"--offload has no effect with export"});
  EXPECT_THAT(Run("eval" + device + "--offload=none").output, Not(HasSubstr("has no effect")));
  // The settings of a whole run are no choice of each of them, and what works is not spoken of.
  for (const std::string arguments : {"train --config=run/mlp/shapes/a/run/config.json --suffix=b",
                                      "train --config=run/mlp/shapes/a/run/config.json --suffix=c --optimizer=sgd "
                                      "--momentum=0.9 --schedule=multistep --milestones=2,4 --gamma=0.5"}) {
    const CommandResult again = Run(arguments);
    ExpectSuccess(again);
    EXPECT_THAT(again.output, Not(HasSubstr("has no effect")));
  }
}

TEST_F(RecipeSettings, AveragedWeightsAreLoggedSavedAndEvaluated) {
  ExpectSuccess(Run(SmallTraining("--ema_decay=0.5 --best_by=ema")), {"of averaged weights loss"});
  std::ifstream log(In("run/mlp/shapes/a/run/0/log/metrics.jsonl"));
  nlohmann::json last;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains("ema_top1")) last = record;
  }
  ASSERT_TRUE(last.contains("ema_val_loss"));
  const nlohmann::json averaged = Json("eval --ema --json --checkpoint=run/mlp/shapes/a/run");
  EXPECT_NEAR(averaged["loss"].get<double>(), last["ema_val_loss"].get<double>(), 1e-5);
  EXPECT_NEAR(Json("eval --json --checkpoint=run/mlp/shapes/a/run")["loss"].get<double>(),
              last["val_loss"].get<double>(), 1e-5);
  EXPECT_NE(last["ema_val_loss"], last["val_loss"]);
  ExpectSuccess(Run("plot run"), {"ema_top1 "});
  std::ifstream curve(In("run/mlp/shapes/a/run/loss.svg"));
  EXPECT_THAT((std::string{std::istreambuf_iterator<char>(curve), {}}), HasSubstr("of the averaged weights"));
  EXPECT_THAT(Run("eval --checkpoint=run/mlp/shapes/a/run").output, HasSubstr("by their averages (--best_by=ema)"));
  EXPECT_THAT(Run("eval --ema --checkpoint=run/mlp/shapes/a/run").output, Not(HasSubstr("--best_by")));
  // Another kind of weights decides: what was best among the first is no bar for the second.
  const std::string resumed = "train --resume=run/mlp/shapes/a/run --steps=8 --save_every=1 ";
  const CommandResult anew = Run(resumed + "--best_by=weights");
  ExpectSuccess(anew, {"was chosen with --best_by=ema; with --best_by=weights the comparison starts anew"});
  EXPECT_THAT(Run("train --resume=run/mlp/shapes/a/run --steps=10").output, Not(HasSubstr("starts anew")));
  ExpectSuccess(Run("export averaged --ema --names=timm --checkpoint=run/mlp/shapes/a/run"));
  ExpectSuccess(Run(SmallTraining("--suffix=without")));
  ExpectRefused(Run("eval --ema --checkpoint=run/mlp/shapes/without/run"),
                {"there are no averaged weights; a run keeps them with --ema_decay"});
}

// There are averages of weights and none of running statistics, which are those of training for both.
TEST_F(RecipeSettings, AveragedWeightsOfAModelWithBatchNormsAreEvaluated) {
  ExpectSuccess(
      Run("train --model=resnet18 --width=4 --dataset=shapes --image_size=32 --train_size=32 --validation_size=16 "
          "--batch_size=8 --epochs=1 --lr=0.01 --ema_decay=0.5 --device=cpu --threads=1 --workers=1 --output=run "
          "--suffix=ema"));
  const std::string run = "run/resnet18/shapes/ema/run";
  std::ifstream log(In(run + "/0/log/metrics.jsonl"));
  double logged = 0;
  for (std::string line; std::getline(log, line);) logged = nlohmann::json::parse(line).value("ema_val_loss", logged);
  EXPECT_NEAR(Json("eval --ema --json --checkpoint=" + run)["loss"].get<double>(), logged, 1e-4);
}

TEST_F(RecipeSettings, ExplainPlansTheMemoryThatARunTakes) {
  const std::string settings =
      " --json --model=mlp --dataset=shapes --image_size=28 --channels=3 --classes=10 --width=16 --train_size=64 "
      "--batch_size=4 --steps=3 --device=cpu ";
  for (const std::string optimizer : {"--optimizer=sgd", "--optimizer=sgd --momentum=0", "--optimizer=sgd --nesterov",
                                      "--optimizer=adam", "--optimizer=adamw --accumulation=3",
                                      "--optimizer=lamb --ema_decay=0.99", "--optimizer=lars", "--nofused_optimizer"}) {
    const nlohmann::json run = Json("bench --warmup_steps=0" + settings + optimizer);
    const nlohmann::json plan = Json("explain" + settings + optimizer);
    EXPECT_EQ(plan["memory_bytes"], run["memory_bytes"]) << optimizer;
  }
  EXPECT_EQ(Json("explain --threads=1 --world=2" + settings)["memory_bytes"],
            Json("bench --threads=1 --warmup_steps=0" + settings, Start::kLaunch)["memory_bytes"]);
}

// Classes, channels and the number of updates are the dataset's, as in the run.
TEST_F(RecipeSettings, ExplainOfANamedDatasetCountsTheWholeRun) {
  const std::string settings =
      " --model=mlp --width=16 --dataset=shapes --train_size=64 --batch_size=4 --epochs=50 --device=cpu --threads=1 ";
  ExpectSuccess(Run("train --output=run --tag=t --suffix=a --notensorboard --log_every=1" + settings));
  std::ifstream log(In("run/mlp/t/a/run/0/log/metrics.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(log, line));
  const nlohmann::json plan = Json("explain --json" + settings);
  EXPECT_EQ(plan["updates"], 800);
  EXPECT_EQ(plan["memory_bytes"], nlohmann::json::parse(line)["memory_bytes"]);
  ExpectSuccess(Run("explain --model=mlp --batch_size=4 --device=cpu"),
                {"not counted: 4 bytes of state for each update"});
}

// Rates at which a run diverges within a few updates.
constexpr char kDiverging[] = " --optimizer=sgd --momentum=0 --clip=0 --warmup=0 --schedule=constant --lr=1e9 ";

TEST_F(RecipeSettings, GradientsThatAreNotFiniteStopEveryRankAtOnce) {
  int runs = 0;
  for (const Start start : {Start::kAlone, Start::kLaunch})
    // null runs asynchronously: there the norm is read while the next update is under way.
    for (const std::string device : {"cpu", "null"})
      for (const std::string log : {"--log_every=1", "--log_every=1000", "--log_every=1000 --accumulation=2"}) {
        const CommandResult result = Run(SmallTraining(fmt::format("{} --steps=30 --device={} --output_suffix=r{} {}",
                                                                   kDiverging, device, ++runs, log)),
                                         start);
        ExpectRefused(result, {"the norm of the gradients is", "--on_nonfinite=skip"});
        EXPECT_THAT(result.output, ContainsRegex("at update [1-9] "));
        EXPECT_THAT(
            result.output,
            ContainsRegex(
                "(that is not finite.* is that of|largest is that of|the parameter) (head|fc[12]).(weight|bias)"));
        EXPECT_THAT(result.output, Not(HasSubstr("accuracy")));
      }
}

TEST_F(RecipeSettings, AStaticLossScaleIsNamedBesideTheTensorThatIsNotFinite) {
  const CommandResult result =
      Run(SmallTraining(std::string(kDiverging) + "--steps=30 --precision=fp16 --loss_scale=128"));
  ExpectRefused(result, {"The loss is scaled by 128: try --loss_scale=dynamic."});
  EXPECT_THAT(result.output, ContainsRegex("(that is not finite.* is that of|largest is that of|the parameter) "
                                           "(head|fc[12]).(weight|bias)"));
}

TEST_F(RecipeSettings, ARunThatTrainedNothingSaysSo) {
  const std::string none = "nothing was trained, and the weights are those that the run began with";
  ExpectSuccess(Run(SmallTraining("--amp=O1 --init_scale=4e9")),
                {"6 of 6 updates were left out", none, "trained 0 updates"});
  EXPECT_THAT(Run("plot run").output, HasSubstr("0 of 6"));
  ExpectSuccess(Run(SmallTraining("--suffix=b --lr=0")), {"with --lr=0 nothing is learned"});
  EXPECT_THAT(Run(SmallTraining("--suffix=c --amp=O1")).output, Not(HasSubstr("left out")));
}

// A user who wants small images enlarged is not kept from it, and one who does not learns what to write.
TEST_F(RecipeSettings, EnlargedImagesAreHintedAt) {
  for (const std::string name : {"train/a", "train/b", "val/a", "val/b"}) {
    folder_.Write("squares/" + name + "/0.png", PngBytes(Pattern(16, 16, 3)));
    folder_.Write("squares/" + name + "/1.png", PngBytes(Pattern(16, 16, 3)));
  }
  const std::string run =
      "train --dataset=imagefolder --data=squares --batch_size=2 --steps=1 --workers=1 --output=run ";
  ExpectSuccess(Run(run + "--model=resnet18 --width=4 --image_size=64 --suffix=a"),
                {"images of 16 x 16 are enlarged to 64 x 64; --image_size=16 takes"});
  // As they are, and of a model whose patches would have to be smaller.
  for (const std::string model :
       {"resnet18 --width=4 --image_size=16 --suffix=b", "vit_micro --image_size=56 --suffix=c"}) {
    EXPECT_THAT(Run(run + "--model=" + model).output, AllOf(HasSubstr("trained 1 update"), Not(HasSubstr("enlarged"))));
  }
}

TEST_F(RecipeSettings, WhatWasSavedBeforeAnUpdateThatIsNotFiniteStays) {
  ExpectRefused(Run(SmallTraining(std::string(kDiverging) + "--steps=30 --save_every=1 --keep=0")),
                {"what was saved before is whole"});
  ExpectSuccess(Run("eval --checkpoint=run/mlp/shapes/a/run/checkpoints/step-00000001"), {"20 images: loss"});
}

TEST_F(RecipeSettings, UpdatesThatAreSkippedAreCountedAndNotForEver) {
  ExpectRefused(Run(SmallTraining(std::string(kDiverging) + "--steps=12 --on_nonfinite=skip")),
                {"is left out: the norm of its gradients is", "(4 so far)", "  skipped     ",
                 "is not finite with these weights"});
  ExpectRefused(
      Run(SmallTraining(std::string(kDiverging) + "--steps=300 --train_size=512 --on_nonfinite=skip --suffix=b")),
      {"(64 so far)", "the 100th in a row, and --on_nonfinite=skip leaves out no more", "or find the first bad value"});
}

}  // namespace
}  // namespace switchyard
