// Collectives that a plugin does not have, made of its messages, where it reaches the memory of a device that the host
// cannot read: a sum that were computed there would end the process by a signal.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <ostream>
#include <thread>

#include "core/base/environment.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/plugins/registry.h"
#include "tests/parallel/thread_ranks.h"
#include "tests/plan/allocation_count.h"

namespace switchyard {
namespace {

constexpr int kRanks = 3;
constexpr uint64_t kCount = 1001;  // not a multiple of the ranks
constexpr uint64_t kOffset = 256;
const std::string kPlugin = ProgramFolder() + "/doubles/device_messages/device_messages.so";

struct Reach {
  std::string name;
  bool on_stream, host;
};

std::ostream& operator<<(std::ostream& out, const Reach& reach) { return out << reach.name; }

class Composed : public testing::TestWithParam<Reach> {
 protected:
  void SetUp() override {
    const std::string null_device = ProgramFolder() + "/../lib/switchyard/plugins/switchyard_backend_null.so";
    setenv("SWITCHYARD_MESSAGES_BASE", null_device.c_str(), 1);
    setenv("SWITCHYARD_NULL_DEVICES", std::to_string(kRanks).c_str(), 1);
    Set("SWITCHYARD_MESSAGES_ON_STREAM", GetParam().on_stream);
    Set("SWITCHYARD_MESSAGES_HOST", GetParam().host);
    Set("SWITCHYARD_MESSAGES_DEAF", false);
    const auto loaded = Plugin::Load(kPlugin);
    ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
    plugin_ = *loaded;
  }
  static void Set(const char* name, bool on) { setenv(name, on ? "1" : "0", 1); }

  void OnDevices(const std::function<void(Communicator&, Device&)>& body) const {
    OnRanks(kRanks, [&](int rank, Rendezvous& rendezvous, const ProcessMap& map) {
      const auto device = Device::Open(*plugin_, rank, {});
      ASSERT_TRUE(device.ok()) << Message(device.status());
      const auto communicator = Communicator::Join(plugin_, map, rendezvous, device->get(), "world", 10000);
      ASSERT_TRUE(communicator.ok()) << Message(communicator.status());
      body(**communicator, **device);
    });
  }
  std::shared_ptr<Plugin> plugin_;
};

INSTANTIATE_TEST_SUITE_P(Plugins, Composed,
                         testing::Values(Reach{"device_memory_by_poll", false, false},
                                         Reach{"device_memory_on_stream", true, false},
                                         Reach{"both_memories_by_poll", false, true},
                                         Reach{"both_memories_on_stream", true, true}),
                         testing::PrintToStringParamName());

std::vector<float> Numbers(int rank, uint64_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(1000 * rank));
  return values;
}

// What a call leaves in the middle of a buffer of the device, where this rank's numbers were.
StatusOr<std::vector<float>> InDeviceMemory(
    Communicator& communicator, Device& device,
    const std::function<StatusOr<std::shared_ptr<Communicator::DeviceCall>>(const Buffer&)>& prepare) {
  std::vector<float> values = Numbers(communicator.rank(), kCount);
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(kOffset + kCount * sizeof(float)));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(const auto call, prepare(buffer));
  SY_RETURN_IF_ERROR(device.Copy(stream, buffer.at(kOffset), HostPlace(values.data()), kCount * sizeof(float)));
  SY_RETURN_IF_ERROR(communicator.Launch(*call, stream));
  SY_RETURN_IF_ERROR(communicator.Synchronize(stream));
  SY_RETURN_IF_ERROR(device.Download(values.data(), buffer.at(kOffset), kCount * sizeof(float)));
  return values;
}

TEST_P(Composed, AllReduceOfDeviceMemory) {
  OnDevices([](Communicator& communicator, Device& device) {
    const auto sums = InDeviceMemory(communicator, device, [&](const Buffer& buffer) {
      return communicator.Prepare("gradient", {Collective::kAllReduce, kCount}, {&buffer, kOffset}, {&buffer, kOffset});
    });
    ASSERT_TRUE(sums.ok()) << Message(sums.status());
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ((*sums)[i], 3000 + 3 * static_cast<float>(i)) << i;
  });
}

TEST_P(Composed, BroadcastOfDeviceMemory) {
  OnDevices([](Communicator& communicator, Device& device) {
    const auto values = InDeviceMemory(communicator, device, [&](const Buffer& buffer) {
      return communicator.Prepare("weights", {Collective::kBroadcast, kCount, SY_F32, SY_SUM, 2}, {&buffer, kOffset},
                                  {&buffer, kOffset});
    });
    ASSERT_TRUE(values.ok()) << Message(values.status());
    EXPECT_EQ(*values, Numbers(2, kCount));
  });
}

