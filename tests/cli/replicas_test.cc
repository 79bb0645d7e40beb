// --mode=dp: one process that drives several devices trains as a process for each does, bit for bit, and goes on where
// the other mode left off; what it cannot do it refuses.
#include "tests/cli/run_files.h"
#include "tests/faults/running_program.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

class Replicas : public RunFilesTest {
 protected:
  // A run in either mode on as many devices, in the folder run/<model>/shapes/<suffix>/run.
  CommandResult Train(const std::string& mode, int devices, const std::string& suffix,
                      const std::string& arguments) const {
    const std::string train =
        "train --dataset=shapes --train_size=64 --validation_size=21 --batch_size=4 --steps=6 "
        "--log_every=1 --threads=1 --output=run " +
        arguments + " --suffix=" + suffix;
    if (mode == "dp") return Run(fmt::format("{} --mode=dp --devices={}", train, devices));
    return Run(fmt::format("launch --nproc_per_node={} {}", devices, train));
  }
  void ExpectSameRuns(const std::string& model, const std::string& a, const std::string& b) const {
    const auto folder = [&](const std::string& run) { return fmt::format("run/{}/shapes/{}/run/", model, run); };
    for (const char* file : {"model.safetensors", "state.safetensors"}) {
      const std::string path = std::string("checkpoints/step-00000006/") + file;
      EXPECT_TRUE(Text(folder(a) + path) == Text(folder(b) + path)) << path;
    }
    const std::vector<double> losses = ranks::LossesOf(In("run"), a);
    EXPECT_EQ(losses, ranks::LossesOf(In("run"), b));
    ASSERT_EQ(losses.size(), 6u);
    EXPECT_NE(losses.front(), losses.back()) << "nothing was trained";
  }
};

TEST_F(Replicas, TrainAsProcessesDoBitForBit) {
  for (const int devices : {2, 4}) {
    SCOPED_TRACE(devices);
    const std::string dp = fmt::format("dp{}", devices), ddp = fmt::format("ddp{}", devices);
    const std::string vit = "--device=cpu --model=vit_micro --dropout=0.1 --ema_decay=0.9 --accumulation=2";
    const CommandResult run = Train("dp", devices, dp, vit);
    ExpectSuccess(run, {"one process drives all devices (--mode=dp)", "cpu device 0", "cpu device 1",
                        fmt::format("{} images per update: 4 per rank, {} ranks", 8 * devices, devices)});
    ExpectSuccess(Train("ddp", devices, ddp, vit));
    ExpectSameRuns("vit_micro", dp, ddp);
    const std::string best = " --checkpoint=run/vit_micro/shapes/" + dp + "/run --device=cpu --json 2>/dev/null";
    const auto told = [&](const CommandResult& evaluation) {
      ExpectSuccess(evaluation);
      auto json = nlohmann::json::parse(evaluation.output, nullptr, false);
      json.erase("images_per_s");
      return json;
    };
    EXPECT_EQ(told(Run(fmt::format("eval --mode=dp --devices={}", devices) + best)),
              told(Run(fmt::format("launch --nproc_per_node={} eval", devices) + best)));
  }
}

TEST_F(Replicas, NormalizeOverTheSamplesOfAllDevices) {
  const std::string resnet =
      "--device=cpu --model=resnet18 --image_size=32 --sync_batchnorm --bucket_mb=4 --optimizer=sgd --momentum=0";
  ExpectSuccess(Train("dp", 2, "dp", resnet));
  ExpectSuccess(Train("ddp", 2, "ddp", resnet));
  ExpectSameRuns("resnet18", "dp", "ddp");
}

TEST_F(Replicas, TrainOnDevicesOfOtherBackends) {
  for (const std::string device : {"null", "opencl"}) {
    SCOPED_TRACE(device);
    // Whether there is an OpenCL device is the machine's; the null plugin always has some.
    if (device == "opencl" && Run("bench --model=mlp --width=16 --steps=1 --device=opencl").code != 0) continue;
    const std::string mlp = "--model=mlp --width=16 --device=" + device;
    ExpectSuccess(Train("dp", 2, device + "-dp", mlp), {device + " device 0"});
    ExpectSuccess(Train("ddp", 2, device + "-ddp", mlp));
    ExpectSameRuns("mlp", device + "-dp", device + "-ddp");
  }
}

