#include "core/runtime/processes/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/run_command.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(Launcher, GivesEveryRankItsPlace) {
  const CommandResult result = RunCommand(RankCommand("launch", 3, "environment", ""));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("0 3 0 3 env\n"));
  EXPECT_THAT(result.output, HasSubstr("[1] 1 3 1 3 env\n"));
  EXPECT_THAT(result.output, HasSubstr("[2] 2 3 2 3 env\n"));
  EXPECT_THAT(result.output, Not(HasSubstr("[0]")));
}

TEST(Launcher, ForgetsAnOuterLauncher) {
  const CommandResult result =
      RunCommand("env OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 " + RankCommand("launch", 2, "environment", ""));
  EXPECT_THAT(result.output, HasSubstr("[1] 1 2 1 2 env\n"));
}

TEST(Launcher, EndsWithTheFirstFailure) {
  const CommandResult result = RunCommand(RankCommand("launch", 2, "exit", ""));
  EXPECT_EQ(result.code, 7) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 1"));
  EXPECT_THAT(result.output, HasSubstr("failed with exit code 7"));
}

// Whichever the launcher hears of first, the code is that of the rank that failed.
TEST(Launcher, EndsAsTheRankDidThatTheOthersBlame) {
  const CommandResult result = RunCommand(RankCommand("launch", 2, "blamed", ""));
  EXPECT_EQ(result.code, 128 + 9) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("rank 1 .pid [0-9]+ on host [^)]+. died"));
}

// The others would wait for it as long as they wait for any.
TEST(Launcher, EndsTheRunWhereARankLeavesAsASuccessBeforeTheyMet) {
  const CommandResult result = RunCommand(RankCommand("launch", 3, "absent", ""));
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("rank 1 .pid [0-9]+. ended with exit code 0 on host .* before it met the "
                                           "others, which wait for it; they are stopped"));
  EXPECT_LT(result.seconds, 30) << "and not the minute of --init_timeout_ms";
}

TEST(Launcher, KillsRanksThatDoNotEndAfterAFailure) {
  const CommandResult result = RunCommand(ProgramFolder() + "/rank_program launch 2 freeze shm");
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.code, 124) << result.output;
  EXPECT_LT(result.seconds, 12);
}

// 300 MB without an end: a search from the line's start for every piece would take minutes, a buffer for it too much.
TEST(Launcher, PassesOnALineWithoutEndInLittleTimeAndMemory) {
  const CommandResult result = RunCommand("bash -c 'set -o pipefail; ulimit -v 250000; " +
                                          RankCommand("launch", 2, "long_line", "") + " | tr -d x'");
  EXPECT_EQ(result.code, 0) << result.output.substr(0, 1000);
  EXPECT_EQ(result.output, "[1] begin end\n[1] another\n");
}

TEST(Launcher, PassesSignalsOn) {
  const std::string command = RankCommand("launch", 2, "wait_for_signal", "");
  for (const auto& [name, number] :
       {std::pair{"TERM", 15}, std::pair{"USR1", 10}, std::pair{"HUP", 1}, std::pair{"USR2", 12}}) {
    const CommandResult result =
        RunCommand(fmt::format("bash -c '{} & sleep 1.5; kill -{} $!; wait $!'", command, name));
    EXPECT_THAT(result.output, HasSubstr(fmt::format("\ngot signal {}", number))) << name;
    EXPECT_THAT(result.output, HasSubstr(fmt::format("[1] got signal {}", number)));
    EXPECT_EQ(result.code, 0) << result.output;
  }
}

TEST(Launcher, RefusesWhatCannotWorkAndSaysWhy) {
  LaunchOptions options;
  EXPECT_THAT(Message(Launch(options).status()), HasSubstr("no command"));
  options.command = {"/no/such/program"};
  EXPECT_THAT(Message(Launch(options).status()), HasSubstr("cannot run /no/such/program: No such file"));
  options.nproc_per_node = 0;
  EXPECT_THAT(Message(Launch(options).status()), HasSubstr("nproc_per_node >= 1"));
  options.nproc_per_node = 1;
  options.nnodes = 2;
  options.least_nodes = 0;
  EXPECT_THAT(Message(Launch(options).status()), HasSubstr("with 1 <= MIN <= MAX, found 0:2"));
  options.least_nodes.reset();
  EXPECT_THAT(Message(Launch(options).status()), HasSubstr("--master_port"));
  options.master_port = 65536;
  EXPECT_THAT(Message(Launch(options).status()), HasSubstr("--master_port of 0 to 65535"));
}

}  // namespace
}  // namespace switchyard
