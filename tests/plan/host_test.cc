// Nodes that run on the host beside a device: what they compute, where it lies, and what happens where it fails.
#include <filesystem>
#include <fstream>

#include "core/base/host_memory.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/transfer.h"
#include "core/graph/verify.h"
#include "core/plan/host_thread.h"
#include "gmock/gmock.h"
#include "tests/data/files_for_tests.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kElements = 3;

// A sum over runs that lies on the host.
Graph SumOnHost() {
  Graph g;
  const TensorType type = {DType::kF32, {kElements}};
  const Value x = g.Input("x", type, {.role = Role::kBatch});
  const Value sum = g.Input("sum", type, {.role = Role::kState, .host = true});
  const Value next = ops::Add(sum, ops::Store(ops::Scale(x, 2)));
  g.Assign(sum, next);
  g.Output("y", ops::Add(ops::Fetch(next), x));
  return g;
}

// How many mappings of this process are of files in the folder.
int MappedFrom(const std::string& folder) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(folder) != std::string::npos;
  return count;
}

class HostSteps : public DeviceTest {};

TEST_P(HostSteps, ComputeInTheHostsMemoryWhatTheDeviceReads) {
  const uint64_t before = test_->device->allocated_bytes();
  auto made = Compiled::Make(SumOnHost(), *test_);
  ASSERT_TRUE(made.ok()) << Message(made.status());
  Compiled& c = **made;
  const PlanReport& report = c.plan->report();
  EXPECT_EQ(report.host_launches, 1);
  EXPECT_EQ(report.store_bytes, kElements * sizeof(float));
  EXPECT_EQ(report.fetch_bytes, kElements * sizeof(float));
  EXPECT_TRUE(report.fallbacks.empty());
  EXPECT_THAT(report.ToText(), HasSubstr("1 launches run on the host, 12 B go there and 12 B come back each step"));
  EXPECT_EQ(c.layout->Find("sum")->arena, kHostStateArena);
  EXPECT_EQ(c.memory->allocated_bytes(), c.layout->bytes());
  EXPECT_EQ(c.memory->host_allocated_bytes(), c.layout->host_bytes());
  EXPECT_EQ(test_->device->allocated_bytes() - before, c.layout->bytes());
  c.Set("sum", std::vector<float>{10, 20, 30});
  for (int run = 0; run < 3; ++run) {
    c.Set("x", std::vector<float>{1, 2, static_cast<float>(run)});
    ASSERT_TRUE(c.instance->Run(c.stream).ok());
    ASSERT_TRUE(test_->device->Synchronize().ok());
    EXPECT_TRUE(c.instance->Finish().ok());
  }
  EXPECT_THAT(c.Get("sum"), ElementsAre(16, 32, 36));
  EXPECT_THAT(c.Get("output/y"), ElementsAre(17, 34, 38));
}

TEST_P(HostSteps, AreSearchedForWhatIsNotFinite) {
  Graph g;
  const TensorType type = {DType::kF32, {kElements}};
  const Value sum = g.Input("sum", type, {.role = Role::kState, .host = true});
  g.Assign(sum, ops::Add(sum, ops::Store(g.Input("x", type, {.role = Role::kBatch}))));
  PlanOptions options;
  options.debug_nan = true;
  auto made = Compiled::Make(g, *test_, options);
  ASSERT_TRUE(made.ok()) << Message(made.status());
  (*made)->Set("x", std::vector<float>{1, 2, 3});
  (*made)->Set("sum", std::vector<float>{0, std::numeric_limits<float>::infinity(), 0});
  const Status found = (*made)->instance->Run((*made)->stream);
  EXPECT_THAT(Message(found), testing::AllOf(HasSubstr("pointwise"), HasSubstr("inf at element 1")));
}

