// Training on the npu plugin and the simulator, by the program itself: every op on the device, the losses of the cpu
// plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/npu/simulator_path.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class NpuTraining : public ProgramTest {
 protected:
  NpuTraining() { setenv("SWITCHYARD_NPU_RUNTIME", SimulatorPath().c_str(), 1); }
  ~NpuTraining() override { unsetenv("SWITCHYARD_NPU_RUNTIME"); }

  static std::string Common(const std::string& model) {
    return "train --dataset=shapes --train_size=64 --validation_size=8 --batch_size=4 --steps=4 --log_every=1 "
           "--workers=1 "
           "--max_fallback=0 --output=run --suffix=a --model=" +
           model;
  }
  // The same training on npu devices 2 and 3, joined by `collective`, and on the cpu plugin, two ranks each.
  void ExpectLossesOfTheCpu(const std::string& arguments, const std::string& collective) {
    const CommandResult npu =
        Run(arguments + " --suffix=npu --device=npu --device_list=2,3 --collective=" + collective, Start::kLaunch);
    ExpectSuccess(npu, {"npu device 2 (NPU simulator 2)", "npu device 3 (NPU simulator 3)", "0 fallbacks"});
    const CommandResult cpu =
        Run(arguments + " --suffix=cpu --device=cpu --threads=1 --collective=shm", Start::kLaunch);
    ExpectSuccess(cpu);
    const std::vector<double> found = ranks::LossesOf(In("run"), "npu"), expected = ranks::LossesOf(In("run"), "cpu");
    ASSERT_GE(expected.size(), 4u) << cpu.output;
    ASSERT_EQ(found.size(), expected.size()) << npu.output;
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]) << "update " << i;
  }
};

TEST_F(NpuTraining, AnMlpOnTwoRanksHasTheLossesOfTheCpu) {
  ExpectLossesOfTheCpu(Common("mlp") + " --steps=8 --lr=0.01", "shm");
}

// Of each slot a staging in pinned memory, or in ordinary memory where that is asked for.
TEST_F(NpuTraining, BatchesAreStagedInPinnedMemoryOrNotWithTheSameLosses) {
  std::map<std::string, size_t> pinned;
  for (const std::string pin : {"auto", "1", "0"}) {
    ExpectSuccess(Run(fmt::format("{} --device=npu --device_list=2 --suffix=pin{} --pin_memory={} --interpose=trace:{}",
                                  Common("mlp"), pin, pin, In(pin))));
    std::stringstream trace;
    trace << std::ifstream(In(pin)).rdbuf();
    const std::string text = trace.str(), call = "\"host_alloc\"";
    for (size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) ++pinned[pin];
  }
  EXPECT_EQ(pinned["1"], pinned["0"] + 2);
  EXPECT_EQ(pinned["auto"], pinned["1"]);
  const std::vector<double> losses = ranks::LossesOf(In("run"), "pin1");
  EXPECT_EQ(losses.size(), 4u);
  EXPECT_EQ(losses, ranks::LossesOf(In("run"), "pin0"));
}

TEST_F(NpuTraining, RanksReachEachOthersMemoryWithTheBitsOfStaging) {
  const std::string arguments = Common("mlp") + " --device=npu --device_list=2,3 --collective=shm --suffix=";
  ExpectSuccess(Run(arguments + "peers", Start::kLaunch), {"and device memory (peer/1)"});
  const CommandResult staged = Run(arguments + "staged", Start::kLaunch, "SWITCHYARD_PEER_MEMORY=0");
  ExpectSuccess(staged);
  EXPECT_THAT(staged.output, Not(HasSubstr("peer/1")));
  const std::vector<double> losses = ranks::LossesOf(In("run"), "peers");
  EXPECT_EQ(losses.size(), 4u);
  EXPECT_EQ(losses, ranks::LossesOf(In("run"), "staged"));
}

TEST_F(NpuTraining, AVitOnTwoRanksJoinedByHcclHasTheLossesOfTheCpu) {
  if (!HasCollective("hccl")) GTEST_SKIP() << "the hccl plugin is not in this build";
  ExpectLossesOfTheCpu(Common("vit_tiny") + " --image_size=32 --classes=10 --steps=8 --lr=0.002 --warmup=0", "hccl");
}

// A small learning rate: batch norm over a few values makes later losses differ by what rounding differs.
TEST_F(NpuTraining, AResNet18HasTheLossesOfTheCpu) {
  const std::string arguments =
      Common("resnet18") + " --image_size=64 --stem=imagenet --classes=10 --steps=2 --lr=0.001 --warmup=0 --suffix=";
  ExpectSuccess(Run(arguments + "npu --device=npu"), {"npu device 0", "0 fallbacks"});
  ExpectSuccess(Run(arguments + "cpu --device=cpu"));
  const std::vector<double> found = ranks::LossesOf(In("run"), "npu"), expected = ranks::LossesOf(In("run"), "cpu");
  ASSERT_EQ(expected.size(), 2u);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "update " << i;
}

