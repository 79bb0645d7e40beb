// A reduction that was started fails. Where the device waits for it by a semaphore, the rest of the step runs all the
// same, over gradients that nobody has summed, before the host learns of it; what it makes of the weights is never
// kept: a checkpoint is that of the run in which nothing failed, or it is not there.
#include <fstream>
#include <map>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

class FailedCollective : public ProgramTest {
 protected:
  // Staged through host memory, or from device to device.
  CommandResult Train(const std::string& suffix, bool through_peers, const std::string& more = "") const {
    return Run(
        ranks::SmallTrainingOf("mlp", suffix) + " --device=null --collective=shm --save_every=1 --keep=0 " + more,
        Start::kLaunch, through_peers ? "" : "SWITCHYARD_PEER_MEMORY=0");
  }
  // By folder: what the weights' file holds.
  std::map<std::string, std::string> Checkpoints(const std::string& suffix) const {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(In("run"))) {
      const std::string folder = entry.path().parent_path().filename().string();
      if (entry.path().filename() != "model.safetensors" || folder.rfind("step-", 0) != 0 ||
          entry.path().string().find("/" + suffix + "/") == std::string::npos)
        continue;
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      found[folder] = text.str();
    }
    return found;
  }
};

TEST_F(FailedCollective, LeavesNothingBehindInACheckpoint) {
  ExpectSuccess(Train("healthy", false), {"4 updates"});
  const auto healthy = Checkpoints("healthy");
  ASSERT_EQ(healthy.size(), 4u);
  ExpectSuccess(Train("peers", true), {"collective shm and device memory (peer/1)"});
  EXPECT_TRUE(Checkpoints("peers") == healthy);
  for (const bool through_peers : {false, true}) {
    int of_gradients = 0, kept = 0;
    for (int call = 16; of_gradients < 2 || kept == 0; call += 2) {
      ASSERT_LT(call, 100)
          << "too few of the calls that may fail are reductions of gradients, or none behind the first step";
      const std::string suffix = fmt::format("failed_{}_{}", through_peers, call);
      const CommandResult failed = Train(suffix, through_peers, fmt::format("--interpose=fault:collective@{}", call));
      if (failed.output.find(" \"all_reduce/") == std::string::npos) continue;
      ++of_gradients;
      ExpectRefused(failed, {"fault"});
      for (const auto& [step, weights] : Checkpoints(suffix)) {
        EXPECT_TRUE(weights == healthy.at(step)) << suffix << ": " << step;
        ++kept;
      }
      EXPECT_LT(Checkpoints(suffix).size(), healthy.size()) << failed.output;
    }
  }
}

}  // namespace
}  // namespace switchyard
