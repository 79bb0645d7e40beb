// Collectives that are work of a device's streams: those that begin at one point of the schedule go into one group of
// the plugin, and where device and plugin can record them, a run with all its streams is one replay. Both change what
// is called and not one bit of the results.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/environment.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "core/plan/plan.h"
#include "tests/doubles/device_messages/counts.h"
#include "tests/parallel/thread_ranks.h"

namespace switchyard {
namespace {

constexpr int kRanks = 2, kRuns = 3;
constexpr int64_t kWidth = 512;  // elements of a layer
constexpr int kLayers = 3;
const std::string kPlugin = ProgramFolder() + "/doubles/device_messages/device_messages.so";

// Gathers of what is there when the run begins; two sums whose inputs come one after the other; and a gather of what a
// reduction leaves, which no group may hold together with that.
Graph Step(int) {
  Graph g;
  Value x = g.Input("x", {DType::kF32, {kWidth}}, {});
  for (int i = 0; i < kLayers; ++i) {
    const Value shard = g.Input(fmt::format("p{}", i), {DType::kF32, {kWidth / kRanks}}, {Role::kParameter, {}, false});
    x = ops::Unary(SY_PW_TANH, ops::Mul(x, ops::AllGather(shard, kRanks, 1, fmt::format("gather{}", i))));
  }
  const Value first = ops::AllReduce(ops::Scale(x, 2), SY_SUM, 1, 1, "first");
  const Value second = ops::AllReduce(ops::Scale(x, 3), SY_SUM, 1, 1, "second");
  const Value sum = ops::Add(first, second);
  g.Output("y", ops::AllGather(ops::ReduceScatter(sum, SY_SUM, kRanks, 1), kRanks, 1));
  return g;
}

// A message to the peer and one from it, of which neither needs the other.
Graph Messages(int rank) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {kWidth}}, {});
  for (int i = 0; i < kLayers; ++i)
    g.Input(fmt::format("p{}", i), {DType::kF32, {kWidth / kRanks}}, {Role::kParameter, {}, false});
  const auto send = [&] { ops::Send(x, 1 - rank, 1, "there"); };
  if (rank == 0) send();
  const Value received = ops::Receive(g, x.type(), 1 - rank, 1, "back");
  if (rank == 1) send();
  g.Output("y", received);
  return g;
}

struct Observed {
  std::vector<std::vector<float>> results;  // of rank 0, by run
  // Of a rank: while it was bound, and in all runs together.
  int bound_calls = 0, calls = 0, groups = 0, in_groups = 0, replays = 0;
  uint64_t bytes_sent = 0;  // by rank 0, in all runs
};