// From the front of a buffer to its middle, whose blocks are those of the ranks.
TEST_P(Composed, BlocksOfDeviceMemory) {
  OnDevices([](Communicator& communicator, Device& device) {
    constexpr uint64_t kBytes = kCount * sizeof(float), kWhole = kRanks * kBytes,
                       kReceived = (kWhole + 255) / 256 * 256;
    const int rank = communicator.rank();
    const std::vector<float> own = Numbers(rank, kRanks * kCount);
    const auto after = [&](Collective what, uint64_t received) -> StatusOr<std::vector<float>> {
      SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(kReceived + kWhole));
      SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
      SY_ASSIGN_OR_RETURN(const auto call, communicator.Prepare("blocks", what, {&buffer, 0}, {&buffer, kReceived}));
      SY_RETURN_IF_ERROR(device.Copy(stream, buffer.at(0), HostPlace(own.data()), kWhole));
      SY_RETURN_IF_ERROR(communicator.Launch(*call, stream));
      SY_RETURN_IF_ERROR(communicator.Synchronize(stream));
      std::vector<float> values(received);
      SY_RETURN_IF_ERROR(device.Download(values.data(), buffer.at(kReceived), received * sizeof(float)));
      return values;
    };
    const auto gathered = after({Collective::kAllGather, kCount}, kRanks * kCount);
    ASSERT_TRUE(gathered.ok()) << Message(gathered.status());
    const auto scattered = after({Collective::kReduceScatter, kCount}, kCount);
    ASSERT_TRUE(scattered.ok()) << Message(scattered.status());
    const auto exchanged = after({Collective::kAllToAll, kCount}, kRanks * kCount);
    ASSERT_TRUE(exchanged.ok()) << Message(exchanged.status());
    for (uint64_t i = 0; i < kCount; ++i) {
      const auto here = static_cast<float>(i), own_block = static_cast<float>(rank * kCount + i);
      ASSERT_EQ((*scattered)[i], 3000 + 3 * own_block) << i;
      for (int peer = 0; peer < kRanks; ++peer) {
        ASSERT_EQ((*gathered)[peer * kCount + i], 1000 * static_cast<float>(peer) + here) << peer << " " << i;
        ASSERT_EQ((*exchanged)[peer * kCount + i], 1000 * static_cast<float>(peer) + own_block) << peer << " " << i;
      }
    }
  });
}

TEST_P(Composed, CollectivesOfHostMemory) {
  OnDevices([](Communicator& communicator, Device&) {
    const auto expect_ok = [](const Status& status) { EXPECT_TRUE(status.ok()) << Message(status); };
    const int rank = communicator.rank();
    const std::vector<float> own = Numbers(rank, kCount);
    std::vector<float> one(kCount), all(kRanks * kCount);
    expect_ok(communicator.AllReduce("sum", own.data(), one.data(), kCount, SY_F32, SY_SUM));
    EXPECT_EQ(one[kCount - 1], 6000);
    one = own;
    expect_ok(communicator.Broadcast("broadcast", one.data(), kCount, SY_F32, 1));
    EXPECT_EQ(one, Numbers(1, kCount));
    expect_ok(communicator.AllGather("gather", own.data(), all.data(), kCount, SY_F32));
    for (int peer = 0; peer < kRanks; ++peer) EXPECT_EQ(all[peer * kCount + 1], 1000 * static_cast<float>(peer) + 1);
    expect_ok(communicator.ReduceScatter("scatter", all.data(), one.data(), kCount, SY_F32, SY_MAX));
    EXPECT_EQ(one, Numbers(rank, kCount));
    const std::vector<float> blocks = Numbers(rank, kRanks * kCount);
    expect_ok(communicator.AllToAll("exchange", blocks.data(), all.data(), kCount, SY_F32));
    for (int peer = 0; peer < kRanks; ++peer)
      EXPECT_EQ(all[peer * kCount], static_cast<float>(1000 * peer + rank * static_cast<int>(kCount)));
    expect_ok(communicator.Barrier("barrier"));
  });
}

