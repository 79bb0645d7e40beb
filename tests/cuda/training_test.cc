// Training on the cuda plugin, its kernels emulated: every op of the models has a kernel there, and the losses are the
// cpu plugin's, captured or not.
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr char kMlp[] = "--model=mlp --width=24 --batch_size=4";
constexpr char kVit[] =
    "--model=vit_tiny --image_size=32 --patch=8 --width=48 --depth=2 --heads=3 --batch_size=2 --dropout=0.1 "
    "--drop_path=0.1";

// Maps of 8×8 in four windows of 4×4, every second block's shifted; then one window.
constexpr char kSwin[] =
    "--model=swin_tiny_cifar --image_size=16 --width=24 --depths=2,1 --drop_path=0.1 --batch_size=2";

// A small learning rate: batch norm over a few values makes later losses differ by what rounding differs.
constexpr char kResNet[] =
    "--model=resnet18 --stem=small --width=8 --image_size=16 --batch_size=4 --lr=0.001 --warmup=0";

class CudaTraining : public ProgramTest {
 protected:
  // Losses of every update.
  std::vector<double> Losses(const std::string& model, const std::string& settings, const std::string& suffix,
                             Start start = Start::kAlone) const {
    const CommandResult result = Train(model, settings + " --max_fallback=0 --suffix=" + suffix, "", start);
    ExpectSuccess(result, {" 0 fallbacks"});
    std::vector<double> losses;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(In("run"))) {
      if (entry.path().filename() != "metrics.jsonl" ||
          entry.path().string().find("/" + suffix + "/") == std::string::npos)
        continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        const auto record = nlohmann::json::parse(line, nullptr, false);
        if (record.contains("loss")) losses.push_back(record["loss"]);
      }
    }
    EXPECT_EQ(losses.size(), 4u) << result.output;
    return losses;
  }
  CommandResult Train(const std::string& model, const std::string& settings, const std::string& variables = "",
                      Start start = Start::kAlone) const {
    const std::string plugins = ProgramFolder() + "/doubles/cuda_emulation/plugins";
    return Run(
        "train --dataset=shapes --train_size=32 --validation_size=4 --steps=4 --log_every=1 --workers=1 --clip=1 "
        "--output=run " +
            model + " " + settings,
        start, "SWITCHYARD_PLUGIN_PATH=" + plugins + " " + variables);
  }
  static void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected, double relative) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], relative * std::fabs(expected[i])) << "update " << i + 1;
  }
};

// Products are measured where that was asked for and bits need not repeat; another run takes what the file says.
TEST_F(CudaTraining, KernelsThatWereMeasuredAreKeptInTheCacheFolder) {
  const auto choices = [&] {
    std::vector<std::string> lines;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(In("cache"))) {
      if (entry.path().filename().string().rfind("cuda-gemm", 0) != 0) continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) lines.push_back(line);
    }
    return lines;
  };
  std::filesystem::create_directories(In("cache"));
  setenv("CUDA_DOUBLE_LAZY", "0", 1);  // a measurement launches before bind loads, when nobody waits for a peer yet
  const auto plain = Losses(kMlp, "--device=cuda --deterministic=0", "plain");
  ExpectNear(Losses(kMlp, "--device=cuda --kernel_opt --deterministic=1", "repeats"), plain, 1e-5);
  EXPECT_EQ(choices().size(), 0u);
  ExpectNear(Losses(kMlp, "--device=cuda --kernel_opt", "measured"), plain, 1e-5);
  const auto measured = choices();
  EXPECT_GT(measured.size(), 0u);
  EXPECT_EQ(Losses(kMlp, "--device=cuda --kernel_opt", "again"),
            Losses(kMlp, "--device=cuda --kernel_opt", "once_more"));
  EXPECT_EQ(choices(), measured) << "nothing was left to measure";
}

// A ViT in halves, its products with GELU and their gradients made by cuDNN's double, which is faster; another run
// takes what was kept. The first layer of each MLP is a product of its own in evaluation.
TEST_F(CudaTraining, VitWithMeasuredProductsHasTheLossesOfTheCpu) {
  std::filesystem::create_directories(In("cache"));
  setenv("CUDA_DOUBLE_LAZY", "0", 1);  // as above
  setenv("LD_LIBRARY_PATH", (ProgramFolder() + "/doubles/cuda_emulation/with_cudnn").c_str(), 1);
  setenv("CUBLAS_LT_DOUBLE_DELAY_US", "25000", 1);  // more than the other may take beside busy processes
  const std::string measured = "--device=cuda --precision=bf16 --kernel_opt";
  const CommandResult result = Train(kVit, measured + " --max_fallback=0 --suffix=heard", "SWITCHYARD_LOG=debug");
  ExpectSuccess(result, {"by cuDNN's plan 2 2"});
  setenv("CUBLAS_LT_DOUBLE_DELAY_US", "0", 1);
  const auto losses = Losses(kVit, measured, "measured");
  unsetenv("LD_LIBRARY_PATH");
  unsetenv("CUBLAS_LT_DOUBLE_DELAY_US");
  ExpectNear(losses, Losses(kVit, "--device=cpu", "cpu"), 2e-2);
}

