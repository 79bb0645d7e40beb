// Two network namespaces joined by a pair of virtual interfaces are two nodes: their ranks share neither memory nor the
// loopback, and have host names of their own. Skipped where namespaces may not be made (that takes root).
#include "tests/data/files_for_tests.h"
#include "tests/launch/nodes.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class TwoHosts : public NodesTest {
 protected:
  void SetUp() override {
    const CommandResult made = RunCommand(fmt::format(
        "bash -c 'set -e; ip netns add {0}a; ip netns add {0}b; ip link add veth netns {0}a type veth peer name veth "
        "netns {0}b; for i in a:1 b:2; do ip -n {0}${{i%:*}} addr add 10.213.77.${{i#*:}}/24 dev veth; ip -n "
        "{0}${{i%:*}} "
        "link set veth up; ip -n {0}${{i%:*}} link set lo up; done; ip netns exec {0}a unshare --uts hostname x'",
        name_));
    if (made.code != 0) GTEST_SKIP() << "network namespaces cannot be made here: " << made.output;
  }
  ~TwoHosts() override {
    programs_.clear();
    for (const char* side : {"a", "b"}) RunCommand(fmt::format("ip netns del {}{}", name_, side));
  }
  // The command on host "node-a" or "node-b".
  std::string On(char side, const std::string& command) const {
    return fmt::format("ip netns exec {}{} unshare --uts sh -c 'hostname node-{}; exec {}'", name_, side, side,
                       command);
  }
  std::string LaunchOn(char side, int ranks, const std::string& command, const std::string& more = "") const {
    return On(side, Launch(2, side - 'a', ranks, 29517, command, "--master_addr=10.213.77.1 " + more));
  }
  // Goes on for minutes unless something happens.
  static std::string EndlessTraining(const std::string& more = "") {
    return Training("--steps=2000000 --train_size=512 --eval_every=0 " + more);
  }
  bool BothTrain() { return node(0).Trains(2); }

  const std::string name_ = fmt::format("swy{}", getpid());
};

TEST_F(TwoHosts, TrainToTheSameWeightsAsOne) {
  for (const int ranks : {1, 2}) {
    Start({LaunchOn('a', ranks, Training()), LaunchOn('b', ranks, Training())});
    ExpectSuccessOfAll();
    EXPECT_THAT(node(0).Output(), HasSubstr("tcp")) << "the automatic choice across hosts without mpirun";
    EXPECT_THAT(node(0).Output(), HasSubstr("on node-b"));
    ASSERT_FALSE(Weights("node0").empty());
    EXPECT_EQ(Weights("node0"), WeightsOfOneNode(2 * ranks)) << ranks << " ranks on each host";
    for (const char* folder : {"node0", "node1", "one"}) std::filesystem::remove_all(In(folder) + "/run");
  }
}

TEST_F(TwoHosts, MayHoldDifferentNumbersOfRanks) {
  Start({LaunchOn('a', 2, RankProgram() + " reduce tcp"), LaunchOn('b', 1, RankProgram() + " reduce tcp")});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(1).Output(), HasSubstr("[2] rank 2 finished"));
}

TEST_F(TwoHosts, AreNotJoinedThroughSharedMemory) {
  Start({LaunchOn('a', 1, Training("--collective=shm")), LaunchOn('b', 1, Training("--collective=shm"))});
  WaitForEnd();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(node(0).Output(), HasSubstr("there are 2 nodes"));
}

TEST_F(TwoHosts, WithOtherDataAreRefused) {
  for (const char* host : {"node0", "node1"}) {
    auto files = SmallImageFolder(2, 1);
    if (host == std::string("node1")) files[0].second = files[1].second;
    for (const auto& [name, bytes] : files) folder_.Write(fmt::format("{}/photos/{}", host, name), bytes);
  }
  const std::string command =
      "train --model=mlp --dataset=imagefolder --data=photos --image_size=8 --width=8 --batch_size=2 --steps=1 "
      "--device=cpu --threads=1 --output=run";
  Start({LaunchOn('a', 1, command), LaunchOn('b', 1, command)});
  WaitForEnd();
  for (const int i : {0, 1}) {
    EXPECT_NE(node(i).code(), 0);
    EXPECT_THAT(node(i).Output(), ContainsRegex("the data are not the same on all ranks: rank 1 has .training [0-9]+ "
                                                "samples, checksum"));
  }
}

