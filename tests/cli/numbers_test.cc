// What the program tells in numbers is of what it says it is of.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace switchyard {
namespace {

class Numbers : public ProgramTest {
 protected:
  // The number behind `label`, which stands in the output.
  static double After(const CommandResult& result, const std::string& label) {
    const size_t at = result.output.find(label);
    EXPECT_NE(at, std::string::npos) << label << "\n" << result.output;
    return at == std::string::npos ? 0 : std::strtod(result.output.c_str() + at + label.size(), nullptr);
  }
  static nlohmann::json JsonIn(const CommandResult& result) {
    ExpectSuccess(result);
    return nlohmann::json::parse(result.output.substr(result.output.find('{')), nullptr, false);
  }
};

// The second stage has a wide classifier.
constexpr char kStages[] =
    "train --model=vit_micro --dataset=synthetic --classes=20000 --train_size=128 --validation_size=16 --steps=1 "
    "--pp=2 "
    "--batch_size=16 --accumulation=2 --device=cpu --output=run --suffix=";

TEST_F(Numbers, MemoryIsThatOfTheRankThatHasMost) {
  const CommandResult run = Run(std::string(kStages) + "a --memory_limit=60MB", Start::kLaunch);
  ExpectSuccess(run, {"MB of device memory at most on a rank (--memory_limit=60MB)"});
  EXPECT_EQ(After(run, "0 fallbacks, "), After(run, "memory      ")) << run.output;
}

TEST_F(Numbers, WhatWouldFitFitsOnEveryStage) {
  // The first stage would fit with less in a batch, the second never does.
  ExpectRefused(Run(std::string(kStages) + "b --memory_limit=9MB", Start::kLaunch),
                {"none of the settings that take less would fit"});
}

TEST_F(Numbers, BenchCountsAllThatAnUpdateComputesOnAllRanks) {
  const std::string bench =
      "bench --model=mlp --image_size=16 --width=32 --device=cpu --warmup_steps=1 --steps=2 --json ";
  const auto of = [&](const std::string& more, Start start) {
    return JsonIn(Run(bench + more, start)).at("gflop_per_update").get<double>();
  };
  const double once = of("--batch_size=256", Start::kAlone), update = 0.02 * once;
  EXPECT_GT(once, 0);
  EXPECT_NEAR(of("--batch_size=256 --accumulation=4", Start::kAlone), 4 * once, 4 * update);
  EXPECT_NEAR(of("--batch_size=256", Start::kLaunch), 2 * once, 2 * update);
  const nlohmann::json explained = JsonIn(
      Run("explain --model=mlp --image_size=16 --width=32 --device=cpu --batch_size=256 --accumulation=4 --json"));
  EXPECT_NEAR(explained.at("gflop_per_update").get<double>(), 4 * explained.at("gflop_per_step").get<double>(),
              4 * update);
  EXPECT_EQ(explained.at("accumulation"), 4);
}

TEST_F(Numbers, TheSummarySaysWhoseTheBestIs) {
  ExpectSuccess(Run(SmallTraining("--ema_decay=0.9 --best_by=ema")), {" of the averaged weights)"});
}

TEST_F(Numbers, UpdatesThatWereLeftOutAreNotTrained) {
  const std::string skips =
      "--lr=2e9 --clip=0 --optimizer=sgd --momentum=0 --warmup=0 --schedule=constant --on_nonfinite=skip ";
  ExpectRefused(Run(SmallTraining(skips)), {"is not finite with these weights"});
  ExpectRefused(Run("train --resume=run/mlp/shapes/a/run --steps=12"), {", 0 of them here in "});
}

}  // namespace
}  // namespace switchyard
