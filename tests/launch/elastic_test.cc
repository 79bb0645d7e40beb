// A run over several nodes goes on after a failure, with the nodes that are left.
#include "tests/launch/nodes.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class Elastic : public NodesTest {
 protected:
  // One rank on node `node` of `nodes`, "2" or "1:2"; all nodes write to one folder. Node 0 alone has to know how often
  // ranks are started again.
  std::string Node(const std::string& nodes, int node, const std::string& more, const std::string& flags = "",
                   const std::string& command = Program()) const {
    return fmt::format(
        "{} launch --nnodes={} --node_rank={} --nproc_per_node=1 --master_port={} {} {} {} "
        "{} --collective=tcp --output={} {}",
        Program(), nodes, node, port_, node == 0 ? "--max_restarts=2" : "", flags, command, Training(), In("shared"),
        more);
  }
  std::string Checkpoints() const { return In("shared/mlp/shapes/a/run/checkpoints"); }
  void AwaitCheckpoint() {
    ASSERT_GE(RunningProgram::WaitFor([&] { return std::filesystem::exists(Checkpoints() + "/latest"); }, 60000), 0)
        << Outputs();
  }
  const int port_ = FreePort();
  const std::string long_ = "--steps=1500 --save_every=20 --keep=2";
};

TEST_F(Elastic, ARunGoesOnWithoutANodeThatWasKilledAndKeepsItsGlobalBatch) {
  Start({Node("1:2", 0, long_), Node("1:2", 1, long_)});
  AwaitCheckpoint();
  node(1).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(0).HasEnded(); }, 90000), 0) << Outputs();
  EXPECT_EQ(node(0).code(), 0) << Outputs();
  const std::string said = node(0).Output();
  EXPECT_THAT(said, HasSubstr("restart 1 of 2"));
  EXPECT_THAT(said, HasSubstr("1 of 2 nodes take part, with 1 rank"));
  EXPECT_THAT(said, HasSubstr("trained 1500 updates"));
  EXPECT_THAT(Contents(Checkpoints() + "/../config.json"), testing::ContainsRegex("global_batch_size[^0-9]+8"));
}

// Each node holds a whole model, which its two ranks divide: one data-parallel rank is left of two.
TEST_F(Elastic, ARunWhoseRanksShareModelsGoesOnWithoutANode) {
  const std::string shared = "--tp=2 --steps=1500 --save_every=20 --keep=2";
  const auto node_of_two = [&](int index) {
    std::string line = Node("1:2", index, shared);
    const std::string one = "--nproc_per_node=1";
    return line.replace(line.find(one), one.size(), "--nproc_per_node=2");
  };
  Start({node_of_two(0), node_of_two(1)});
  AwaitCheckpoint();
  node(1).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(0).HasEnded(); }, 90000), 0) << Outputs();
  EXPECT_EQ(node(0).code(), 0) << Outputs();
  const std::string said = node(0).Output();
  EXPECT_THAT(said, HasSubstr("1 of 2 nodes take part, with 2 ranks"));
  EXPECT_THAT(said, HasSubstr("rank 3 (data 1, tensor 1)"));
  EXPECT_THAT(said, HasSubstr("8 images per update: 4 per rank, 4 ranks, 2 of which share each model"));
  EXPECT_THAT(said, HasSubstr("8 images per update: 4 per rank, 2 ranks, 2 of which share each model, 2 micro-steps"));
  EXPECT_THAT(said, HasSubstr("trained 1500 updates"));
}

// Each rank wrote its part of what one is to go on from.
TEST_F(Elastic, ARunWhoseRanksShareTheStateGoesOnWithoutANode) {
  const std::string shared = "--zero=1 --optimizer=adamw --steps=1500 --save_every=20 --keep=2";
  Start({Node("1:2", 0, shared), Node("1:2", 1, shared)});
  AwaitCheckpoint();
  EXPECT_TRUE(std::filesystem::exists(Checkpoints() + "/latest/state-00002-of-00002.safetensors"));
  node(1).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(0).HasEnded(); }, 90000), 0) << Outputs();
  EXPECT_EQ(node(0).code(), 0) << Outputs();
  EXPECT_THAT(node(0).Output(), HasSubstr("1 of 2 nodes take part, with 1 rank"));
  EXPECT_THAT(node(0).Output(), HasSubstr("trained 1500 updates"));
}

// Rank 0 gathers what ranks of other nodes cannot write where it looks, and goes on alone from that.
TEST_F(Elastic, NodesThatShareNoFileSystemLeaveWhatNodeZeroNeeds) {
  const auto apart = [&](int index) {
    std::string line = Node("1:2", index, "--zero=1 --optimizer=adamw --steps=1500 --save_every=20 --keep=2");
    const std::string output = "--output=" + In("shared");
    return line.replace(line.find(output), output.size(), "--output=run");
  };
  Start({apart(0), apart(1)});
  const std::string latest = In("node0/run/mlp/shapes/a/run/checkpoints/latest");
  ASSERT_GE(RunningProgram::WaitFor([&] { return std::filesystem::exists(latest); }, 60000), 0) << Outputs();
  node(1).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(0).HasEnded(); }, 90000), 0) << Outputs();
  EXPECT_EQ(node(0).code(), 0) << Outputs();
  EXPECT_THAT(node(0).Output(), HasSubstr("does not share the run folder"));
  EXPECT_THAT(node(0).Output(), HasSubstr("1 of 2 nodes take part, with 1 rank"));
  EXPECT_THAT(node(0).Output(), HasSubstr("trained 1500 updates"));
}

