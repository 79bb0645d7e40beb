// The launchers of several nodes, all on this host: how they meet, and what they say where that cannot work.
#include "tests/launch/nodes.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class Nodes : public NodesTest {
 protected:
  const int port_ = FreePort();
};

TEST_F(Nodes, MayHoldDifferentNumbersOfRanks) {
  const std::string command = RankProgram() + " environment";
  Start({Launch(3, 0, 2, port_, command), Launch(3, 1, 1, port_, command), Launch(3, 2, 2, port_, command)});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("0 5 0 2 env\n"));
  EXPECT_THAT(node(0).Output(), HasSubstr("[1] 1 5 1 2 env\n"));
  EXPECT_THAT(node(1).Output(), HasSubstr("[2] 2 5 0 1 env\n"));
  EXPECT_THAT(node(2).Output(), HasSubstr("[3] 3 5 0 2 env\n"));
  EXPECT_THAT(node(2).Output(), HasSubstr("[4] 4 5 1 2 env\n"));
}

TEST_F(Nodes, RanksOfUnevenNodesReduceTogether) {
  const std::string command = RankProgram() + " reduce tcp";
  Start({Launch(2, 0, 1, port_, command), Launch(2, 1, 2, port_, command)});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("rank 0 finished"));
  EXPECT_THAT(node(1).Output(), HasSubstr("rank 2 finished"));
}

TEST_F(Nodes, ThatDoNotComeAreNamed) {
  const std::string command = RankProgram() + " environment";
  Start({Launch(4, 0, 1, port_, command, "--rdzv_timeout=1"), Launch(4, 2, 1, port_, command, "--rdzv_timeout=1")});
  WaitForEnd();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(node(i).code(), 1);
    EXPECT_THAT(node(i).Output(), ContainsRegex("nodes 1, 3 of 4 did not come within [0-9.]+ s to node 0 on host"));
    EXPECT_THAT(node(i).Output(), HasSubstr("switchyard launch --nnodes=4"));
  }
}

TEST_F(Nodes, OfOneNumberAreRefused) {
  const std::string command = RankProgram() + " environment";
  Start({Launch(3, 0, 1, port_, command), Launch(3, 1, 1, port_, command), Launch(3, 1, 1, port_, command)});
  WaitForEnd();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(node(i).code(), 1);
    EXPECT_THAT(node(i).Output(), ContainsRegex("two processes say that they are node 1: pid [0-9]+ on host"));
  }
}

TEST_F(Nodes, ThatDisagreeOnTheirNumberAreRefused) {
  const std::string command = RankProgram() + " environment";
  Start({Launch(3, 0, 1, port_, command), Launch(2, 1, 1, port_, command)});
  WaitForEnd();
  for (size_t i = 0; i < 2; ++i)
    EXPECT_THAT(node(i).Output(), HasSubstr("says that there are 2 nodes, but node 0 was started with 3"));
}

TEST_F(Nodes, OfAnotherVersionAreRefused) {
  Start({Launch(2, 0, 1, port_, RankProgram() + " environment")});
  Visitor member(port_);
  ASSERT_TRUE(member.connected());
  member.Greet(kTokenOfTests, Visitor::Hello("node", 1, 2, "1", "0.0.9/1"));
  WaitForEnd();
  EXPECT_THAT(node(0).Output(),
              HasSubstr("node 1 (pid 4711 on host old-host) runs version 0.0.9/1, but node 0 runs " + EngineVersion()));
}

TEST_F(Nodes, AWrongAddressIsNamed) {
  Start({Launch(2, 1, 1, port_, RankProgram() + " environment", "--rdzv_timeout=1")});
  WaitForEnd();
  EXPECT_EQ(node(0).code(), 1);
  EXPECT_THAT(node(0).Output(), HasSubstr(fmt::format("127.0.0.1 port {}: Connection refused", port_)));
  EXPECT_THAT(node(0).Output(), HasSubstr("check --master_addr"));
  EXPECT_THAT(node(0).Output(), HasSubstr("127.0.0.1 is this host alone"));
  EXPECT_THAT(node(0).Output(), ContainsRegex("warning: node 1 has found no node 0 yet and tries for [0-9] s more at "
                                              "most: 127.0.0.1 port"));
  // A number for node 0 on a host that has not this address: documentation's, RFC 5737.
  Start({Launch(2, 0, 1, port_, "true", "--rdzv_timeout=1 --master_addr=192.0.2.1")});
  WaitForEnd();
  EXPECT_THAT(node(0).Output(), HasSubstr("192.0.2.1 is no address of this host"));
  EXPECT_THAT(node(0).Output(), ContainsRegex("warning: node 0 on host .* waits for node 1 of 2, 0 s more at most"));
}

