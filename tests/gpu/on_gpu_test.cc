// The cuda plugin on a GPU: conformance, and training whose losses are those of the cpu plugin, with and without
// captured segments, on one rank and on two that share the GPU through host memory. Skipped where there is none.
#include <string>
#include <vector>

#include "core/runtime/plugins/plugin.h"
#include "core/train/metrics.h"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

constexpr char kVit[] = "vit_tiny --image_size=32 --patch=8";

class CudaOnGpu : public ProgramTest {
 protected:
  void SetUp() override {
    const auto plugin = Plugin::Load(SY_CUDA_PLUGIN);
    ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
    std::string reason;
    const auto count = (*plugin)->DeviceCount(&reason);
    ASSERT_TRUE(count.ok()) << Message(count.status());
    if (*count == 0) GTEST_SKIP() << "no GPU: " << reason;
  }

  // The loss of every update of a short training on data that needs no file.
  std::vector<double> Losses(const std::string& model, const std::string& settings, const std::string& suffix,
                             Start start = Start::kAlone) {
    ExpectSuccess(Run(fmt::format("train --model={} --dataset=shapes --train_size=256 --validation_size=32 --steps=12 "
                                  "--log_every=1 --eval_every=0 --max_fallback=0 --output=run --suffix={} {}",
                                  model, suffix, settings),
                      start));
    const std::string name = model.substr(0, model.find(' '));
    const auto records = ReadMetrics(In(fmt::format("run/{}/shapes/{}/run/0/log/metrics.jsonl", name, suffix)));
    EXPECT_TRUE(records.ok()) << Message(records.status());
    std::vector<double> losses;
    if (!records.ok()) return losses;
    for (const MetricsRecord& record : *records)
      if (record.contains("lr") && record["loss"].is_number()) losses.push_back(record["loss"].get<double>());
    EXPECT_EQ(losses.size(), 12u);
    return losses;
  }

  static void ExpectClose(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance * (1 + expected[i])) << i;
  }
};

TEST_F(CudaOnGpu, PassesTheConformanceKit) {
  const CommandResult result = RunCommand(fmt::format("{} conform {}", Program(), SY_CUDA_PLUGIN), 600);
  ExpectSuccess(result, {"level Fast"});
}

TEST_F(CudaOnGpu, TrainsToTheLossesOfTheCpu) {
  for (const std::string model : {"mlp", kVit}) {
    const auto expected = Losses(model, "--batch_size=8 --device=cpu", "cpu");
    ExpectClose(Losses(model, "--batch_size=8 --device=cuda", "cuda"), expected, 2e-3);
    ExpectClose(Losses(model, "--batch_size=8 --device=cuda --precision=bf16", "bf16"), expected, 5e-2);
  }
}

TEST_F(CudaOnGpu, CapturedSegmentsAndSingleLaunchesGiveEqualLosses) {
  EXPECT_EQ(Losses(kVit, "--batch_size=8 --device=cuda", "captured"),
            Losses(kVit, "--batch_size=8 --device=cuda --debug=sync", "single"));
}

TEST_F(CudaOnGpu, TwoRanksShareOneGpuThroughHostMemory) {
  const auto expected = Losses(kVit, "--batch_size=8 --device=cuda --device_list=0", "one");
  const std::string two = "--batch_size=4 --device=cuda --device_list=0 --ranks_per_device=2 --collective=";
  ExpectClose(Losses(kVit, two + "shm", "shm", Start::kLaunch), expected, 2e-3);
  if (RunCommand("mpirun --version").code != 0) GTEST_SKIP() << "no mpirun: two ranks joined by shm alone";
  ExpectClose(Losses(kVit, two + "mpi", "mpi", Start::kMpirun), expected, 2e-3);
}

}  // namespace
}  // namespace switchyard