TEST_F(Replicas, GoOnFromProcessesAndBack) {
  const std::string mlp = "--device=cpu --model=mlp --width=16 --momentum=0.9 --optimizer=sgd --lr=0.05 --save_every=3";
  ExpectSuccess(Train("dp", 2, "whole", mlp));
  const std::string again = "train --device=cpu --log_every=1 --threads=1 --resume=run/mlp/shapes/";
  for (const bool to_processes : {true, false}) {
    const std::string suffix = to_processes ? "begun_by_dp" : "begun_by_ddp";
    ExpectSuccess(Train(to_processes ? "dp" : "ddp", 2, suffix, mlp));
    const std::string from = again + suffix + "/run/checkpoints/step-00000003";
    ExpectSuccess(Run(to_processes ? "launch --nproc_per_node=2 " + from : from + " --mode=dp --devices=2"));
    for (const char* file : {"model.safetensors", "state.safetensors"}) {
      const std::string path = std::string("/run/checkpoints/step-00000006/") + file;
      EXPECT_TRUE(Text("run/mlp/shapes/" + suffix + path) == Text("run/mlp/shapes/whole" + path)) << suffix;
    }
  }
  // On another number of devices the global batch stays.
  ExpectSuccess(Run(again + "whole/run --steps=8 --mode=dp --devices=4"), {"8 images per update: 2 per rank, 4 ranks"});
}

TEST_F(Replicas, CountTheDevicesThatThereAre) {
  const std::string train = SmallTraining("--mode=dp ");
  ExpectSuccess(Run(train + "--suffix=b --device_list=0,1"), {"rank 1 on"});
  ExpectSuccess(Run(train + "--suffix=c --cpu_devices=3"), {"rank 2 on", "over 3 ranks"});
  ExpectSuccess(Run(train + "--suffix=d --cpu_devices=2 --ranks_per_device=2"), {"rank 3 on", "over 4 ranks"});
  ExpectSuccess(Run(train + "--suffix=e --devices=1"), {"over 1 rank"});
  ExpectSuccess(Run(train + "--suffix=f --devices=4 --interpose=validate"), {"over 4 ranks"});
  ExpectRefused(Run(train), {"--mode=dp drives all devices of cpu, and it has one", "--devices=2"});
  ExpectRefused(Run(train + "--device_list=0,1,2 --cpu_devices=2"), {"cpu has no device 2; it has 0 to 1"});
  ExpectRefused(Run(train + "--devices=3 --cpu_devices=2 --ranks_per_device=1"), {"3 local ranks, but cpu has 2"});
}

TEST_F(Replicas, WhatDividesAModelOrIsLaunchedIsRefused) {
  const std::string train = SmallTraining("--mode=dp --devices=2 ");
  ExpectRefused(Run(train, Start::kLaunch), {"--mode=dp is one process that drives all devices, found 2 ranks"});
  ExpectRefused(Run(train + "--tp=2"), {"--tp=2 divides them", "switchyard launch --nproc_per_node"});
  ExpectRefused(Run(train + "--zero=1"), {"--zero=1 divides them", "switchyard launch --nproc_per_node"});
  ExpectRefused(Run(train + "--device_list=1"), {"--devices=2 and --device_list=1 both say which devices"});
  ExpectRefused(Run(SmallTraining("--mode=dpp")), {"mode", "expected ddp or dp"});
  ExpectSuccess(Run(SmallTraining("--devices=2")), {"--devices has no effect with --mode=ddp"});
  folder_.Write("a.png", PngBytes(Pattern(9, 11, 1)));
  ExpectRefused(Run("predict a.png --device=cpu --mode=dp --devices=2 --checkpoint=" + SmallRun()),
                {"predict runs on one device", "leave --mode=dp out"});
}

TEST_F(Replicas, AFailureOnOneDeviceEndsTheRunWithItsMessage) {
  const std::pair<std::string, std::string> faults[] = {{"cpu", "alloc@6"},          {"cpu", "bind@30"},
                                                        {"cpu", "launch@100:fail"},  {"cpu", "collective@20:fail"},
                                                        {"null", "launch@100:fail"}, {"null", "collective@20:fail"}};
  for (const auto& [device, fault] : faults) {
    SCOPED_TRACE(device + " " + fault);
    const CommandResult result = Run(SmallTraining("--mode=dp --devices=3 --steps=200 --interpose=fault:" + fault +
                                                   " --suffix=" + device + fault.substr(0, 5) + " --device=" + device));
    ExpectRefused(result, {"error: replica ", "because --interpose asks for it: fault:" + fault});
    EXPECT_THAT(result.output, testing::ContainsRegex("\\[rank [012]\\] warning: fault:" + fault.substr(0, 5)));
    EXPECT_THAT(result.output, testing::Not(testing::HasSubstr("trained")));
  }
}

TEST_F(Replicas, ASignalEndsTheRunAfterAnUpdateOfAll) {
  const std::string train = SmallTraining("--mode=dp --devices=2 --log_every=1 --eval_every=0 --steps=200000");
  RunningProgram run(folder_.path(), CommandLineOf(Start::kAlone, train));
  ASSERT_TRUE(run.Trains(2)) << run.Output();
  EXPECT_EQ(run.Rank(0), run.Rank(1)) << "one process";
  run.Signal(SIGTERM);
  ASSERT_GE(RunningProgram::WaitFor([&] { return run.HasEnded(); }, 30000), 0) << run.Output();
  EXPECT_THAT(run.Output(), testing::HasSubstr("stopped by a signal after update"));
}

}  // namespace
}  // namespace switchyard
