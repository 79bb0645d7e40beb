// Ranks that no launcher of ours started: as srun and torchrun set their variables, and torchrun itself.
#include "tests/launch/nodes.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// On the loopback they need no token.
class Environments : public NodesTest {
 protected:
  Environments() { unsetenv("SWITCHYARD_TOKEN"); }
  const int port_ = FreePort();
};

TEST_F(Environments, ASlurmStepTrainsLikeOurLauncher) {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(fmt::format(
        "env SLURM_JOB_ID=71 SLURM_STEP_ID=0 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID={} SLURM_LOCALID={} "
        "SLURM_NODEID={} 'SLURM_STEP_TASKS_PER_NODE=2,1' 'SLURM_STEP_NODELIST=localhost,other[1-2]' MASTER_PORT={} {} "
        "{}",
        rank, rank % 2, rank / 2, port_, Program(), Training("--collective=tcp")));
  }
  Start(ranks);
  ExpectSuccessOfAll();
  EXPECT_EQ(Weights("node0"), WeightsOfOneNode(3));
}

TEST_F(Environments, TorchrunsVariablesTrainLikeOurLauncher) {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(
        fmt::format("env RANK={0} WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK={0} GROUP_WORLD_SIZE=2 "
                    "MASTER_ADDR=127.0.0.1 MASTER_PORT={1} TORCHELASTIC_RUN_ID=a {2} {3}",
                    rank, port_, Program(), Training("--collective=shm")));
  }
  Start(ranks);
  ExpectSuccessOfAll();
  EXPECT_EQ(Weights("node0"), WeightsOfOneNode(2));
}

TEST_F(Environments, TorchrunItselfTrainsLikeOurLauncher) {
  Start({fmt::format("torchrun --nproc_per_node=2 --master_port={} --no-python {} {}", port_, Program(), Training())});
  WaitForEnd(120000);
  if (node(0).code() == 127) GTEST_SKIP() << "torchrun was not found";
  EXPECT_EQ(node(0).code(), 0) << Outputs();
  EXPECT_EQ(Weights("node0"), WeightsOfOneNode(2));
}

// PMIx where Slurm offers it: mpirun's stands in for it. The address that Slurm names is not asked for then.
TEST_F(Environments, ASlurmStepWithPmixNeedsNoAddressAndNoToken) {
  if (!HasMpirun()) GTEST_SKIP() << "mpirun was not found";
  const std::string script = In("rank.sh");
  std::ofstream(script)
      << "export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_LOCALID=$OMPI_COMM_WORLD_RANK SLURM_NODEID=0 "
         "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=nowhere.invalid\n"
      << "unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK\nexec " << RankProgram() << " reduce tcp\n";
  Start({"mpirun --bind-to none --oversubscribe --allow-run-as-root -n 2 sh " + script});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("rank 0 finished"));
  EXPECT_THAT(node(0).Output(), HasSubstr("rank 1 finished"));
  EXPECT_FALSE(std::filesystem::exists(In("cache/switchyard/token"))) << "another token was needed";
}

// Who started the ranks ends all of them, one after the other, where one died that had not come yet: none of those that
// had is at fault.
TEST_F(Environments, ARankThatIsEndedWhileOthersGatherBlamesNobody) {
  const auto rank = [&](int number) {
    return fmt::format(
        "env RANK={} WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 LOCAL_RANK={} MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {}", number,
        number, port_, Program(), Training());
  };
  const std::string connected = fmt::format(":{:04X} 01 ", port_);  // remote port and state in /proc/net/tcp
  for (const bool ends_both : {true, false}) {
    Start({rank(0), rank(1)});
    const auto has_come = [&] { return Contents("/proc/net/tcp").find(connected) != std::string::npos; };
    ASSERT_GE(RunningProgram::WaitFor(has_come, 60000), 0) << Outputs();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // it says who it is
    node(1).Signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (ends_both) node(0).Signal(SIGTERM);
    WaitForEnd();
    const std::string died = fmt::format("rank 1 (pid {}", node(1).pid());
    if (ends_both)
      EXPECT_THAT(node(0).Output(), Not(HasSubstr("rank 1")));
    else
      EXPECT_THAT(node(0).Output(), AllOf(HasSubstr(died), HasSubstr("died while the ranks were gathering")));
  }
}

// Two runs that were given the same address by mistake: nobody joins the other's.
TEST_F(Environments, AnotherRunAtTheSamePortIsNotJoined) {
  const auto rank = [&](int number, const char* run) {
    return fmt::format(
        "env RANK={} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} TORCHELASTIC_RUN_ID={} {} {}",
        number, port_, run, Program(), Training("--init_timeout_ms=2000"));
  };
  Start({rank(0, "one"), rank(1, "two")});
  WaitForEnd();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_NE(node(1).code(), 0);
  EXPECT_THAT(node(0).Output(), HasSubstr("rank 1 of 2 did not come"));
  EXPECT_THAT(node(1).Output(), HasSubstr("closed the connection"));
}

}  // namespace
}  // namespace switchyard
