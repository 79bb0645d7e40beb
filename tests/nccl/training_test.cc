// Training on two doubled GPUs, joined by nccl: the losses are those of ranks joined through host memory.
#include <regex>

#include "tests/cli/program.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

constexpr char kVit[] = "vit_tiny --image_size=32 --patch=8 --width=48 --depth=2 --heads=3";

class NcclTraining : public ProgramTest {
 protected:
  CommandResult Train(const std::string& model, const std::string& collective, Start start = Start::kLaunch,
                      const std::string& more = "") const {
    const std::string doubles = ProgramFolder() + "/doubles";
    return Run(ranks::SmallTrainingOf(model, collective) + " --device=cuda --collective=" + collective, start,
               "LD_LIBRARY_PATH=" + doubles + " SWITCHYARD_PLUGIN_PATH=" + doubles +
                   "/cuda_emulation/plugins CUDA_DOUBLE_DELAY_US=50 " + more);
  }
  void ExpectLossesOfHostMemory(const std::string& model, const std::string& more = "") const {
    const CommandResult nccl = Train(model, "nccl", Start::kLaunch, more);
    ExpectSuccess(nccl, {"cuda device 1", "collective nccl", "0 fallbacks", "\n  libraries   nccl: NCCL "});
    const CommandResult shm = Train(model, "shm", Start::kLaunch, more);
    ExpectSuccess(shm);
    EXPECT_EQ(ranks::LossesOf(In("run"), "nccl").size(), 4u) << nccl.output;
    EXPECT_EQ(ranks::LossesOf(In("run"), "nccl"), ranks::LossesOf(In("run"), "shm"));
  }
};

TEST_F(NcclTraining, MlpHasTheLossesOfHostMemory) { ExpectLossesOfHostMemory("mlp"); }

// With nccl a step is one graph, through host memory it is segments; both replay in the other order that their edges
// allow.
TEST_F(NcclTraining, VitHasTheLossesOfHostMemory) { ExpectLossesOfHostMemory(kVit, "CUDA_DOUBLE_GRAPH_ORDER=last"); }

// Two further steps of two ranks launch four graphs, and no kernel by itself: so the collectives of a step, between its
// kernels, are in its graph. There they keep the priority of the streams that recorded them, above that of the step.
TEST_F(NcclTraining, AStepIsOneGraphWithItsCollectives) {
  struct Counts {
    int64_t graphs = 0, kernels = 0, urgent = 0;
  };
  const auto counts = [&](int steps) {
    const CommandResult result = Train(fmt::format("{} --steps={}", kVit, steps), "nccl", Start::kLaunch,
                                       "CUDA_DOUBLE_COUNTS=1 CUDA_DOUBLE_GRAPH_ORDER=last");
    ExpectSuccess(result, {"collective nccl", "0 fallbacks"});
    EXPECT_EQ(ranks::LossesOf(In("run"), "nccl").size(), static_cast<size_t>(steps)) << result.output;
    std::filesystem::remove_all(In("run"));
    Counts sum;
    const std::regex line("cuda double: ([0-9]+) graphs, ([0-9]+) kernels, ([0-9]+) urgent nodes");
    int found = 0;
    for (std::sregex_iterator i(result.output.begin(), result.output.end(), line); i != std::sregex_iterator(); ++i) {
      sum.graphs += std::stoll((*i)[1]);
      sum.kernels += std::stoll((*i)[2]);
      sum.urgent += std::stoll((*i)[3]);
      ++found;
    }
    EXPECT_GE(found, 2) << result.output;
    return sum;
  };
  const Counts four = counts(4), six = counts(6);
  EXPECT_GE(four.graphs, 8);
  EXPECT_EQ(six.graphs - four.graphs, 4);
  EXPECT_EQ(six.kernels, four.kernels);
  EXPECT_GE(four.urgent, 8);  // the one bucket of each step of each rank
  EXPECT_EQ(six.urgent - four.urgent, 4);
}

TEST_F(NcclTraining, MpiStagesToTheSameLosses) {
  if (!HasMpirun() || !HasCollective("mpi")) GTEST_SKIP() << "mpirun or the mpi plugin is not there";
  const CommandResult nccl = Train("mlp", "nccl"), mpi = Train("mlp", "mpi", Start::kMpirun);
  ExpectSuccess(nccl);
  ExpectSuccess(mpi, {"collective mpi"});
  EXPECT_EQ(ranks::LossesOf(In("run"), "mpi").size(), 4u) << mpi.output;
  EXPECT_EQ(ranks::LossesOf(In("run"), "nccl"), ranks::LossesOf(In("run"), "mpi"));
}

TEST_F(NcclTraining, OneProcessWithTwoGpusHasTheLossesOfTwoProcesses) {
  for (const std::string collective : {"nccl", "shm"}) {
    ExpectSuccess(Train("mlp", collective));
    const std::vector<double> expected = ranks::LossesOf(In("run"), collective);
    std::filesystem::remove_all(In("run"));
    const CommandResult dp = Train("mlp --mode=dp", collective, Start::kAlone);
    ExpectSuccess(dp, {"one process drives all devices (--mode=dp)", "cuda device 1", "collective " + collective});
    EXPECT_EQ(ranks::LossesOf(In("run"), collective), expected);
    EXPECT_EQ(expected.size(), 4u);
  }
}

TEST_F(NcclTraining, SharedGpuIsStagedThroughHostMemory) {
  ExpectRefused(Train("mlp", "nccl", Start::kLaunch, "CUDA_DOUBLE_DEVICES=1"), {"needs a device for each rank"});
  const CommandResult chosen = Train("mlp", "auto", Start::kLaunch, "CUDA_DOUBLE_DEVICES=1");
  ExpectSuccess(chosen, {"cuda device 0", "collective shm"});
  std::filesystem::remove_all(In("run"));
  // Though there is another GPU, which nobody drives.
  ExpectRefused(Train("mlp --ranks_per_device=2", "nccl"), {"needs a device for each rank"});
  ExpectSuccess(Train("mlp --ranks_per_device=2", "auto"), {"cuda device 0", "collective shm"});
}

TEST_F(NcclTraining, HangingCollectiveEndsTheRun) {
  ExpectRefused(Train("mlp", "nccl", Start::kLaunch, "NCCL_DOUBLE_FAULT=hang@9 SWITCHYARD_COLLECTIVE_TIMEOUT=2"),
                {"not finished after 2 s"});
}

// NCCL finds that on the stream, in the graph of a step, which lives until the run has ended.
TEST_F(NcclTraining, LostPeerEndsTheReplayOfAStep) {
  ExpectRefused(Train(kVit, "nccl", Start::kLaunch, "NCCL_DOUBLE_FAULT=remote@20"),
                {"Connection closed by remote peer"});
}

}  // namespace
}  // namespace switchyard