TEST_F(NpuTraining, MpiJoinsTheDevicesThroughHostMemory) {
  if (!HasMpirun() || !HasCollective("mpi")) GTEST_SKIP() << "mpirun or the mpi plugin is not there";
  ExpectSuccess(Run(Common("mlp") + " --device=npu --device_list=2,3 --collective=mpi", Start::kMpirun),
                {"0 fallbacks"});
}

TEST_F(NpuTraining, HalfPrecisionTrainsWithoutFallbacks) {
  ExpectSuccess(Run(Common("vit_tiny") + " --image_size=32 --classes=10 --precision=bf16 --device=npu"),
                {"0 fallbacks"});
}

// What a bare --amp means is the device's to say, once: a run that began here goes on elsewhere in the same precision.
TEST_F(NpuTraining, ABareAmpIsSavedAsTheDeviceUnderstoodIt) {
  const std::string half = "fp16 (O2), norms in fp32, fp32 master weights, loss scale 1024";
  ExpectSuccess(Run(Common("mlp") + " --amp --keep_batchnorm_fp32 --device=npu --save_every=2"), {half});
  ExpectSuccess(Run("train --resume=run/mlp/shapes/a/run --steps=6 --device=cpu"), {half});
  // --device=auto is judged as the device that it is: O2, beside which --keep_batchnorm_fp32 says something.
  ExpectSuccess(Run(Common("mlp") + " --amp --keep_batchnorm_fp32 --device=auto --suffix=b"), {half, "npu device"});
}

// The runtime gives pinned memory at any address, and the host's kernels want theirs at a line of the cache.
TEST_F(NpuTraining, StateAndParametersMayLieInPinnedMemoryOfAnyAlignment) {
  const std::string arguments = Common("mlp") + " --device=npu --optimizer=adamw --suffix=";
  ExpectSuccess(Run(arguments + "none"));
  const std::vector<double> expected = ranks::LossesOf(In("run"), "none");
  ASSERT_EQ(expected.size(), 4u);
  for (const std::string offload : {"optimizer", "all"}) {
    ExpectSuccess(Run(arguments + offload + " --offload=" + offload));
    const std::vector<double> found = ranks::LossesOf(In("run"), offload);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "update " << i;
  }
}

TEST_F(NpuTraining, SubgraphsOfAVitRunThroughRegions) {
  const CommandResult plan = Run("explain --model=vit_tiny --image_size=32 --batch_size=2 --device=npu");
  ExpectSuccess(plan, {"regions compiled whole by the plugin: 24", "fallbacks to the reference plugin: none"});
}

TEST_F(NpuTraining, DeviceIdsMustBeAdjacent) {
  ExpectRefused(Run(Common("mlp") + " --device=npu --device_list=2,5", Start::kLaunch), {"consecutive"});
}

TEST_F(NpuTraining, WhatTheDeviceLacksIsListedWhereFallbacksAreForbidden) {
  setenv("SWITCHYARD_NPU_SIMULATOR_REFUSES", "aclnnRightShift", 1);
  const CommandResult refused = Run(Common("vit_tiny") + " --image_size=32 --dropout=0.1 --device=npu");
  unsetenv("SWITCHYARD_NPU_SIMULATOR_REFUSES");
  ExpectRefused(refused, {"dropout", "max_fallback"});
}

TEST_F(NpuTraining, AViTWithDropoutHasTheLossesOfTheCpu) {
  const std::string arguments = Common("vit_tiny") +
                                " --image_size=32 --classes=10 --dropout=0.1 --drop_path=0.2 --steps=3 --lr=0.001 "
                                "--warmup=0 --suffix=";
  ExpectSuccess(Run(arguments + "npu --device=npu"), {"0 fallbacks"});
  ExpectSuccess(Run(arguments + "cpu --device=cpu"));
  const std::vector<double> found = ranks::LossesOf(In("run"), "npu"), expected = ranks::LossesOf(In("run"), "cpu");
  ASSERT_EQ(expected.size(), 3u);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]) << "update " << i;
}

TEST_F(NpuTraining, WithoutARuntimeDoctorSaysWhatWasLookedFor) {
  unsetenv("SWITCHYARD_NPU_RUNTIME");
  const CommandResult doctor = Run("doctor");
  if (doctor.output.find("no NPU runtime") == std::string::npos)
    GTEST_SKIP() << "the vendor's runtime is on this machine";
  EXPECT_THAT(doctor.output, HasSubstr("libascendcl.so"));
  EXPECT_THAT(doctor.output, HasSubstr("SWITCHYARD_NPU_RUNTIME"));
  setenv("SWITCHYARD_NPU_RUNTIME", "/nowhere/libnothing.so", 1);
  EXPECT_THAT(Run("doctor").output, HasSubstr("/nowhere/libnothing.so"));
}

TEST_F(NpuTraining, ARuntimeWithoutItsSymbolsIsNamedAsIncomplete) {
  setenv("SWITCHYARD_NPU_RUNTIME", "libm.so.6", 1);
  EXPECT_THAT(Run("doctor").output, HasSubstr("the NPU runtime has no symbol aclInit"));
}

}  // namespace
}  // namespace switchyard