TEST_F(Nodes, ATakenPortIsNamed) {
  const int listener = *ListenOn("127.0.0.1", 0);
  for (const int nodes : {1, 2}) {
    Start({Launch(nodes, 0, 1, *PortOf(listener), "true")});
    WaitForEnd();
    EXPECT_EQ(node(0).code(), 1);
    EXPECT_THAT(node(0).Output(), HasSubstr("Address already in use"));
    EXPECT_THAT(node(0).Output(), HasSubstr("choose another --master_port"));
  }
  close(listener);
}

TEST_F(Nodes, AFailureOnOneEndsTheOthersWithItsExitCode) {
  const std::string command = "sh -c 'test $RANK = 2 && exit 7; sleep 60'";
  Start({Launch(2, 0, 1, port_, command), Launch(2, 1, 2, port_, command)});
  WaitForEnd(30000);
  EXPECT_EQ(node(0).code(), 7) << Outputs();
  EXPECT_EQ(node(1).code(), 7) << Outputs();
  EXPECT_THAT(node(0).Output(), ContainsRegex("rank 2 .pid [0-9]+. failed with exit code 7 on host .*; the ranks of "
                                              "this node are stopped"));
}

TEST_F(Nodes, WhatARankSaysOfItsFailureIsSaidOnAllOfThem) {
  Start({Launch(2, 0, 1, port_, "sleep 60"), Launch(2, 1, 1, port_, "train --model=nothing")});
  WaitForEnd(30000);
  EXPECT_THAT(node(0).Output(), ContainsRegex("rank 1 .pid [0-9]+. failed with exit code 1 on host .*: unknown model "
                                              "'nothing'"));
  Start({Launch(2, 0, 1, port_, "sleep 60"), Launch(2, 1, 1, port_, "/no/such/program")});
  WaitForEnd(30000);
  EXPECT_THAT(node(0).Output(),
              ContainsRegex("launch: cannot run /no/such/program: No such file or directory on host " + HostName()));
  EXPECT_THAT(node(1).Output(), HasSubstr("launch: cannot run /no/such/program: No such file or directory\n"));
}

TEST_F(Nodes, ASettingThatOneAloneHasIsNamedOnceOnEach) {
  for (const int with : {0, 1}) {
    Start({Launch(2, 0, 1, port_, Training(with == 0 ? "--save_every=3" : "")),
           Launch(2, 1, 1, port_, Training(with == 1 ? "--save_every=3" : ""))});
    WaitForEnd(30000);
    const std::string difference = with == 0 ? "rank 1 has no --save_every, rank 0 has \"--save_every=3\""
                                             : "rank 1 has \"--save_every=3\", rank 0 has no --save_every";
    for (const int i : {0, 1}) {
      const std::string said = node(i).Output();
      EXPECT_NE(node(i).code(), 0);
      EXPECT_THAT(said, HasSubstr(difference));
      EXPECT_EQ(said.find(difference), said.rfind(difference)) << said;
    }
  }
}

TEST_F(Nodes, AKilledLauncherIsNamed) {
  Start({Launch(2, 0, 1, port_, "sleep 60"), Launch(2, 1, 2, port_, "sh -c 'echo started; sleep 60'")});
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(1).Output().find("started") != std::string::npos; }, 30000), 0);
  node(1).Signal(SIGKILL);
  WaitForEnd(30000);
  EXPECT_EQ(node(0).code(), 1);
  EXPECT_THAT(node(0).Output(), ContainsRegex("node 1 .launcher pid [0-9]+ on host .*, ranks 1, 2. is gone"));
}