TEST_F(CudaTraining, MlpHasTheLossesOfTheCpu) {
  const auto cpu = Losses(kMlp, "--device=cpu", "cpu");
  ExpectNear(Losses(kMlp, "--device=cuda", "cuda"), cpu, 1e-5);
  ExpectNear(Losses(kMlp, "--device=cuda --precision=bf16", "half"), cpu, 2e-2);
}

TEST_F(CudaTraining, VitHasTheLossesOfTheCpu) {
  const auto cpu = Losses(kVit, "--device=cpu", "cpu");
  ExpectNear(Losses(kVit, "--device=cuda", "cuda"), cpu, 1e-4);
  ExpectNear(Losses(kVit, "--device=cuda --precision=bf16 --count_second_choice", "half"), cpu, 2e-2);
}

TEST_F(CudaTraining, SwinHasTheLossesOfTheCpuAndOfAttentionInWindowsThatAreMoved) {
  const auto cpu = Losses(kSwin, "--device=cpu", "cpu");
  ExpectNear(Losses(kSwin, "--device=cuda", "cuda"), cpu, 1e-4);
  const auto half = Losses(kSwin, "--device=cuda --precision=bf16 --count_second_choice", "half");
  ExpectNear(half, cpu, 2e-2);
  ExpectNear(half, Losses(kSwin, "--device=cuda --precision=bf16 --compile=0", "plain"), 2e-2);
}

TEST_F(CudaTraining, AResNet18HasTheLossesOfTheCpu) {
  const auto cpu = Losses(kResNet, "--device=cpu", "cpu");
  ExpectNear(Losses(kResNet, "--device=cuda", "cuda"), cpu, 1e-4);
  ExpectNear(Losses(kResNet, "--device=cuda --precision=bf16", "half"), cpu, 2e-2);
}

// Neither a roll nor a cut into windows, nor the way back: what is left gathers biases by position, cuts out patches
// and joins places of maps.
TEST_F(CudaTraining, SwinMovesNoRowsAroundAttentionInWindows) {
  const CommandResult result =
      Run("explain --model=swin_base --batch_size=2 --precision=bf16 --amp=O2 --device=cuda", Start::kAlone,
          "SWITCHYARD_PLUGIN_PATH=" + ProgramFolder() +
              "/doubles/cuda_emulation/plugins CUDA_DOUBLE_MEMORY_BYTES=" + std::to_string(int64_t{1} << 36));
  ASSERT_EQ(result.code, 0) << result.output;
  std::map<std::string, int> count;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string op;
    int times = 0;
    if (words >> op >> times) count[op] = times;
  }
  EXPECT_EQ(count["window_attention"], 22);
  EXPECT_EQ(count["window_attention_backward"], 22);
  EXPECT_EQ(count["attention"], 2) << "of the last stage, a window each";
  EXPECT_EQ(count["attention_backward"], 2);
  EXPECT_EQ(count["roll"], 0);
  EXPECT_EQ(count["gather"], 24);
  EXPECT_EQ(count["transpose"], 2 * 24 + 2 * 3 + 1);
}

TEST_F(CudaTraining, CapturedAndNotGiveTheSameBits) {
  EXPECT_EQ(Losses(kVit, "--device=cuda", "captured"), Losses(kVit, "--device=cuda --debug=sync", "sync"));
}

TEST_F(CudaTraining, TwoRanksReduceThroughTheHost) {
  const auto two_ranks = [&](const std::string& settings, const std::string& suffix) {
    return Losses(kVit, "--collective=shm " + settings, suffix, Start::kLaunch);
  };
  ExpectNear(two_ranks("--device=cuda --device_list=0,1", "cuda"), two_ranks("--device=cpu", "cpu"), 1e-4);
}

TEST_F(CudaTraining, WithoutFusionTheLossesAreTheSame) {
  ExpectNear(Losses(kVit, "--device=cuda --compile=0", "plain"), Losses(kVit, "--device=cuda", "fused"), 1e-4);
}

// The first launches are bind's, for the code of what they launch: one that fails there is warned of. Every launch of a
// step that fails ends the run.
TEST_F(CudaTraining, FailuresOfTheDeviceAreReported) {
  setenv("CUDA_DOUBLE_LAZY", "0", 1);  // code that bind could not load is loaded by a step
  int warned = 0, refused = 0;
  for (int launch = 1; refused < 21 && warned < 60; ++launch) {
    const CommandResult result = Train(kMlp, "--device=cuda", fmt::format("CUDA_DOUBLE_FAULT=launch@{}", launch));
    EXPECT_THAT(result.output, HasSubstr("cudaErrorLaunchOutOfResources")) << "launch " << launch;
    if (refused == 0 && result.code == 0) {
      EXPECT_THAT(result.output, HasSubstr("is loaded at its first launch")) << "launch " << launch;
      ++warned;
    } else {
      ExpectRefused(result, {"cudaErrorLaunchOutOfResources"});
      ++refused;
    }
  }
  EXPECT_GT(warned, 0);
  EXPECT_EQ(refused, 21);
  ExpectRefused(Train(kMlp, "--device=cuda", "CUDA_DOUBLE_FAULT=lost@30"), {"cudaErrorIllegalAddress"});
  ExpectRefused(Train(kMlp, "--device=cuda", "CUDA_DOUBLE_MEMORY_BYTES=65536"), {"memory"});
}

}  // namespace
}  // namespace switchyard
