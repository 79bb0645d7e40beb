// A training run on two ranks of which one dies, freezes or is told to stop.
#include "tests/cli/program.h"
#include "tests/faults/running_program.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

struct Setting {
  Start start;
  std::string collective;
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.start << "_" << setting.collective;
}

class Liveness : public ProgramTest, public testing::WithParamInterface<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().start == Start::kMpirun && !HasMpirun()) GTEST_SKIP() << "mpirun was not found";
    if (!HasCollective(GetParam().collective))
      GTEST_SKIP() << "collective " << GetParam().collective << " was not built";
  }
  // Goes on for minutes unless something happens.
  std::string EndlessTraining(const std::string& more) const {
    return CommandLineOf(GetParam().start,
                         SmallTraining("--steps=2000000 --train_size=512 --eval_every=0 --collective=" +
                                       GetParam().collective + " " + more));
  }
  bool mpirun() const { return GetParam().start == Start::kMpirun; }
};

INSTANTIATE_TEST_SUITE_P(Started, Liveness,
                         testing::Values(Setting{Start::kLaunch, "shm"}, Setting{Start::kMpirun, "shm"},
                                         Setting{Start::kMpirun, "mpi"}),
                         testing::PrintToStringParamName());

TEST_P(Liveness, AKilledRankIsNamedAndTheSurvivorsLeaveWithinASecond) {
  for (const int victim : {1, 0}) {
    // A starved machine may hold a process up, but not three times.
    for (int attempt = 1;; ++attempt) {
      std::filesystem::remove_all(In("run"));
      RunningProgram program(folder_.path(), EndlessTraining(""));
      ASSERT_TRUE(program.Trains(2)) << program.Output();
      kill(program.Rank(victim), SIGKILL);
      const int64_t survivor_ms =
          RunningProgram::WaitFor([&] { return RunningProgram::IsGone(program.Rank(1 - victim)); }, 10000);
      ASSERT_GE(survivor_ms, 0) << "the survivor hangs\n" << program.Output();
      const int64_t end_ms = RunningProgram::WaitFor([&] { return program.HasEnded(); }, 10000);
      ASSERT_GE(end_ms, 0) << "the launcher hangs";
      EXPECT_NE(program.code(), 0);
      // mpirun may cut off what the survivor says.
      if (!mpirun()) {
        EXPECT_THAT(program.Output(),
                    ContainsRegex(fmt::format("rank {} .pid {} on host [^)]+. died", victim, program.Rank(victim))));
      }
      if (survivor_ms <= 1000 && survivor_ms + end_ms <= 2500) break;
      ASSERT_LT(attempt, 3) << "the survivor took " << survivor_ms << " ms, the launcher " << end_ms << " more\n"
                            << program.Output();
    }
  }
}

TEST_P(Liveness, AStoppedRankIsNamedWithinTheFreezeLimit) {
  RunningProgram program(folder_.path(), EndlessTraining("--freeze_limit_ms=1500"));
  ASSERT_TRUE(program.Trains(2)) << program.Output();
  kill(program.Rank(1), SIGSTOP);
  const int64_t named_ms =
      RunningProgram::WaitFor([&] { return program.Output().find("froze") != std::string::npos; }, 15000);
  EXPECT_GE(named_ms, 0) << "nobody said that it froze\n" << program.Output();
  EXPECT_LE(named_ms, 3000);
  EXPECT_THAT(program.Output(), ContainsRegex(fmt::format("rank 1 .pid {} on host [^)]+. froze", program.Rank(1))));
  EXPECT_GE(RunningProgram::WaitFor([&] { return RunningProgram::IsGone(program.Rank(0)); }, 2000), 0);
  kill(program.Rank(1), SIGCONT);  // mpirun waits for a stopped process
  EXPECT_GE(RunningProgram::WaitFor([&] { return program.HasEnded(); }, 10000), 0);
  EXPECT_NE(program.code(), 0);
}

