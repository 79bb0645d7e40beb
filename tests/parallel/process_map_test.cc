#include "core/runtime/processes/process_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "core/runtime/processes/slurm.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// With these variables of a launcher and no other.
StatusOr<ProcessMap> From(const std::map<std::string, std::string>& variables,
                          const std::optional<std::string>& master_address = {}) {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    for (const char* prefix :
         {"OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "GROUP_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_"}) {
      if (name.rfind(prefix, 0) == 0) names.push_back(name);
    }
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return ProcessMap::FromEnvironment(master_address);
}

TEST(ProcessMap, NothingSetIsOneRank) {
  const auto map = From({});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->launcher, "alone");
  EXPECT_EQ(map->world, 1);
}

TEST(ProcessMap, ReadsOpenMpi) {
  const auto map = From({{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->launcher, "mpirun");
  EXPECT_EQ(map->rank, 3);
  EXPECT_EQ(map->local_rank, 1);
  EXPECT_EQ(map->nodes, 2);
  EXPECT_EQ(map->master_address, std::nullopt);
}

TEST(ProcessMap, ReadsEnvironmentVariables) {
  const auto map = From({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->launcher, "env");
  EXPECT_EQ(map->local_rank, 1);
  EXPECT_EQ(map->master_address, "127.0.0.1");
  EXPECT_EQ(map->master_port, 1234);
}

TEST(ProcessMap, TakesTheAddressThatTheEnvironmentDoesNotSay) {
  std::map<std::string, std::string> variables = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}};
  EXPECT_FALSE(From(variables).ok());
  const auto map = From(variables, "a");
  ASSERT_TRUE(map.ok()) << Message(map.status());
  EXPECT_EQ(map->master_address, "a");
  variables["MASTER_ADDR"] = "b";
  EXPECT_EQ(From(variables, "a")->master_address, "b");
  EXPECT_EQ(From({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"MASTER_PORT", "4711"}}, "a")
                ->master_address,
            "a");
  EXPECT_EQ(From({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, "a")->master_address, std::nullopt)
      << "PMIx tells it";
  EXPECT_THAT(Message(From(variables, "").status()), HasSubstr("the address of rank 0 is empty"));
}

TEST(ProcessMap, ReadsTorchrun) {
  const std::map<std::string, std::string> variables = {{"RANK", "4"},
                                                        {"WORLD_SIZE", "5"},
                                                        {"LOCAL_RANK", "1"},
                                                        {"LOCAL_WORLD_SIZE", "2"},
                                                        {"GROUP_RANK", "1"},
                                                        {"GROUP_WORLD_SIZE", "2"},
                                                        {"MASTER_ADDR", "a"},
                                                        {"MASTER_PORT", "4711"},
                                                        {"TORCHELASTIC_RUN_ID", "job-7"}};
  auto map = From(variables);
  ASSERT_TRUE(map.ok()) << Message(map.status());
  EXPECT_EQ(map->node, 1);  // not 4 / 2: the first node has three ranks
  EXPECT_EQ(map->nodes, 2);
  EXPECT_EQ(map->local_world, 2);
  EXPECT_EQ(map->master_address, "a");
  EXPECT_EQ(map->master_port, 4711);
  EXPECT_EQ(map->run_id, "job-7");
  EXPECT_FALSE(map->one_node);
  // torchrun's agent holds the port itself then.
  auto with_store = variables;
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(From(with_store)->master_port, 4712);
}

TEST(ProcessMap, MpirunNeedsNoAddressAndTakesOneThatIsSet) {
  const auto map = From({{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                         {"MASTER_ADDR", "a"},
                         {"MASTER_PORT", "4711"}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->master_address, "a");
  EXPECT_EQ(map->master_port, 4711);
}

// As srun sets them for each task of a step (https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES").
std::map<std::string, std::string> SlurmStep(int rank, int node, int local_rank) {
  return {{"SLURM_JOB_ID", "70001"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_NTASKS", "10"},
          {"SLURM_STEP_NUM_TASKS", "10"},
          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),2"},
          {"SLURM_TASKS_PER_NODE", "4(x2),2"},
          {"SLURM_STEP_NODELIST", "gpu[004-005,9]"},
          {"SLURM_JOB_NODELIST", "gpu[001-009,9]"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NODEID", std::to_string(node)},
          {"SLURM_LOCALID", std::to_string(local_rank)}};
}

TEST(ProcessMap, ReadsASlurmStepWithUnevenNodes) {
  const auto map = From(SlurmStep(9, 2, 1));
  ASSERT_TRUE(map.ok()) << Message(map.status());
  EXPECT_EQ(map->launcher, "slurm");
  EXPECT_EQ(map->rank, 9);
  EXPECT_EQ(map->world, 10);
  EXPECT_EQ(map->node, 2);
  EXPECT_EQ(map->nodes, 3);
  EXPECT_EQ(map->local_rank, 1);
  EXPECT_EQ(map->local_world, 2);
  EXPECT_EQ(map->master_address, "gpu004");
  EXPECT_EQ(map->run_id, "slurm-70001-2");
  EXPECT_FALSE(map->one_node);
  EXPECT_EQ(From(SlurmStep(5, 1, 1))->local_world, 4);
}

TEST(ProcessMap, StepsOfSlurmThatShareANodeMeetAtDifferentPorts) {
  auto variables = SlurmStep(0, 0, 0);
  const auto first = From(variables);
  variables["SLURM_STEP_ID"] = "3";
  const auto second = From(variables);
  EXPECT_NE(first->master_port, second->master_port);
  EXPECT_NE(first->run_id, second->run_id);
  variables["MASTER_PORT"] = "1234";
  EXPECT_EQ(From(variables)->master_port, 1234);
}

// Only where the launcher says so: a guess would put rank 0 out of the others' reach.
TEST(ProcessMap, OneNodeIsNotGuessed) {
  EXPECT_TRUE(From({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})->one_node);
  EXPECT_FALSE(From({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})->one_node);
  std::map<std::string, std::string> mpirun = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_FALSE(From(mpirun)->one_node);
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_TRUE(From(mpirun)->one_node);
  std::map<std::string, std::string> slurm = {
      {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NODELIST", "a"}, {"SLURM_TASKS_PER_NODE", "8"}};
  EXPECT_FALSE(From(slurm)->one_node) << "the job's shape is not the step's";
  slurm["SLURM_STEP_TASKS_PER_NODE"] = "4";
  EXPECT_TRUE(From(slurm)->one_node);
}

TEST(ProcessMap, ASlurmBatchScriptIsOneRank) {
  const auto map = From({{"SLURM_JOB_ID", "70001"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_TASKS_PER_NODE", "4(x2)"},
                         {"SLURM_JOB_NODELIST", "a,b"}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->launcher, "alone");
  EXPECT_EQ(map->world, 1);
}

TEST(ProcessMap, SlurmWithFewVariablesIsEnough) {
  const auto map = From({{"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NTASKS_PER_NODE", "2"},
                         {"SLURM_STEP_NODELIST", "n[7,9]"}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->node, 1);
  EXPECT_EQ(map->master_address, "n7");
}

// What the job asked for is inherited by a step of another shape.
TEST(ProcessMap, ASlurmStepOfFewerTasksThanTheJobAskedFor) {
  for (const char* tasks : {"", "1"}) {
    const auto map = From({{"SLURM_PROCID", "0"},
                           {"SLURM_STEP_NUM_TASKS", "1"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NTASKS_PER_NODE", "8"},
                           {*tasks ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE", *tasks ? tasks : "8(x2)"},
                           {"SLURM_STEP_NODELIST", "n7"}});
    ASSERT_TRUE(map.ok()) << Message(map.status());
    EXPECT_EQ(map->world, 1);
    EXPECT_EQ(map->local_world, 1);
  }
}

TEST(ProcessMap, ContradictionsOfSlurmNameTheVariables) {
  const auto with = [](const char* name, const char* value) {
    auto variables = SlurmStep(9, 2, 1);
    variables[name] = value;
    return Message(From(variables).status());
  };
  EXPECT_THAT(with("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE=4(x2) are 8 tasks, but SLURM_STEP_NUM_TASKS=10"));
  EXPECT_THAT(with("SLURM_STEP_TASKS_PER_NODE", "4(y2)"), HasSubstr("SLURM_STEP_TASKS_PER_NODE=4(y2): \"4(y2)\""));
  EXPECT_THAT(with("SLURM_NODEID", "3"), HasSubstr("SLURM_NODEID=3"));
  EXPECT_THAT(with("SLURM_LOCALID", "2"), HasSubstr("SLURM_LOCALID=2 but node 2 has 2 tasks"));
  EXPECT_THAT(with("SLURM_STEP_NODELIST", "gpu[4-"), HasSubstr("SLURM_STEP_NODELIST=gpu[4-"));
  EXPECT_THAT(with("SLURM_PROCID", "10"), HasSubstr("SLURM_PROCID=10 but SLURM_STEP_NUM_TASKS=10"));
}

TEST(SlurmHosts, EveryFormOfTheListExpands) {
  const auto expand = [](const std::string& list) { return *ExpandSlurmHosts(list); };
  EXPECT_THAT(expand("gpu[004-007,9],login1"), ElementsAre("gpu004", "gpu005", "gpu006", "gpu007", "gpu9", "login1"));
  EXPECT_THAT(expand("rack[1-2]n[0-3]"),
              ElementsAre("rack1n0", "rack1n1", "rack1n2", "rack1n3", "rack2n0", "rack2n1", "rack2n2", "rack2n3"));
  EXPECT_THAT(expand("one"), ElementsAre("one"));
  EXPECT_THAT(expand("a,b.example.org"), ElementsAre("a", "b.example.org"));
  EXPECT_THAT(expand("n[08-11]-ib"), ElementsAre("n08-ib", "n09-ib", "n10-ib", "n11-ib"));
  for (const char* broken : {"", "a,,b", "n[1-", "n[2-1]", "n[]", "n[a-b]", "n[0-99999999]", "n[0-1999]m[0-1999]"})
    EXPECT_FALSE(ExpandSlurmHosts(broken).ok()) << broken;
}

TEST(SlurmTasks, RepetitionsExpand) {
  EXPECT_THAT(*ExpandSlurmTasks("4(x2),2"), ElementsAre(4, 4, 2));
  EXPECT_THAT(*ExpandSlurmTasks("1"), ElementsAre(1));
  for (const char* broken : {"", "4(x", "4(x2", "0", "-1", "4(x0)", "4,", "4(x99999999)"})
    EXPECT_FALSE(ExpandSlurmTasks(broken).ok()) << broken;
}

TEST(ProcessMap, ContradictionsNameTheVariables) {
  EXPECT_THAT(Message(From({{"RANK", "3"}, {"WORLD_SIZE", "2"}}).status()), HasSubstr("RANK=3 but WORLD_SIZE=2"));
  EXPECT_THAT(Message(From({{"RANK", "3"}}).status()), HasSubstr("RANK is set but WORLD_SIZE is not"));
  EXPECT_THAT(Message(From({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).status()), HasSubstr("RANK: expected a whole number"));
  EXPECT_THAT(Message(From({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}}).status()),
              HasSubstr("LOCAL_WORLD_SIZE=4 but WORLD_SIZE=2"));
  EXPECT_THAT(Message(From({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}).status()),
              HasSubstr("MASTER_PORT"));
  EXPECT_THAT(Message(From({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}).status()),
              HasSubstr("MASTER_ADDR is not set"));
}

TEST(CoresOfLocalRank, SplitEvenlyAndContiguously) {
  EXPECT_THAT(CoresOfLocalRank({0, 1, 2, 3}, 0, 2), ElementsAre(0, 1));
  EXPECT_THAT(CoresOfLocalRank({0, 1, 2, 3}, 1, 2), ElementsAre(2, 3));
  EXPECT_THAT(CoresOfLocalRank({0, 2, 4}, 0, 2), ElementsAre(0, 2));
  EXPECT_THAT(CoresOfLocalRank({0, 2, 4}, 1, 2), ElementsAre(4));
  EXPECT_THAT(CoresOfLocalRank({5, 6}, 2, 3), ElementsAre(5));
}

}  // namespace
}  // namespace switchyard