// Node 0 is frozen and says nothing any more.
TEST_F(Nodes, ASignalEndsTheWaitForTheWordOfNodeZero) {
  Start({Launch(2, 0, 1, port_, "sleep 60", "--max_restarts=1"),
         Launch(2, 1, 1, port_, "sh -c 'echo started; until [ -e failing ]; do sleep 0.05; done; exit 7'")});
  const auto await_of_node_1 = [&](const char* text) {
    return RunningProgram::WaitFor([&] { return node(1).Output().find(text) != std::string::npos; }, 30000) >= 0;
  };
  ASSERT_TRUE(await_of_node_1("started"));
  node(0).Signal(SIGSTOP);
  std::ofstream(In("node1/failing")).put('\n');
  ASSERT_TRUE(await_of_node_1("exit code 7")) << Outputs();
  EXPECT_LT(RunningProgram::WaitFor([&] { return node(1).HasEnded(); }, 2000), 0) << Outputs();
  node(1).Signal(SIGTERM);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(1).HasEnded(); }, 30000), 0) << Outputs();
  EXPECT_EQ(node(1).code(), 7) << Outputs();
}

TEST_F(Nodes, WhereTheChainsOfTcpAreSwitchedOnOneAloneAreRefusedByTheNameOfTheSetting) {
  const std::string command = RankProgram() + " reduce tcp";
  Start({Launch(2, 0, 1, port_, "env SWITCHYARD_TCP_CHAIN=1 " + command), Launch(2, 1, 1, port_, command)});
  WaitForEnd(30000);
  EXPECT_THAT(node(1).Output(), HasSubstr("SWITCHYARD_TCP_CHAIN is 1 on rank 0 and unset on rank 1"));
}

// A rank alone meets nobody, and would leave what it inherits open.
TEST_F(Nodes, ARankAloneInheritsNoListener) {
  Start({Launch(1, 0, 1, 0, "sh -c 'echo inherits: $SWITCHYARD_MASTER_SOCKET.; ls -l /proc/$$/fd'")});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("inherits: ."));
  EXPECT_THAT(node(0).Output(), testing::Not(HasSubstr("socket:")));
}

TEST_F(Nodes, ThatFinishAtDifferentTimesAllSucceed) {
  Start({Launch(3, 0, 1, port_, "true"), Launch(3, 1, 1, port_, "sleep 1"), Launch(3, 2, 1, port_, "true")});
  ExpectSuccessOfAll();
}

// Each node has a folder of its own: what ranks share is gathered, and the user hears why. Who copies that to all goes
// on from it; who has none there, or another, is refused.
TEST_F(Nodes, WithoutAFileSystemOfAllGatherTheirCheckpoints) {
  const std::string latest = "/checkpoints/latest/";
  const auto start = [&](const std::string& command) {
    Start({Launch(2, 0, 1, port_, command), Launch(2, 1, 1, port_, command)});
  };
  // In the second, rank 1 finds what a start that was killed has left.
  std::filesystem::create_directories(In("node1/run/mlp/shapes/b/run/.ranks"));
  for (const auto& [suffix, why] :
       {std::pair("a", "No such file or directory"), {"b", "what it writes there does not come to rank 0"}}) {
    start(Training(fmt::format("--zero=1 --optimizer=adamw --collective=tcp --suffix={}", suffix)));
    ExpectSuccessOfAll();
    const std::string run = fmt::format("run/mlp/shapes/{}/run", suffix);
    EXPECT_THAT(node(0).Output(), ContainsRegex(fmt::format("warning: rank 1 on .* does not share the run folder {} "
                                                            "with rank 0 \\(.*{}",
                                                            run, why)));
    EXPECT_TRUE(std::filesystem::exists(In("node0/" + run + latest + "state.safetensors")));
    EXPECT_FALSE(std::filesystem::exists(In("node0/" + run + latest + "state.index.json")));
    EXPECT_FALSE(std::filesystem::exists(In("node0/" + run + "/.ranks")));
  }

  const std::string on = "train --device=cpu --threads=1 --collective=tcp --zero=1 --resume=run/mlp/shapes/a/run ";
  start(on + "--steps=10");
  WaitForEnd();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(node(1).Output(), HasSubstr("no checkpoint at run/mlp/shapes/a/run"));

  std::filesystem::copy(In("node0/run/mlp/shapes/a"), In("node1/run/mlp/shapes/a"),
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  start(on + "--steps=10");
  ExpectSuccessOfAll();

  start(on + "--steps=12");  // from update 10 there, from update 8 here
  WaitForEnd();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(Outputs(), HasSubstr("run/mlp/shapes/a/run is not the same on all ranks"));
}

}  // namespace
}  // namespace switchyard
