#include "core/runtime/process_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StatusOr<ProcessMap> From(const std::map<std::string, std::string>& variables) {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID",
        "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return ProcessMap::FromEnvironment();
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
  EXPECT_EQ(map->master_address, "");
}

TEST(ProcessMap, ReadsEnvironmentVariables) {
  const auto map = From({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->launcher, "env");
  EXPECT_EQ(map->local_rank, 1);
  EXPECT_EQ(map->master_address, "127.0.0.1");
  EXPECT_EQ(map->master_port, 1234);
}

TEST(ProcessMap, ReadsSlurmAndItsNodeLists) {
  for (const auto& [list, host] : std::map<std::string, std::string>{
           {"gpu[004-007,9],login1", "gpu004"}, {"a,b", "a"}, {"n[7,9]", "n7"}, {"one", "one"}}) {
    const auto map = From({{"SLURM_PROCID", "2"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NTASKS_PER_NODE", "2"},
                           {"SLURM_STEP_NODELIST", list}});
    ASSERT_TRUE(map.ok());
    EXPECT_EQ(map->launcher, "slurm");
    EXPECT_EQ(map->master_address, host);
  }
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
