// An error that several ranks have is said once, whoever started them.
#include <fstream>

#include "tests/cli/program.h"

namespace switchyard {
namespace {

class SeveralRanks : public ProgramTest {};

int CountOf(const std::string& words, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

// Before the ranks have met, and when they have. Of two devices each may have run out of memory before its rank heard
// of the other: these are two errors.
TEST_F(SeveralRanks, SayOnceWhatAllOfThemSay) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"train --model=mlp --dataset=fashion-mnist --device=cpu --data=absent", {"no such file or folder"}},
      {"train --bach_size=3", {"did you mean --batch_size?"}},
      {SmallTraining("--interpose=fault:alloc@4"), {"device 0 is out of memory", "device 1 is out of memory"}},
  };
  for (const auto& [arguments, errors] : cases) {
    for (const Start start : {Start::kLaunch, Start::kMpirun}) {
      if (start == Start::kMpirun && !HasMpirun()) continue;
      const CommandResult result = Run(arguments, start);
      ExpectRefused(result, {});
      int said = 0;
      for (const std::string& error : errors) {
        const int count = CountOf(error, result.output);
        EXPECT_LE(count, 1) << start << ": " << result.output;
        said += count;
      }
      EXPECT_GE(said, 1) << start << ": " << result.output;
    }
  }
}

TEST_F(SeveralRanks, SayWithTheirNumbersWhatSomeOfThemSay) {
  std::ofstream(In("start.sh")) << "exec " << Program()
                                << " train --model=mlp --dataset=fashion-mnist --device=cpu "
                                   "--data=absent$((${RANK:-$OMPI_COMM_WORLD_RANK} > 0))\n";
  const CommandResult launched = Run("launch --nproc_per_node=3 sh start.sh");
  ExpectRefused(launched, {"error: rank 0: --data=absent0: no such", "error: ranks 1 and 2: --data=absent1: no such"});
  EXPECT_EQ(CountOf("no such", launched.output), 2) << launched.output;
  if (!HasMpirun()) return;
  const char* const line =
      "bash -c 'cd {} && mpirun --bind-to none --oversubscribe --allow-run-as-root -n 2 sh start.sh'";
  const CommandResult of_mpirun = RunCommand(fmt::format(fmt::runtime(line), folder_.path()), 60);
  ExpectRefused(of_mpirun, {"error: --data=absent0: no such", "[rank 1] error: --data=absent1: no such"});
}

}  // namespace
}  // namespace switchyard