// Runs are submitted while those before still run.
TEST_P(HostSteps, KeepTheOrderOfRuns) {
  Graph g;
  const TensorType type = {DType::kF32, {kElements}};
  const Value there = g.Input("there", type, {.role = Role::kState, .host = true});
  const Value here = g.Input("here", type, {.role = Role::kState});
  g.Assign(there, ops::Add(there, ops::Store(here)));
  g.Assign(here, ops::Add(here, ops::Fetch(there)));
  for (const bool debugged : {false, true}) {
    PlanOptions options;
    options.debug_sync = debugged;
    auto made = Compiled::Make(g, *test_, options);
    ASSERT_TRUE(made.ok()) << Message(made.status());
    (*made)->Set("here", std::vector<float>{1, 0, 1});
    (*made)->Set("there", std::vector<float>{0, 1, 1});
    for (int run = 0; run < 12; ++run) {
      const Status ran = (*made)->instance->Run((*made)->stream);
      ASSERT_TRUE(ran.ok()) << Message(ran);
    }
    ASSERT_TRUE(test_->device->Synchronize().ok());
    ASSERT_TRUE((*made)->instance->Finish().ok());
    // (here, there) → (here + there, there + here), doubling from (1, 1).
    EXPECT_THAT((*made)->Get("there"), ElementsAre(2048, 2048, 4096));
    EXPECT_THAT((*made)->Get("here"), ElementsAre(2048, 2048, 4096));
  }
}

// What goes to the host goes as soon as it is there: before the state that it is written over is mentioned.
TEST_P(HostSteps, WriteOverStateThatIsMentionedLater) {
  Graph g;
  const TensorType type = {DType::kF32, {kElements}};
  const Value here = g.Input("here", type, {.role = Role::kState});
  const Value there = g.Input("there", type, {.role = Role::kState, .host = true});
  g.Assign(there, ops::Store(here));
  auto made = Compiled::Make(g, *test_);
  ASSERT_TRUE(made.ok()) << Message(made.status());
  EXPECT_EQ((*made)->layout->bytes(kHostStepArena), 0u) << "written in place";
  (*made)->Set("here", std::vector<float>{1, 2, 3});
  ASSERT_TRUE((*made)->instance->Run((*made)->stream).ok());
  ASSERT_TRUE(test_->device->Synchronize().ok());
  ASSERT_TRUE((*made)->instance->Finish().ok());
  EXPECT_THAT((*made)->Get("there"), ElementsAre(1, 2, 3));
}

INSTANTIATE_TEST_SUITE_P(Devices, HostSteps, ::testing::ValuesIn(TestDevices({"reference", "cpu", "null"})),
                         [](const auto& info) { return std::string(info.param); });

TEST(HostState, IsAllocatedOrRefusedInWords) {
  auto test = TestDevice::Open("null");
  if (!test.ok()) GTEST_SKIP() << Message(test.status());
  Layout layout(256);
  layout.Place("moments", kHostStateArena, {DType::kU8, {int64_t{1} << 60}}, uint64_t{1} << 60);
  const auto memory = Memory::Allocate(layout, *(*test)->device, nullptr, (*test)->reference.get());
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(memory.status()), HasSubstr("1152921504606846976 bytes of host memory for what --offload keeps"));
  EXPECT_THAT(Message(memory.status()), HasSubstr("use a smaller --offload_optim_frac, or --offload_dir on a disk"));
  const auto shared = Memory::Allocate(layout, *(*test)->device, nullptr, (*test)->reference.get(),
                                       {.ways_to_less = {"fewer moments", "more ranks"}});
  EXPECT_THAT(Message(shared.status()), HasSubstr("use fewer moments, or more ranks, or --offload_dir on a disk"));
  EXPECT_EQ((*test)->device->allocated_bytes(), 0u) << "nothing is left behind";
}

