// A rank dies, freezes, leaves or calls something else: the others name it and end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <regex>

#include "tests/parallel/run_command.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

struct Setting {
  std::string launcher, collective;
  int ranks;
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.launcher << " " << setting.collective << " " << setting.ranks << " ranks";
}

class PeerFailure : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().launcher == "mpirun" && !HasMpirun()) GTEST_SKIP() << "mpirun was not found";
    if (!HasCollective(GetParam().collective))
      GTEST_SKIP() << "collective " << GetParam().collective << " was not built";
  }
  CommandResult Run(const std::string& scenario) {
    return RunCommand(RankCommand(GetParam().launcher, GetParam().ranks, scenario, GetParam().collective));
  }
  // Milliseconds from the victim's last word to that of each survivor.
  static std::vector<int64_t> Delays(const std::string& output) {
    std::smatch match;
    std::vector<int64_t> delays;
    if (!std::regex_search(output, match, std::regex("victim at (\\d+)"))) return delays;
    const int64_t death = std::stoll(match[1]);
    const std::regex survivor("survivor \\d+ at (\\d+)");
    for (std::sregex_iterator it(output.begin(), output.end(), survivor), end; it != end; ++it)
      delays.push_back(std::stoll((*it)[1]) - death);
    return delays;
  }
  // The survivors name the victim of the scenario in time. A starved machine may hold a process up, but not three
  // times.
  void ExpectNamed(const std::string& scenario, const std::string& what, int64_t within_ms) {
    for (int attempt = 1;; ++attempt) {
      const CommandResult result = Run(scenario);
      EXPECT_NE(result.code, 0) << result.output;
      ASSERT_NE(result.code, 124) << "the run hung\n" << result.output;
      const auto delays = Delays(result.output);
      ASSERT_EQ(delays.size(), static_cast<size_t>(GetParam().ranks - 1)) << result.output;
      EXPECT_THAT(result.output, ContainsRegex("survivor 0 at [0-9]+: .*" + what));
      const int64_t latest = *std::max_element(delays.begin(), delays.end());
      if (latest <= within_ms) return;
      ASSERT_LT(attempt, 3) << "survivors took " << latest << " ms, at most " << within_ms << " are allowed\n"
                            << result.output;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Launchers, PeerFailure,
                         testing::Values(Setting{"launch", "shm", 3}, Setting{"launch", "tcp", 3},
                                         Setting{"mpirun", "shm", 2}, Setting{"mpirun", "mpi", 3}),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", info.param.launcher, info.param.collective, info.param.ranks);
                         });

TEST_P(PeerFailure, NothingHappensInAHealthyRun) {
  const CommandResult result = Run("reduce");
  EXPECT_EQ(result.code, 0) << result.output;
  for (int rank = 0; rank < GetParam().ranks; ++rank)
    EXPECT_THAT(result.output, HasSubstr(fmt::format("rank {} finished", rank)));
}

TEST_P(PeerFailure, ADeadRankIsNamedWithinASecond) { ExpectNamed("kill", "rank 1 .pid [0-9]+ on host .*. died", 1000); }
TEST_P(PeerFailure, ARankThatDiesInsideACollectiveIsNamed) { ExpectNamed("kill_in_large", "rank 1 .* died", 1000); }
TEST_P(PeerFailure, ARankThatDiesWhileJoiningIsNamed) { ExpectNamed("kill_before_join", "rank 1 .* died", 1000); }
TEST_P(PeerFailure, ARankThatDiesWhileOthersHaveItsDeviceMemoryIsNamed) {
  ExpectNamed("kill_in_peers", "rank 1 .* died", 1500);
}
TEST_P(PeerFailure, AReportedFailureReachesEverybody) {
  ExpectNamed("report", "rank 1 .* failed: train/7.jpg is not a JPEG", 1000);
}

TEST_P(PeerFailure, AFrozenRankIsNamedWithinTheLimit) {
  // The limit of rank_program is 1.5 s.
  ExpectNamed("freeze", "rank 1 .* froze", 3000);
}

// Rank 0 sees it first and tells the others before it leaves itself; the launcher names neither of those who leave.
TEST_P(PeerFailure, AFrozenRankAmongManyIsNamedByAllAndByTheLauncher) {
  if (GetParam().launcher != "launch") GTEST_SKIP() << "of our launcher";
  const CommandResult result = RunCommand(RankCommand("launch", 4, "freeze", GetParam().collective + " 2"));
  EXPECT_NE(result.code, 0);
  for (const int survivor : {0, 1, 3})
    EXPECT_THAT(result.output, ContainsRegex(fmt::format("survivor {} at [0-9]+: .*rank 2 .* froze", survivor)));
  EXPECT_THAT(result.output, testing::Not(ContainsRegex("rank [013] .pid [0-9]+ on host [^)]+. (died|froze)")));
  EXPECT_THAT(result.output,
              ContainsRegex("launch: rank 2 .pid [0-9]+ on host [^)]+. froze.*; the others are stopped"));
  EXPECT_THAT(result.output, testing::Not(HasSubstr("failed with exit code")));
}

