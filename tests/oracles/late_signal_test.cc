// A launcher's signal reaches one rank long after the other: the run that it asks to end has ended by then.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/train/stopping.h"
#include "core/train/world.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(LateSignal, IsDroppedByTheRankThatTheOtherOneHasStopped) {
  WorldRequest request;
  request.device = "reference";
  request.collective = "shm";
  auto joined = World::Join(request);
  ASSERT_TRUE(joined.ok()) << Message(joined.status());
  World& world = **joined;
  ASSERT_EQ(world.size(), 2);
  {
    Stopping stopping(world.communicator.get());
    if (world.rank() == 1) kill(getpid(), SIGTERM);
    bool stops = false;
    for (int64_t step = 1; !stops; ++step) {
      const auto answer = stopping.After(step);
      ASSERT_TRUE(answer.ok()) << Message(answer.status());
      stops = *answer;
    }
  }
  if (world.rank() == 0) kill(getpid(), SIGTERM);  // would end the process, and with it the test
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(world.communicator->Barrier("both are there").ok());
}

}  // namespace
}  // namespace switchyard