TEST(HostMemoryLeft, IsThatOfTheMachineOrOfTheControlGroup) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& name, const std::string& text) {
    root.Write(name, Bytes(text.begin(), text.end()));
  };
  EXPECT_FALSE(AvailableHostBytes(root.path())) << "nobody says";
  write("proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   5000 kB\nSwapFree:        100 kB\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 5000u * 1024) << "without swap";
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "3000000\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 5000u * 1024);
  write("sys/fs/cgroup/memory.max", "4000000\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 1000000u);
  write("sys/fs/cgroup/memory.stat", "anon 1000000\ninactive_file 500000\nactive_file 300000\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 1800000u) << "cached files make room";
  write("sys/fs/cgroup/memory.max", "2000000\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 0u);
}

TEST(HostMemoryLeft, IsThatOfTheGroupOfThisProcessAndOfThoseAboveIt) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& name, const std::string& text) {
    root.Write(name, Bytes(text.begin(), text.end()));
  };
  const auto limit = [&](const std::string& group, const std::string& bytes) {
    write("sys/fs/cgroup/" + group + "/memory.max", bytes + "\n");
    write("sys/fs/cgroup/" + group + "/memory.current", "1000\n");
  };
  write("proc/self/cgroup", "12:cpu,memory_of_others:/else\n0::/jobs/7/step\n");
  limit("else", "2000");
  limit("jobs", "9000");
  limit("jobs/7", "max");
  EXPECT_EQ(AvailableHostBytes(root.path()), 8000u);
  limit("jobs/7/step", "5000");
  EXPECT_EQ(AvailableHostBytes(root.path()), 4000u);
  limit("jobs", "4000");
  EXPECT_EQ(AvailableHostBytes(root.path()), 3000u);
  // The first version, whose root is the container's own group where the name is that of the machine's.
  write("proc/self/cgroup", "7:cpu,memory:/machine/container\n3:pids:/\n");
  const std::string memory = "sys/fs/cgroup/memory/";
  write(memory + "memory.limit_in_bytes", "9223372036854771712\n");
  write(memory + "memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 9223372036854771712u - 5000u);
  write(memory + "memory.limit_in_bytes", "8000\n");
  write(memory + "memory.stat", "inactive_file 1\ntotal_inactive_file 700\ntotal_active_file 50\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 3750u);
  write(memory + "machine/container/memory.limit_in_bytes", "6000\n");
  write(memory + "machine/container/memory.usage_in_bytes", "4000\n");
  EXPECT_EQ(AvailableHostBytes(root.path()), 2000u);
}

// What does not fit is refused before the system gives it away and ends whoever fills it.
TEST(HostState, IsNoLargerThanWhatIsLeft) {
  const auto left = AvailableHostBytes();
  if (!left) GTEST_SKIP() << "the system does not say how much memory is left";
  auto test = TestDevice::Open("null");
  if (!test.ok()) GTEST_SKIP() << Message(test.status());
  Layout layout(256);
  layout.Reserve(kHostStepArena, *left + (uint64_t{4} << 30));
  const auto memory = Memory::Allocate(layout, *(*test)->device, nullptr, (*test)->reference.get());
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(memory.status()), testing::AllOf(HasSubstr("host step"), HasSubstr(" are left; use ")));
  EXPECT_THAT(Message(memory.status()), testing::Not(HasSubstr("--offload_dir"))) << "which moves state alone";
}

TEST(HostState, LiesInAFileWithoutANameWhereAFolderIsGiven) {
  auto test = TestDevice::Open("null");
  if (!test.ok()) GTEST_SKIP() << Message(test.status());
  const TemporaryFolder folder;
  Layout layout(256);
  layout.Place("moments", kHostStateArena, {DType::kF32, {1000}}, 4000);
  layout.Reserve(kHostStepArena, 512);
  const auto allocate = [&](const std::string& path) {
    return Memory::Allocate(layout, *(*test)->device, nullptr, (*test)->reference.get(), {.folder = path});
  };
  {
    auto memory = allocate(folder.path());
    ASSERT_TRUE(memory.ok()) << Message(memory.status());
    EXPECT_EQ((*memory)->host_allocated_bytes(), layout.host_bytes());
    std::vector<float> values(1000, 3), zeros(1000), found(1000, 1);
    ASSERT_TRUE((*memory)->Download("moments", found.data(), 4000).ok());
    EXPECT_EQ(found, zeros);
    ASSERT_TRUE((*memory)->Upload("moments", values.data(), 4000).ok());
    ASSERT_TRUE((*memory)->Download("moments", found.data(), 4000).ok());
    EXPECT_EQ(found, values);
    EXPECT_EQ(MappedFrom(folder.path()), 1);
    EXPECT_TRUE((*memory)->AllocateForCopy(kHostStateArena)->in_file());
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  EXPECT_EQ(MappedFrom(folder.path()), 0);
  EXPECT_THAT(Message(allocate(folder.path() + "/nowhere").status()),
              testing::AllOf(HasSubstr("--offload_dir="), HasSubstr("/nowhere"), HasSubstr("No such file")));
  Layout large(256);
  large.Place("moments", kHostStateArena, {DType::kU8, {int64_t{1} << 60}}, uint64_t{1} << 60);
  const auto full =
      Memory::Allocate(large, *(*test)->device, nullptr, (*test)->reference.get(), {.folder = folder.path()});
  EXPECT_EQ(full.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(full.status()), testing::AllOf(HasSubstr("--offload_dir=" + folder.path()),
                                                     HasSubstr("cannot reserve 1152921504606846976 bytes")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(HostNodes, ReadWhatLiesWhereTheyRun) {
  Graph mixed;
  const TensorType type = {DType::kF32, {kElements}};
  const Value here = mixed.Input("here", type, {.role = Role::kState});
  const Value there = mixed.Input("there", type, {.role = Role::kState, .host = true});
  ops::Add(here, there);
  EXPECT_THAT([&] { Verify(mixed, "a test"); }, testing::ThrowsMessage<BuildError>(HasSubstr("and runs elsewhere")));
  Graph shown;
  shown.Output("y", shown.Input("there", type, {.role = Role::kState, .host = true}));
  EXPECT_THAT([&] { Verify(shown, "a test"); }, testing::ThrowsMessage<BuildError>(HasSubstr("fetch it first")));
}

// A call that fails holds no stream up, and its failure is told once.
TEST(HostThreads, EndWhatWaitsForACallThatFails) {
  auto test = TestDevice::Open("null");
  if (!test.ok()) GTEST_SKIP() << Message(test.status());
  auto thread = HostThread::Make(*(*test)->device);
  auto stream = (*test)->device->NewStream();
  ASSERT_TRUE(thread.ok() && stream.ok());
  HostThread::Call fails, precedes;
  bool ran = false;
  fails.body = [] { return Internal("as planted"); };
  precedes.body = [&] {
    ran = true;
    return OkStatus();
  };
  for (int run = 0; run < 2; ++run) {
    (*thread)->Start(precedes);
    (*thread)->Start(fails);
    ASSERT_TRUE((*thread)->Before(fails, *stream).ok());
    ASSERT_TRUE((*thread)->Before(precedes, *stream).ok());
    ASSERT_TRUE((*test)->device->Synchronize(*stream).ok());
    EXPECT_TRUE(ran);
    EXPECT_EQ(Message((*thread)->Finish(fails)), "as planted");
    EXPECT_TRUE((*thread)->Finish(fails).ok());
    EXPECT_TRUE((*thread)->Finish(precedes).ok());
  }
}

// Nobody waits for a stream that waits for ever.
TEST(HostThreads, EndWhereTheDeviceWaitsForSomebodyWhoDoesNotAnswer) {
  auto test = TestDevice::Open("null");
  if (!test.ok()) GTEST_SKIP() << Message(test.status());
  Device& device = *(*test)->device;
  auto thread = HostThread::Make(device);
  auto stream = device.NewStream();
  auto event = device.NewEvent();
  auto never = device.NewSemaphore();
  ASSERT_TRUE(thread.ok() && stream.ok() && event.ok() && never.ok());
  ASSERT_TRUE(never->Before(*stream, 1).ok());
  ASSERT_TRUE(event->Record(*stream).ok());
  HostThread::Call call;
  bool ran = false;
  call.body = [&] {
    ran = true;
    return OkStatus();
  };
  call.after = {&*event};
  (*thread)->Start(call);
  device.KeepMemory();
  EXPECT_EQ((*thread)->Finish(call).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(ran);
  ASSERT_TRUE(never->Signal(1).ok());
  ASSERT_TRUE(device.Synchronize(*stream).ok());
}

}  // namespace
}  // namespace switchyard
