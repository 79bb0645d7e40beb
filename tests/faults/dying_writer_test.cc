// A rank that dies in the middle of what it writes of a checkpoint: there is none, and the next start goes on from the
// one before.
#include <signal.h>

#include <fstream>

#include "core/train/checkpoint.h"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class DyingWriter : public ProgramTest {
 protected:
  // Two ranks; -1: none of them dies.
  CommandResult Start(const std::string& output, int victim) const {
    return Run(fmt::format("launch --nproc_per_node=2 {}/dying_writer_program {} {}",
                           std::filesystem::absolute(ProgramFolder()).string(), output, victim));
  }
  std::string Checkpoints(const std::string& output) const { return In(output + "/bar_net/bars/a/run/checkpoints/"); }
  std::string Weights(const std::string& output) const {
    std::ifstream file(Checkpoints(output) + "step-00000008/model.safetensors", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(DyingWriter, LeavesTheCheckpointBeforeFromWhichTheNextStartGoesOn) {
  ExpectSuccess(Start("whole", -1));
  ASSERT_FALSE(Weights("whole").empty());
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    const std::string output = fmt::format("victim_{}", victim);
    const CommandResult result = Start(output, victim);
    EXPECT_EQ(result.code, 128 + SIGKILL) << result.output;
    EXPECT_THAT(result.output, HasSubstr("is killed in " + ShardName(victim, 2)));
    EXPECT_THAT(result.output, ContainsRegex(fmt::format("rank {} .pid [0-9]+ on host [^)]+. died", victim)));
    EXPECT_FALSE(std::filesystem::exists(Checkpoints(output) + "step-00000004"));
    EXPECT_EQ(std::filesystem::read_symlink(Checkpoints(output) + "latest"), "step-00000002");
    ExpectSuccess(Start(output, -1));
    EXPECT_FALSE(std::filesystem::exists(Checkpoints(output) + ".step-00000004.tmp"));
    EXPECT_TRUE(Weights(output) == Weights("whole"));
  }
}

}  // namespace
}  // namespace switchyard