// Rank 0 sees it and has to say so before it leaves, or some of the others take its end for a death, which the launcher
// would say beside what all of them say.
TEST_F(ProgramTest, AStoppedRankOfFourIsNamedByEverySurvivorAndTheLauncherSaysItOnce) {
  RunningProgram program(folder_.path(),
                         fmt::format("{} launch --nproc_per_node=4 {}", Program(),
                                     SmallTraining("--steps=2000000 --train_size=512 --eval_every=0 --threads=1 "
                                                   "--freeze_limit_ms=1500")));
  ASSERT_TRUE(program.Trains(4)) << program.Output();
  kill(program.Rank(2), SIGSTOP);
  ASSERT_GE(RunningProgram::WaitFor([&] { return program.HasEnded(); }, 20000), 0) << program.Output();
  EXPECT_NE(program.code(), 0);
  const std::string culprit = fmt::format("rank 2 .pid {} on host [^)]+. froze", program.Rank(2));
  EXPECT_THAT(program.Output(), ContainsRegex("error: launch: " + culprit));
  const std::string output = program.Output();
  const std::regex error("error: ");
  EXPECT_EQ(std::distance(std::sregex_iterator(output.begin(), output.end(), error), std::sregex_iterator()), 1)
      << output;
  EXPECT_THAT(program.Output(), testing::Not(HasSubstr("died")));
  EXPECT_THAT(program.Output(), testing::Not(HasSubstr("failed with exit code")));
}

TEST_P(Liveness, ASignalToStopSavesACheckpointFromWhichTheRunGoesOn) {
  RunningProgram program(folder_.path(), EndlessTraining(""));
  ASSERT_TRUE(program.Trains(2)) << program.Output();
  // mpirun ends its ranks on SIGTERM; SIGUSR1 it passes on.
  program.Signal(mpirun() ? SIGUSR1 : SIGTERM);
  ASSERT_GE(RunningProgram::WaitFor([&] { return program.HasEnded(); }, 20000), 0) << program.Output();
  EXPECT_EQ(program.code(), 0) << program.Output();
  EXPECT_THAT(program.Output(), HasSubstr("go on with --resume="));

  std::smatch match;
  const std::string text = program.Output();
  ASSERT_TRUE(std::regex_search(text, match, std::regex("after update ([0-9]+)")));
  const int64_t update = std::stoll(match[1]);
  // Few updates more, so the run ends by itself.
  ExpectSuccess(
      Run(fmt::format("train --device=cpu --resume=run/mlp/shapes/a/run --steps={}", update + 5), GetParam().start),
      {fmt::format("trained {} updates", update + 5)});
}

TEST_F(ProgramTest, ASignalToOneRankStopsAllOfThem) {
  RunningProgram program(
      folder_.path(), CommandLineOf(Start::kLaunch, SmallTraining("--steps=2000000 --train_size=512 --eval_every=0")));
  ASSERT_TRUE(program.Trains(2)) << program.Output();
  kill(program.Rank(1), SIGUSR1);
  ASSERT_GE(RunningProgram::WaitFor([&] { return program.HasEnded(); }, 20000), 0) << program.Output();
  EXPECT_EQ(program.code(), 0) << program.Output();
  EXPECT_TRUE(std::filesystem::exists(SmallRun() + "/checkpoints/latest/state.json"));
}

// The hexadecimal number behind `name` in a thread's status.
uint64_t SignalSet(const std::string& status_file, const std::string& name) {
  std::ifstream file(status_file);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stoull(line.substr(name.size() + 1), nullptr, 16);
  }
  return 0;
}

// A matrix product may have its stack pointer in a workspace when the signal comes.
TEST_F(ProgramTest, StopSignalsFindNoHandlerAndOneThreadThatTakesThem) {
  const std::string training =
      CommandLineOf(Start::kAlone, SmallTraining("--width=256 --batch_size=32 --steps=2000000 --eval_every=0"));
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::filesystem::remove_all(In("run"));
    RunningProgram program(folder_.path(), training);
    ASSERT_TRUE(program.Trains(1)) << program.Output();
    const uint64_t signals = uint64_t{1} << (SIGTERM - 1) | uint64_t{1} << (SIGUSR1 - 1);
    const std::string process = fmt::format("/proc/{}", program.Rank(0));
    EXPECT_EQ(SignalSet(process + "/status", "SigCgt") & signals, 0u);
    int open_threads = 0;
    for (const auto& thread : std::filesystem::directory_iterator(process + "/task"))
      open_threads += (SignalSet(thread.path().string() + "/status", "SigBlk") & signals) != signals;
    EXPECT_LE(open_threads, 1);  // the one that waits for them

    for (int i = 0; !program.HasEnded() && i < 100000; ++i) {
      program.Signal(i % 2 == 0 ? SIGUSR1 : SIGTERM);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    // 0, or ended by one more signal when the run was over.
    EXPECT_THAT(program.code(), testing::AnyOf(0, 128 + SIGTERM, 128 + SIGUSR1)) << program.Output();
    EXPECT_THAT(program.Output(), HasSubstr("go on with --resume="));
    EXPECT_TRUE(std::filesystem::exists(SmallRun() + "/checkpoints/latest/state.json"));
  }
}

}  // namespace
}  // namespace switchyard
