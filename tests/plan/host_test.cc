// Nodes that run on the host beside a device: what they compute, where it lies, and what happens where it fails.
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/transfer.h"
#include "core/graph/verify.h"
#include "core/plan/host_thread.h"
#include "gmock/gmock.h"
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

INSTANTIATE_TEST_SUITE_P(Devices, HostSteps, testing::Values("reference", "cpu", "null"));

TEST(HostState, IsAllocatedOrRefusedInWords) {
  auto test = TestDevice::Open("null");
  if (!test.ok()) GTEST_SKIP() << Message(test.status());
  Layout layout(256);
  layout.Place("moments", kHostStateArena, {DType::kU8, {int64_t{1} << 60}}, uint64_t{1} << 60);
  const auto memory = Memory::Allocate(layout, *(*test)->device, nullptr, (*test)->reference.get());
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(memory.status()), HasSubstr("1152921504606846976 bytes of host memory for what --offload keeps"));
  EXPECT_THAT(Message(memory.status()), HasSubstr("--offload_optim_frac"));
  EXPECT_EQ((*test)->device->allocated_bytes(), 0u) << "nothing is left behind";
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

}  // namespace
}  // namespace switchyard
