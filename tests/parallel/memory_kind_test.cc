// A kind of memory that no line of the core names: a backend and a collective that agree on its name train together,
// two ranks, two processes. The collective refuses host addresses, so nothing is staged.
#include "tests/cli/program.h"
#include "tests/ranks/losses.h"

namespace switchyard {
namespace {

class MemoryKind : public ProgramTest {
 protected:
  // On a device whose memory is of that kind.
  CommandResult Train(const std::string& model, const std::string& collective, const std::string& more = "") const {
    return Run(ranks::SmallTrainingOf(model, collective) + " --device=messages --collective=" + collective,
               Start::kLaunch,
               "SWITCHYARD_PLUGIN_PATH=" + ProgramFolder() + "/doubles/device_messages SWITCHYARD_MESSAGES_BASE=" +
                   ProgramFolder() + "/../lib/switchyard/plugins/switchyard_backend_null.so " + more);
  }
  void ExpectLossesOfHostMemory(const std::string& more) const {
    const CommandResult own = Train("mlp", "messages", more), staged = Train("mlp", "shm", more);
    ExpectSuccess(own, {"messages device 1", "collective messages", "0 fallbacks"});
    ExpectSuccess(staged, {"messages device 1", "collective shm"});
    EXPECT_EQ(ranks::LossesOf(In("run"), "messages").size(), 4u) << own.output;
    EXPECT_EQ(ranks::LossesOf(In("run"), "messages"), ranks::LossesOf(In("run"), "shm"));
  }
};

TEST_F(MemoryKind, OfAnotherVendorTrainsWithTheCollectiveThatReachesIt) { ExpectLossesOfHostMemory(""); }

TEST_F(MemoryKind, OfAnotherVendorIsSentInTheOrderOfItsStreams) {
  ExpectLossesOfHostMemory("SWITCHYARD_MESSAGES_ON_STREAM=1");
}

TEST_F(MemoryKind, ThatTheCollectiveDoesNotReachIsRefusedByName) {
  const CommandResult refused =
      Run(ranks::SmallTrainingOf("mlp", "refused") + " --device=null --collective=messages", Start::kLaunch,
          "SWITCHYARD_PLUGIN_PATH=" + ProgramFolder() + "/doubles/device_messages SWITCHYARD_MESSAGES_BASE=" +
              ProgramFolder() + "/../lib/switchyard/plugins/switchyard_backend_null.so");
  ExpectRefused(refused, {"collective messages", "reaches neither host memory nor that of null",
                          "; --collective=shm can join these ranks"});
}

}  // namespace
}  // namespace switchyard
