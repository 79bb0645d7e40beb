// Training on the opencl plugin by the program itself, alone and on two ranks with mpi: every op on the device, the
// losses of the cpu plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace switchyard {
namespace {

class OpenClTraining : public ProgramTest {
 protected:
  static std::string Common(const std::string& model) {
    return "train --dataset=shapes --train_size=64 --validation_size=8 --batch_size=4 --steps=6 --log_every=1 "
           "--workers=1 --warmup=0 --max_fallback=0 --output=run --suffix=a --model=" +
           model;
  }
  static std::vector<double> Losses(const std::string& output) {
    std::vector<double> losses;
    const std::regex line("\\d+/(\\d+)  loss ([0-9.]+)");
    for (std::sregex_iterator it(output.begin(), output.end(), line), end; it != end; ++it) {
      losses.push_back(std::stod((*it)[2]));
    }
    return losses;
  }
  // First and last logged losses: lines between may be left out where steps are quick.
  void ExpectLossesOfTheCpu(const std::string& arguments, Start start) {
    const CommandResult opencl = Run(arguments + " --device=opencl", start);
    ExpectSuccess(opencl, {"opencl device 0", "0 fallbacks"});
    const CommandResult cpu = Run(arguments + " --device=cpu", start);
    ExpectSuccess(cpu);
    const std::vector<double> found = Losses(opencl.output), expected = Losses(cpu.output);
    ASSERT_GE(expected.size(), 2u) << cpu.output;
    ASSERT_GE(found.size(), 2u) << opencl.output;
    EXPECT_NEAR(found.front(), expected.front(), 1e-3 * expected.front());
    EXPECT_NEAR(found.back(), expected.back(), 1e-3 * expected.back());
    EXPECT_NE(expected.front(), expected.back()) << "nothing was trained";
  }
};

TEST_F(OpenClTraining, AnMlpHasTheLossesOfTheCpu) { ExpectLossesOfTheCpu(Common("mlp"), Start::kAlone); }

TEST_F(OpenClTraining, AVitTinyHasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(Common("vit_tiny") + " --image_size=64 --classes=10", Start::kAlone);
}

TEST_F(OpenClTraining, AnMlpOnTwoRanksWithMpiHasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(Common("mlp") + " --collective=mpi", Start::kMpirun);
}

TEST_F(OpenClTraining, AVitTinyOnTwoRanksWithMpiHasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(Common("vit_tiny") + " --image_size=64 --classes=10 --collective=mpi", Start::kMpirun);
}

TEST_F(OpenClTraining, TheFallbackReportOfAVitTinyIsEmpty) {
  const CommandResult report = Run("explain --model=vit_tiny --batch_size=4 --device=opencl");
  ExpectSuccess(report, {"fallbacks to the reference plugin: none"});
}

}  // namespace
}  // namespace switchyard