TEST_F(Elastic, AllNodesComeAgainWhereARankFailedAndTheRunHasTheBitsOfAnUninterruptedOne) {
  const std::string more = "--steps=60 --save_every=2";
  std::filesystem::create_directories(In("node1"));
  std::ofstream(In("node1/start.sh")) << "if [ -z \"$SWITCHYARD_RESTARTED_RUN\" ]; then\nexec " << Program()
                                      << " \"$@\" --interpose=fault:collective@100:fail\nelse\nexec " << Program()
                                      << " \"$@\"\nfi\n";
  Start({Node("2", 0, more), Node("2", 1, more, "", "sh start.sh")});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("restart 1 of 2"));
  EXPECT_THAT(node(0).Output(), Not(HasSubstr("nodes take part")));
  EXPECT_THAT(node(1).Output(), HasSubstr("starts the ranks of this node again"));
  const std::string interrupted = Contents(Checkpoints() + "/latest/model.safetensors");
  EXPECT_FALSE(interrupted.empty());
  std::filesystem::remove_all(In("shared"));
  Start({Node("2", 0, more), Node("2", 1, more)});
  ExpectSuccessOfAll();
  EXPECT_TRUE(interrupted == Contents(Checkpoints() + "/latest/model.safetensors"));
}

// Rank 1 finds no checkpoint where it looks, and would begin anew.
TEST_F(Elastic, ANodeThatDoesNotSeeTheRunIsNamed) {
  std::filesystem::create_directories(In("node1"));
  std::ofstream(In("node1/start.sh")) << "if [ -n \"$SWITCHYARD_RESTARTED_RUN\" ]; then exec " << Program()
                                      << " \"$@\"; fi\nexec " << Program()
                                      << " \"$@\" --interpose=fault:collective@100:fail\n";
  const std::string more = "--steps=60 --save_every=2";
  const auto apart = [&](std::string line) {
    const std::string output = "--output=" + In("shared");
    return line.replace(line.find(output), output.size(), "--output=run");
  };
  Start({apart(Node("2", 0, more)), apart(Node("2", 1, more, "", "sh start.sh"))});
  WaitForEnd();
  for (const int i : {0, 1}) {
    EXPECT_NE(node(i).code(), 0);
    EXPECT_THAT(node(i).Output(), HasSubstr("rank 1 has \"--resume=\", rank 0 has \"--resume=a checkpoint\"; start all "
                                            "ranks with the same settings, where all see the folder of the run"));
  }
}

TEST_F(Elastic, TooFewNodesAreNamed) {
  Start({Node("2", 0, long_), Node("2", 1, long_)});
  AwaitCheckpoint();
  node(1).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(0).HasEnded(); }, 60000), 0) << Outputs();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(node(0).Output(), HasSubstr("1 of 2 nodes are left, too few to start again; --nnodes=MIN:MAX"));
}

TEST_F(Elastic, AGlobalBatchThatCannotBeKeptIsNamed) {
  const std::string odd = long_ + " --batch_size=3";
  Start({Node("2:3", 0, odd), Node("2:3", 1, odd), Node("2:3", 2, odd)});
  AwaitCheckpoint();
  node(2).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(0).HasEnded() && node(1).HasEnded(); }, 90000), 0) << Outputs();
  EXPECT_NE(node(0).code(), 0);
  EXPECT_THAT(node(0).Output(), HasSubstr("global batch of 9 images cannot be divided over 2 data-parallel ranks"));
}

TEST_F(Elastic, ARunBeginsWithAsManyNodesAsAreEnoughWhereOthersDoNotCome) {
  Start({Node("1:3", 0, "", "--rdzv_timeout=2"), Node("1:3", 2, "", "--rdzv_timeout=2")});
  ExpectSuccessOfAll();
  EXPECT_THAT(node(0).Output(), HasSubstr("2 of 3 nodes take part, with 2 ranks"));
}

// Node 0 alone knows the run.
TEST_F(Elastic, WithoutNodeZeroTheOthersEnd) {
  Start({Node("1:2", 0, long_), Node("1:2", 1, long_)});
  AwaitCheckpoint();
  node(0).Signal(SIGKILL);
  ASSERT_GE(RunningProgram::WaitFor([&] { return node(1).HasEnded(); }, 30000), 0) << Outputs();
  EXPECT_NE(node(1).code(), 0);
  EXPECT_THAT(node(1).Output(), Not(HasSubstr("starts the ranks")));
}

}  // namespace
}  // namespace switchyard