TEST_P(PeerFailure, ARankThatLeavesEarlyIsNamed) {
  const CommandResult result = Run("leave");
  EXPECT_NE(result.code, 124) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("survivor 0 at [0-9]+: .*rank 1 .* has left the run"));
}

TEST_P(PeerFailure, DisagreeingRanksAreNamedWithBothCalls) {
  const auto expect = [&](const std::string& scenario, const std::string& pattern) {
    const CommandResult result = Run(scenario);
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.code, 124) << result.output;
    EXPECT_THAT(result.output, ContainsRegex(pattern));
  };
  const std::string usual =
      "ranks disagree: rank 0 calls all_reduce .gradient. .f32 max, 1000 elements, root 0, call 20., rank 1 calls ";
  expect("other_count", usual + "all_reduce .gradient. .f32 sum, 999 elements");
  expect("other_dtype", usual + "all_reduce .gradient. .i32 sum, 1000");
  expect("other_tag", usual + "all_reduce .another.");
  expect("other_call", usual + "broadcast .gradient.");
}

TEST(Shm, WhoDoesNotAnswerMessagesIsNamed) {
  const CommandResult result =
      RunCommand("env SWITCHYARD_COLLECTIVE_TIMEOUT=2 " + RankCommand("launch", 3, "late_in_messages", "shm 1"));
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.output, ContainsRegex("waited 2000 ms in send_recv_batch .* for rank 1([^0-9,]|$)"));
}

// Rank 0 has come first, and waits in a later round for rank 1, which waits for rank 2.
TEST(Tcp, ARankThatDoesNotComeToAChainIsNamedBeforeThoseThatWaitForIt) {
  if (!HasCollective("tcp")) GTEST_SKIP() << "collective tcp was not built";
  const CommandResult result = RunCommand("env SWITCHYARD_TCP_CHAIN=1 SWITCHYARD_COLLECTIVE_TIMEOUT=2 " +
                                          RankCommand("launch", 5, "late_in_chain", "tcp 2"));
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.code, 124) << result.output;
  std::smatch first;
  ASSERT_TRUE(std::regex_search(result.output, first, std::regex("survivor [0-9] at [^\n]*"))) << result.output;
  EXPECT_THAT(first.str(), ContainsRegex("survivor [13] at .* waited 2000 ms in all_reduce .* for rank 2([^0-9,]|$)"));
  EXPECT_THAT(result.output, testing::Not(HasSubstr("another rank is stuck")));
}

// The root's numbers reach rank 4 although rank 2, through which a chain goes, does not come.
TEST(Tcp, ABroadcastGoesThroughNoChainWhereThatIsSwitchedOff) {
  if (!HasCollective("tcp")) GTEST_SKIP() << "collective tcp was not built";
  const std::string late = RankCommand("launch", 5, "late_in_broadcast", "tcp 2");
  EXPECT_THAT(RunCommand("env SWITCHYARD_TCP_CHAIN=0 SWITCHYARD_COLLECTIVE_TIMEOUT=2 " + late).output,
              HasSubstr("rank 4 has the numbers of rank 0"));
  EXPECT_THAT(RunCommand("env SWITCHYARD_TCP_CHAIN=1 SWITCHYARD_COLLECTIVE_TIMEOUT=2 " + late).output,
              HasSubstr("rank 4 has the numbers of rank 4"));
}

TEST(Mpi, WithoutMpirunItSaysWhatToUse) {
  if (!HasCollective("mpi")) GTEST_SKIP() << "collective mpi was not built";
  const CommandResult result = RunCommand(RankCommand("launch", 2, "reduce", "mpi"));
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.output, HasSubstr("collective mpi needs mpirun"));
  EXPECT_THAT(result.output, HasSubstr("--collective=shm"));
}

// Beyond a part's size MPI's counts are used up; the parts are made small here so that every call has several.
TEST(Mpi, LargeCallsGoInParts) {
  if (!HasMpirun() || !HasCollective("mpi")) GTEST_SKIP() << "collective mpi cannot run";
  const CommandResult result = RunCommand(
      "env SWITCHYARD_MPI_PART_BYTES=40000 SWITCHYARD_COLLECTIVE=mpi mpirun --bind-to none --oversubscribe "
      "--allow-run-as-root -n 2 " +
          ProgramFolder() + "/collectives_test",
      60);
  EXPECT_EQ(result.code, 0) << result.output;
}

}  // namespace
}  // namespace switchyard
