// Training on the opencl plugin by the program itself, alone and on two ranks with mpi: every op on the device, the
// losses of the cpu plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

class OpenClTraining : public ProgramTest {
 protected:
  static std::string Common(const std::string& model) {
    return "train --dataset=shapes --train_size=64 --validation_size=8 --batch_size=4 --steps=6 --log_every=1 "
           "--workers=1 --warmup=0 --max_fallback=0 --output=run --suffix=a --model=" +
           model;
  }
  static std::string SmallUNet() {
    return Common("unet3d") +
           " --dataset=synthetic --patch_size=16,16,16 --width=8 --levels=2 --classes=3 --steps=2 --batch_size=2 "
           "--validation_size=2 --lr=0.001";
  }
  void ExpectLossesOfTheCpu(const std::string& arguments, Start start, size_t updates = 6, double tolerance = 1e-3) {
    const CommandResult opencl = Run(arguments + " --suffix=opencl --device=opencl", start);
    ExpectSuccess(opencl, {"opencl device 0", "0 fallbacks"});
    const CommandResult cpu = Run(arguments + " --suffix=cpu --device=cpu", start);
    ExpectSuccess(cpu);
    const std::vector<double> found = ranks::LossesOf(In("run"), "opencl"),
                              expected = ranks::LossesOf(In("run"), "cpu");
    ASSERT_EQ(expected.size(), updates) << cpu.output;
    ASSERT_EQ(found.size(), expected.size()) << opencl.output;
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], tolerance * expected[i]) << "update " << i;
    EXPECT_NE(expected.front(), expected.back()) << "nothing was trained";
  }
};

TEST_F(OpenClTraining, AnMlpHasTheLossesOfTheCpu) { ExpectLossesOfTheCpu(Common("mlp"), Start::kAlone); }

TEST_F(OpenClTraining, AVitTinyHasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(Common("vit_tiny") + " --image_size=64 --classes=10", Start::kAlone);
}

// A small learning rate: batch norm over a few values makes later losses differ by what rounding differs.
TEST_F(OpenClTraining, AResNet18HasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(Common("resnet18") + " --image_size=64 --stem=imagenet --classes=10 --steps=2 --lr=0.001", Start::kAlone, 2,
                       1e-4);
}

TEST_F(OpenClTraining, AUNetOfVolumesHasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(SmallUNet(), Start::kAlone, 2, 1e-4);
}

// The convolution of the head then has a bias in f32 beside halves.
TEST_F(OpenClTraining, AUNetOfVolumesInFp16HasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(SmallUNet() + " --amp=O1 --precision=fp16", Start::kAlone, 2, 2e-4);
}

TEST_F(OpenClTraining, AUNetOfVolumesInBf16HasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(SmallUNet() + " --amp=O1 --precision=bf16", Start::kAlone, 2, 2e-4);
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
