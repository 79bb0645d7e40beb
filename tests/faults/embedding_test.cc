// A program that embeds the library outlives a peer: what it waited for ends with a Status that names the rank, and the
// process is its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "tests/data/files_for_tests.h"
#include "tests/faults/running_program.h"
#include "tests/parallel/run_command.h"
#include "tests/parallel/visitor.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

struct Case {
  std::string wait, collective, harm;
  int victim;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.wait << "_" << c.collective << "_rank_" << c.victim << "_" << c.harm;
}

class Embedding : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!HasCollective(GetParam().collective))
      GTEST_SKIP() << "collective " << GetParam().collective << " was not built";
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  std::string Line(const std::string& report) const {
    const Case& c = GetParam();
    return fmt::format("{}/embedding_program {} {} {} {} {}", ProgramFolder(), c.wait, c.collective, c.victim, c.harm,
                       report);
  }
  static std::string Culprit() {
    const Case& c = GetParam();
    return fmt::format("rank {} .pid [0-9]+ on host [^)]+. {}", c.victim, c.harm == "stop" ? "froze" : "died");
  }
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Waits, Embedding,
                         testing::Values(Case{"train", "shm", "kill", 1}, Case{"train", "shm", "stop", 1},
                                         Case{"train", "tcp", "kill", 0}, Case{"train", "tcp", "stop", 0},
                                         Case{"all_reduce", "shm", "kill", 0}, Case{"all_reduce", "tcp", "stop", 1},
                                         Case{"barrier", "shm", "kill", 1}, Case{"barrier", "shm", "stop", 0},
                                         Case{"get", "shm", "kill", 1}, Case{"get", "shm", "stop", 0}),
                         testing::PrintToStringParamName());

TEST_P(Embedding, OutlivesAPeer) {
  const int port = FreePort();
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string own = fmt::format("{}/{}", folder_.path(), rank);
    std::filesystem::create_directory(own);
    ranks.push_back(std::make_unique<RunningProgram>(
        own, fmt::format("env RANK={} WORLD_SIZE=2 LOCAL_RANK={} LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                         "MASTER_PORT={} {}",
                         rank, rank, port, Line("report"))));
  }
  const int survivor = 1 - GetParam().victim;
  EXPECT_GE(RunningProgram::WaitFor([&] { return ranks[survivor]->HasEnded(); }, 30000), 0) << "the survivor hangs";
  const std::string report = Contents(fmt::format("{}/{}/report", folder_.path(), survivor));
  EXPECT_EQ(ranks[survivor]->code(), 0) << report << ranks[survivor]->Output();
  EXPECT_THAT(report, ContainsRegex(Culprit()));
  EXPECT_THAT(report, HasSubstr("the program goes on"));
}

// mpirun ends the survivors of a crash soon after it, so the victim is stopped.
class EmbeddingUnderMpirun : public Embedding {};

INSTANTIATE_TEST_SUITE_P(Waits, EmbeddingUnderMpirun,
                         testing::Values(Case{"train", "mpi", "stop", 1}, Case{"train", "shm", "stop", 0},
                                         Case{"all_reduce", "mpi", "stop", 0}),
                         testing::PrintToStringParamName());

TEST_P(EmbeddingUnderMpirun, OutlivesAPeer) {
  if (!HasMpirun()) GTEST_SKIP() << "mpirun was not found";
  RunningProgram program(folder_.path(), "mpirun --bind-to none --oversubscribe --allow-run-as-root -n 2 " +
                                             Line(folder_.path() + "/report"));
  const auto report = [&] { return Contents(folder_.path() + "/report"); };
  EXPECT_GE(RunningProgram::WaitFor([&] { return report().find("goes on") != std::string::npos; }, 30000), 0)
      << program.Output();
  EXPECT_THAT(report(), ContainsRegex(Culprit()));
}

}  // namespace
}  // namespace switchyard