TEST_F(TwoHosts, AKilledOneIsNamedByTheSurvivors) {
  Start({LaunchOn('a', 1, EndlessTraining()), LaunchOn('b', 1, EndlessTraining())});
  ASSERT_TRUE(BothTrain()) << Outputs();
  node(1).Signal(SIGKILL);  // its ranks go with it
  WaitForEnd(20000);
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(node(0).Output(), ContainsRegex("rank 1 .pid [0-9]+ on host node-b. died"));
}

TEST_F(TwoHosts, OneThatIsCutOffIsNamed) {
  const std::string training = EndlessTraining("--freeze_limit_ms=2000");
  Start({LaunchOn('a', 1, training), LaunchOn('b', 1, training)});
  ASSERT_TRUE(BothTrain()) << Outputs();
  ASSERT_EQ(RunCommand(fmt::format("ip -n {}b link set veth down", name_)).code, 0);
  WaitForEnd(20000);
  EXPECT_THAT(node(0).Output(), ContainsRegex("rank 1 .pid [0-9]+ on host node-b. froze"));
  EXPECT_THAT(node(1).Output(), ContainsRegex("rank 0 .pid [0-9]+ on host node-a. froze"));
}

// Ranks that have not met yet, so that nobody but the launchers watches.
TEST_F(TwoHosts, OneThatIsCutOffIsNamedByTheLauncherOfTheOtherInHalfAMinute) {
  const std::string command = RankProgram() + " wait_for_signal";
  Start({LaunchOn('a', 1, command), LaunchOn('b', 1, command)});
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(1).Output().find("ready") != std::string::npos; }, 30000), 0);
  ASSERT_EQ(RunCommand(fmt::format("ip -n {}b link set veth down", name_)).code, 0);
  WaitForEnd(60000);
  EXPECT_THAT(node(0).Output(), ContainsRegex("node 1 .launcher pid [0-9]+ on host node-b, rank 1. is gone"));
  EXPECT_THAT(node(1).Output(), ContainsRegex("node 0 .launcher pid [0-9]+ on host node-a, rank 0. is gone"));
}

TEST_F(TwoHosts, AnAddressThatNobodyHasIsNamed) {
  Start({On('b', Launch(2, 1, 1, 29517, "true", "--master_addr=10.213.77.9 --rdzv_timeout=1"))});
  WaitForEnd(20000);
  EXPECT_EQ(node(0).code(), 1);
  EXPECT_THAT(node(0).Output(), ContainsRegex("10.213.77.9 port 29517: (No route to host|Connection timed out)"));
}

TEST_F(TwoHosts, ASignalToOneLauncherSavesACheckpoint) {
  Start({LaunchOn('a', 1, EndlessTraining()), LaunchOn('b', 1, EndlessTraining())});
  ASSERT_TRUE(BothTrain()) << Outputs();
  node(1).Signal(SIGTERM);
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("go on with --resume="));
}

// mpirun starts its daemon on the other host by this script instead of ssh.
TEST_F(TwoHosts, MpirunJoinsThem) {
  if (!HasMpirun() || !HasCollective("mpi")) GTEST_SKIP() << "Open MPI is not here";
  const std::string agent = In("agent");
  std::ofstream(agent) << "#!/bin/sh\nshift\nexec ip netns exec " << name_
                       << "b unshare --uts sh -c \"hostname node-b; $*\"\n";
  std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
  for (const char* collective : {"mpi", "tcp"}) {
    std::filesystem::remove_all(In("node0") + "/run");
    Start({On('a', fmt::format("mpirun --bind-to none --oversubscribe --allow-run-as-root --mca plm_rsh_agent {} -H "
                               "10.213.77.1:1,10.213.77.2:1 -n 2 {} {}",
                               agent, Program(), Training(fmt::format("--collective={}", collective))))});
    ExpectSuccessOfAll();
    EXPECT_THAT(node(0).Output(), HasSubstr("on node-b"));
    EXPECT_EQ(Weights("node0"), WeightsOfOneNode(2)) << collective;
    std::filesystem::remove_all(In("one") + "/run");
  }
}

}  // namespace
}  // namespace switchyard
