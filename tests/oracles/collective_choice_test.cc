// Ranks that were started with different collectives are told so when they meet, each with both names, and none waits
// for the other in its own.
#include <chrono>

#include "core/train/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(CollectiveChoice, ThatDiffersIsNamedOnAllRanksAtTheStart) {
  const auto processes = ProcessMap::FromEnvironment();
  ASSERT_TRUE(processes.ok()) << Message(processes.status());
  WorldRequest request;
  request.device = "reference";
  request.collective = processes->rank == 0 ? "shm" : "tcp";
  const auto start = std::chrono::steady_clock::now();
  const auto joined = World::Join(request);
  ASSERT_FALSE(joined.ok());
  EXPECT_THAT(Message(joined.status()), testing::HasSubstr("--collective=tcp: rank 0 takes shm; start all ranks"));
  EXPECT_LE(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << "the limit for joining is 60 s";
}

}  // namespace
}  // namespace switchyard