class QueuedCollectives : public testing::Test {
 protected:
  static StatusOr<std::shared_ptr<Plugin>> Load() {
    const std::string null_device = ProgramFolder() + "/../lib/switchyard/plugins/switchyard_backend_null.so";
    setenv("SWITCHYARD_MESSAGES_BASE", null_device.c_str(), 1);
    setenv("SWITCHYARD_NULL_DEVICES", std::to_string(kRanks).c_str(), 1);
    setenv("SWITCHYARD_MESSAGES_QUEUED", "1", 1);
    return Plugin::Load(kPlugin);
  }
  // Of the plugin, which is loaded.
  static const Counts& CountsOf() {
    void* const library = dlopen(kPlugin.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return *reinterpret_cast<const Counts* (*)()>(dlsym(library, "device_messages_counts"))();
  }
  // The engine and the plugin with these settings.
  Observed Run(const PlanOptions& options, bool capturable, bool last_branch_first = false,
               Graph (*step)(int rank) = Step) {
    const auto set = [](const char* name, bool on) { setenv(name, on ? "1" : "0", 1); };
    set("SWITCHYARD_MESSAGES_CAPTURABLE", capturable);
    set("SWITCHYARD_NULL_GRAPH_LAST", last_branch_first);
    Observed observed;
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << Message(loaded.status());
    if (!loaded.ok()) return observed;
    const Counts& counts = CountsOf();
    const int groups_before = counts.groups, in_groups = counts.in_groups, replays = counts.replays;
    int calls = 0, bound = 0;
    OnRanks(kRanks, [&](int rank, Rendezvous& rendezvous, const ProcessMap& map) {
      const auto opened = Device::Open(**loaded, rank, {});
      ASSERT_TRUE(opened.ok()) << Message(opened.status());
      Device& device = **opened;
      const auto joined = Communicator::Join(*loaded, map, rendezvous, &device, "world", 10000);
      ASSERT_TRUE(joined.ok()) << Message(joined.status());
      Communicator& communicator = **joined;
      KernelCache kernels(device, {});
      Layout layout(device.info().alignment);
      const auto plan = Plan::Compile(step(rank), kernels, nullptr, layout, options);
      ASSERT_TRUE(plan.ok()) << Message(plan.status());
      const auto memory = Memory::Allocate(layout, device, &communicator);
      ASSERT_TRUE(memory.ok()) << Message(memory.status());
      const auto stream = device.NewStream();
      ASSERT_TRUE(stream.ok());
      // The ranks agree on how much they allocate.
      ASSERT_TRUE(rendezvous.Barrier("allocated", 10000).ok());
      if (rank == 0) calls = counts.calls;
      ASSERT_TRUE(rendezvous.Barrier("begun", 10000).ok());
      const auto instance = Instance::Bind(**plan, **memory, &communicator);
      ASSERT_TRUE(instance.ok()) << Message(instance.status());
      ASSERT_TRUE(rendezvous.Barrier("bound", 10000).ok());
      if (rank == 0) bound = counts.calls - calls;
      ASSERT_TRUE(rendezvous.Barrier("counted", 10000).ok());
      const auto fill = [&](const std::string& name, int64_t count, float by) {
        std::vector<float> values(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i)
          values[static_cast<size_t>(i)] = by * static_cast<float>((i * 7 + rank * 13) % 29 - 11);
        ASSERT_TRUE((*memory)->Upload(name, values.data(), values.size() * sizeof(float)).ok()) << name;
      };
      for (int i = 0; i < kLayers; ++i)
        fill(fmt::format("p{}", i), kWidth / kRanks, 0.3f + 0.1f * static_cast<float>(i));
      const uint64_t sent = communicator.bytes_sent();
      for (int run = 0; run < kRuns; ++run) {
        fill("x", kWidth, 0.01f * static_cast<float>(run + 1));
        const Status ran = (*instance)->Run(*stream);
        ASSERT_TRUE(ran.ok()) << Message(ran);
        ASSERT_TRUE(communicator.Synchronize(*stream).ok());
        std::vector<float> result(kWidth);
        ASSERT_TRUE((*memory)->Download("output/y", result.data(), kWidth * sizeof(float)).ok());
        if (rank == 0) observed.results.push_back(std::move(result));
      }
      if (rank == 0) observed.bytes_sent = communicator.bytes_sent() - sent;
      ASSERT_TRUE(rendezvous.Barrier("done", 10000).ok());  // so that nobody goes while others read
    });
    observed.bound_calls = bound / kRanks;
    observed.calls = (counts.calls - calls - bound) / kRanks;
    observed.groups = (counts.groups - groups_before) / kRanks;
    observed.in_groups = (counts.in_groups - in_groups) / kRanks;
    observed.replays = (counts.replays - replays) / kRanks;
    return observed;
  }
  static PlanOptions Options(bool overlap, bool capture) {
    PlanOptions options;
    options.fuse = false;
    options.overlap = overlap;
    options.capture = capture;
    return options;
  }
};

constexpr int kCalls = kLayers + 4;  // of a run
constexpr uint64_t kSent = kRuns * sizeof(float) * (kLayers * kWidth / kRanks + 3 * kWidth + kWidth / kRanks);

// What waits for the send, and the peer with it, must not wait for the receive.
TEST_F(QueuedCollectives, MessagesGoAlone) {
  const Observed seen = Run(Options(true, false), false, false, Messages);
  EXPECT_EQ(seen.groups, 0);
  ASSERT_EQ(seen.results.size(), static_cast<size_t>(kRuns));
  EXPECT_EQ(seen.results[1][5], 0.02f * static_cast<float>((5 * 7 + 13) % 29 - 11)) << "rank 1's x";
}

TEST_F(QueuedCollectives, ThatBeginTogetherGoIntoOneGroup) {
  PlanOptions one_by_one = Options(true, false);
  one_by_one.debug_sync = true;
  const Observed plain = Run(one_by_one, false);
  ASSERT_EQ(plain.results.size(), size_t{kRuns});
  EXPECT_NE(plain.results[0], plain.results[1]);
  EXPECT_EQ(plain.calls, kRuns * kCalls);
  EXPECT_EQ(plain.groups, 0);
  EXPECT_EQ(plain.bytes_sent, kSent);
  // The gathers are ready when the run begins; each sum begins with its input.
  const Observed early = Run(Options(true, false), false);
  EXPECT_EQ(early.results, plain.results);
  EXPECT_EQ(early.calls, kRuns * kCalls);
  EXPECT_EQ(early.groups, kRuns);
  EXPECT_EQ(early.in_groups, kRuns * kLayers);
  // Late as they can be, the sums begin together, and each gather alone.
  const Observed late = Run(Options(false, false), false);
  EXPECT_EQ(late.results, plain.results);
  EXPECT_EQ(late.groups, kRuns);
  EXPECT_EQ(late.in_groups, kRuns * 2);
}

TEST_F(QueuedCollectives, AreReplayedWithTheKernelsAroundThem) {
  const Observed segments = Run(Options(true, true), false);
  ASSERT_EQ(segments.results.size(), size_t{kRuns});
  EXPECT_EQ(segments.calls, kRuns * kCalls);
  EXPECT_GT(segments.replays, 0);
  for (const bool last_branch_first : {false, true}) {
    const Observed whole = Run(Options(true, true), true, last_branch_first);
    EXPECT_EQ(whole.results, segments.results);
    EXPECT_EQ(whole.bound_calls, kCalls) << "recorded once";
    EXPECT_EQ(whole.calls, 0) << "no run calls the plugin";
    EXPECT_EQ(whole.replays, kRuns) << "one for each run";
    EXPECT_EQ(whole.bytes_sent, kSent) << "which the replays send";
  }
}

// Rank 1 fails once rank 0 has queued a sum, whose work on the stream goes on for a while after it is aborted.
class AbortedOnStream : public QueuedCollectives {
 protected:
  ~AbortedOnStream() override { unsetenv("SWITCHYARD_MESSAGES_LATE_MS"); }
  void OnSurvivor(int late_ms, const std::function<void(Device& device, Event& queued)>& body) {
    setenv("SWITCHYARD_MESSAGES_LATE_MS", std::to_string(late_ms).c_str(), 1);
    const auto loaded = Load();
    ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
    const Counts& counts = CountsOf();
    const int before = counts.calls;
    OnRanks(kRanks, [&](int rank, Rendezvous& rendezvous, const ProcessMap& map) {
      const auto opened = Device::Open(**loaded, rank, {});
      ASSERT_TRUE(opened.ok()) << Message(opened.status());
      Device& device = **opened;
      const auto joined = Communicator::Join(*loaded, map, rendezvous, &device, "world", 10000);
      ASSERT_TRUE(joined.ok()) << Message(joined.status());
      if (rank == 1) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (counts.calls == before && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
        return rendezvous.ReportFailure(DataLoss("train/7.jpg is not a JPEG"));
      }
      auto buffer = device.Allocate(256);
      auto stream = device.NewStream();
      auto queued = device.NewEvent();
      ASSERT_TRUE(buffer.ok() && stream.ok() && queued.ok());
      const auto call =
          (*joined)->Prepare("sum", {Collective::kAllReduce, 8, SY_F32, SY_SUM}, {&*buffer, 0}, {&*buffer, 0});
      ASSERT_TRUE(call.ok()) << Message(call.status());
      ASSERT_TRUE((*joined)->Launch(**call, *stream).ok());
      ASSERT_TRUE(queued->Record(*stream).ok());
      EXPECT_THAT(Message((*joined)->Synchronize(*stream)), testing::HasSubstr("train/7.jpg is not a JPEG"));
      body(device, *queued);
    });
  }
};

// Whoever waited may free what the work reads and writes.
TEST_F(AbortedOnStream, EndsBeforeTheCallerGoesOn) {
  OnSurvivor(300, [](Device& device, Event& queued) {
    const auto ended = queued.Done();
    EXPECT_TRUE(!ended.ok() || *ended);
    EXPECT_FALSE(device.keeps_memory());
  });
}

// The device tells of the failure before the watch knows of the peer: that one is named all the same.
TEST_F(AbortedOnStream, IsTheFaultOfThePeer) {
  OnSurvivor(0, [](Device&, Event&) {});
}

TEST_F(AbortedOnStream, KeepsItsMemoryWhereItGoesOnForLong) {
  OnSurvivor(8000, [](Device& device, Event&) { EXPECT_TRUE(device.keeps_memory()); });
}

}  // namespace
}  // namespace switchyard
