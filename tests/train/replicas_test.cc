// Several ranks of one process, each on a thread: they compute together, and the failure of one ends all.
#include "core/train/replicas.h"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

WorldRequest Request() { return {.device = "reference"}; }

TEST(Replicas, EachHasADeviceAndTheySumTogether) {
  constexpr int kCount = 4;
  std::array<double, kCount> sums{};
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int> devices;
  const Status status = OnReplicas(Request(), kCount, [&](World& world) -> Status {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    devices.insert(world.device->info().index);
    EXPECT_EQ(world.size(), kCount);
    return OkStatus();
  });
  ASSERT_TRUE(status.ok()) << Message(status);
  EXPECT_EQ(threads.size(), size_t{kCount});
  EXPECT_EQ(devices, (std::set<int>{0, 1, 2, 3}));
  const Status again = OnReplicas(Request(), kCount, [&](World& world) -> Status {
    double& sum = sums[static_cast<size_t>(world.rank())];
    for (int step = 0; step < 100; ++step) {
      const double own = world.rank() + step;
      SY_RETURN_IF_ERROR(world.communicator->AllReduce("sum", &own, &sum, 1, SY_F64, SY_SUM));
    }
    return world.communicator->Barrier("end");
  });
  ASSERT_TRUE(again.ok()) << Message(again);
  for (const double sum : sums) EXPECT_EQ(sum, 0 + 1 + 2 + 3 + kCount * 99);
}

TEST(Replicas, OneAloneNeedsNoOther) {
  int calls = 0;
  const Status status = OnReplicas(Request(), 1, [&](World& world) -> Status {
    ++calls;
    EXPECT_EQ(world.communicator, nullptr);
    return OkStatus();
  });
  ASSERT_TRUE(status.ok()) << Message(status);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(OnReplicas(Request(), 0, [](World&) { return OkStatus(); }).ok());
}

// The others wait in a collective, in a barrier of the store and for a value that never comes.
TEST(Replicas, AFailureEndsTheWaitsOfAllAndIsTheOneThatIsTold) {
  for (int failing = 0; failing < 4; ++failing) {
    const auto start = std::chrono::steady_clock::now();
    std::atomic<int> ended = 0;
    const Status status = OnReplicas(Request(), 4, [&](World& world) -> Status {
      SY_RETURN_IF_ERROR(world.communicator->Barrier("start"));
      Status own;
      if (world.rank() == failing) {
        own = Internal("the fan of device {} has stopped", failing);
      } else if (world.rank() % 3 == 0) {
        own = world.communicator->Barrier("never");
      } else if (world.rank() % 3 == 1) {
        own = world.rendezvous->Barrier("never", 60000);
      } else {
        own = world.rendezvous->Get("never", 60000).status();
      }
      EXPECT_THAT(Message(own), HasSubstr(fmt::format("the fan of device {}", failing))) << world.rank();
      ++ended;
      return own;
    });
    EXPECT_THAT(Message(status), HasSubstr(fmt::format("replica {}: the fan of device {}", failing, failing)));
    EXPECT_EQ(ended, 4);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

TEST(Replicas, OneThatCannotOpenItsDeviceEndsAll) {
  WorldRequest request = Request();
  request.device_list = "0,1";
  request.cpu_devices = 2;
  request.ranks_per_device = 1;
  const Status status = OnReplicas(request, 3, [](World& world) { return world.communicator->Barrier("start"); });
  EXPECT_THAT(Message(status), HasSubstr("3 local ranks")) << "no device is left for the third";
}

TEST(Replicas, HaveOneThreadOrMore) {
  WorldRequest request = Request();
  request.threads = 0;
  EXPECT_THAT(Message(OnReplicas(request, 1, [](World&) { return OkStatus(); })),
              HasSubstr("--threads=0: expected a positive number"));
}

TEST(Replicas, AnExceptionComesOutAndEndsTheOthers) {
  const auto run = [] {
    (void)OnReplicas(Request(), 2, [](World& world) -> Status {
      if (world.rank() == 1) throw std::bad_alloc();
      return world.communicator->Barrier("never");
    });
  };
  EXPECT_THROW(run(), std::bad_alloc);
}

// 10 s.
TEST(Replicas, WhoDoesNotEndIsGivenUp) {
  std::atomic<bool> running = false, given_up = false;
  const auto give_up = [&](const Status& failure) {
    EXPECT_THAT(Message(failure), HasSubstr("out of order"));
    given_up = true;
  };
  const Status status = OnReplicas(
      Request(), 2,
      [&](World& world) -> Status {
        if (world.rank() == 0) {
          while (!running) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return Internal("out of order");
        }
        running = true;
        while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // as a kernel that goes on
        return OkStatus();
      },
      give_up);
  EXPECT_TRUE(given_up);
  EXPECT_THAT(Message(status), HasSubstr("replica 0: out of order"));
}

}  // namespace
}  // namespace switchyard