// A plugin that does not obey an abort; rank 1 of two joins, and fails once rank 0 has begun a call.
class DeafPlugin : public Composed {
 protected:
  void OnSurvivor(const std::function<void(Device& device, Communicator& communicator)>& body) {
    Set("SWITCHYARD_MESSAGES_DEAF", true);
    const int before = CallsBegun();
    OnRanks(2, [&](int rank, Rendezvous& rendezvous, const ProcessMap& map) {
      const auto device = Device::Open(*plugin_, rank, {});
      ASSERT_TRUE(device.ok()) << Message(device.status());
      const auto communicator = Communicator::Join(plugin_, map, rendezvous, device->get(), "world", 10000);
      ASSERT_TRUE(communicator.ok()) << Message(communicator.status());
      if (rank == 0) return body(**device, **communicator);
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (CallsBegun() == before && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      rendezvous.ReportFailure(DataLoss("train/7.jpg is not a JPEG"));
    });
  }

 private:
  // How many calls the plugin has been given that never end.
  static int CallsBegun() {
    void* const library = dlopen(kPlugin.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<int (*)()>(dlsym(library, "device_messages_endless"))();
  }
};
INSTANTIATE_TEST_SUITE_P(Plugins, DeafPlugin, testing::Values(Reach{"by_poll", false, true}),
                         testing::PrintToStringParamName());

// The end of a peer ends a wait also where abort changes nothing.
TEST_P(DeafPlugin, IsNotWaitedForOnceAPeerIsGone) {
  OnSurvivor([](Device&, Communicator& communicator) {
    const auto start = std::chrono::steady_clock::now();
    const Status status = communicator.Barrier("end");
    EXPECT_THAT(Message(status), testing::ContainsRegex("rank 1 .* failed: train/7.jpg is not a JPEG"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  });
}

// It may still write into what the caller then frees.
TEST_P(DeafPlugin, KeepsTheMemoryThatItWasGiven) {
  OnSurvivor([](Device& device, Communicator& communicator) {
    auto buffer = device.Allocate(kOffset);
    const auto stream = device.NewStream();
    ASSERT_TRUE(buffer.ok() && stream.ok());
    const auto call = communicator.Prepare("message", {Collective::kReceive, 8, SY_F32, SY_SUM, 1}, {}, {&*buffer, 0});
    ASSERT_TRUE(call.ok()) << Message(call.status());
    EXPECT_FALSE(communicator.Launch(**call, *stream).ok());
    const uint64_t allocated = device.allocated_bytes();
    buffer->reset();
    EXPECT_FALSE(*buffer);
    EXPECT_EQ(device.allocated_bytes(), allocated);
  });
}

// The plugin's own queues grow now and then, but not for each message.
TEST(Messages, ThatWerePreparedMakeNoAllocation) {
  OnRanks(kRanks, [&](int, Rendezvous& rendezvous, const ProcessMap& map) {
    const auto backend = Registry::Get().Find(PluginKind::kBackend, "reference");
    const auto collective = Registry::Get().Find(PluginKind::kCollective, "tcp");
    ASSERT_TRUE(backend.ok() && collective.ok());
    const auto opened = Device::Open(**backend, 0, {});
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    Device& device = **opened;
    const auto joined = Communicator::Join(*collective, map, rendezvous, &device, "world", 10000);
    ASSERT_TRUE(joined.ok()) << Message(joined.status());
    Communicator& communicator = **joined;
    const int rank = communicator.rank(), next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
    const auto buffer = device.Allocate(2 * kOffset);
    ASSERT_TRUE(buffer.ok());
    const auto stream = device.NewStream();
    ASSERT_TRUE(stream.ok());
    const auto prepare = [&](Collective::Kind kind, int peer, uint64_t offset) {
      const Communicator::DevicePlace place{&*buffer, offset};
      const bool sends = kind == Collective::kSend;
      return communicator.Prepare("message", {kind, 8, SY_F32, SY_SUM, peer},
                                  sends ? place : Communicator::DevicePlace{},
                                  sends ? Communicator::DevicePlace{} : place);
    };
    const auto send = prepare(Collective::kSend, next, 0), receive = prepare(Collective::kReceive, previous, kOffset);
    ASSERT_TRUE(send.ok() && receive.ok());
    const auto exchange = [&] {  // rank 0 sends first
      const bool first = communicator.Launch(rank == 0 ? **send : **receive, *stream).ok();
      return communicator.Launch(rank == 0 ? **receive : **send, *stream).ok() && first;
    };
    bool ok = exchange();
    int64_t fewest = 100;
    for (int round = 0; round < 5; ++round) {
      const AllocationCount count;
      ok = exchange() && ok;
      fewest = std::min(fewest, count.value());
    }
    EXPECT_TRUE(ok);
    EXPECT_EQ(fewest, 0);
    EXPECT_TRUE(communicator.Synchronize(*stream).ok());
  });
}

}  // namespace
}  // namespace switchyard
