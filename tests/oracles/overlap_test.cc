// Communication runs beside computing: on a device whose kernels take a known time, with collectives that take a known
// time, a step takes little more than the longer of the two, and without overlap their sum. A busy machine lengthens
// sleeps and never shortens them, so the fastest steps are compared, and more are measured until the bound holds.
#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "core/graph/gradients.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/optim/optimizer.h"
#include "core/parallel/data_parallel.h"
#include "core/plan/plan.h"
#include "core/train/world.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

constexpr int kLayers = 48, kLayersOfABucket = 4, kWidth = 64;
constexpr int kCollectiveMs = 8;  // beside its copies; SWITCHYARD_NULL_DELAY_US says how long a kernel or a copy takes

// Layers whose gradients finish one after the other.
Graph Layers() {
  Graph graph;
  std::vector<Value> parameters;
  Value x = graph.Input("x", {DType::kF32, {kWidth}}, {});
  for (int i = 0; i < kLayers; ++i) {
    parameters.push_back(graph.Input(fmt::format("p{}", i), {DType::kF32, {kWidth}}, {Role::kParameter, {}, false}));
    x = ops::Unary(SY_PW_TANH, ops::Mul(x, parameters.back()));
  }
  const std::vector<Value> gradients = Gradients(ops::Sum(x), parameters);
  std::vector<ParameterGradient> pairs;
  for (int i = 0; i < kLayers; ++i) pairs.push_back({parameters[i], gradients[i]});
  DataParallelOptions options;
  options.world = 2;
  options.bucket_bytes = kLayersOfABucket * kWidth * sizeof(float);
  const Buckets buckets = AddDataParallel(graph, pairs, options);
  AddOptimizer(graph, buckets.gradients, ops::SquaredNorm(buckets.flat), {}, 1);
  return graph;
}

class OverlapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WorldRequest request;
    request.device = "null";
    request.collective = "shm";
    request.interpose = {fmt::format("fault:collective@1+:delay={}", kCollectiveMs)};
    auto joined = World::Join(request);
    ASSERT_TRUE(joined.ok()) << Message(joined.status());
    world_ = std::move(*joined);
    ASSERT_EQ(world_->size(), 2);
  }

  // What `use` makes of a plan of the graph. `communicates`: else the collectives are left out.
  template <typename Use>
  auto With(const Graph& graph, bool overlap, bool communicates, const Use& use) {
    KernelCache kernels(*world_->device, {}), reference(*world_->reference, {});
    Layout layout(world_->device->info().alignment);
    auto plan = Plan::Compile(graph, kernels, &reference, layout, {.fuse = false, .overlap = overlap});
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    Communicator* const all = world_->communicator.get();
    // Where one rank alone has a plan there is no group 0, which would have all ranks allocate.
    const auto communicators = other_ ? GroupCommunicators({nullptr, all, other_.get()}) : GroupCommunicators(all);
    auto memory = Memory::Allocate(layout, *world_->device, communicators);
    EXPECT_TRUE(memory.ok()) << Message(memory.status());
    auto instance = Instance::Bind(**plan, **memory, communicates ? communicators : nullptr);
    EXPECT_TRUE(instance.ok()) << Message(instance.status());
    auto stream = world_->device->NewStream();
    EXPECT_TRUE(stream.ok());
    return use(**instance, *stream);
  }

  // Seconds of the faster of two steps.
  double StepSeconds(bool overlap, bool communicates) {
    return With(Layers(), overlap, communicates, [&](Instance& instance, const Stream& stream) {
      double fastest = 1e9;
      for (int run = 0; run < 2; ++run) {
        EXPECT_TRUE(world_->communicator->Barrier("run").ok());
        const auto start = std::chrono::steady_clock::now();
        EXPECT_TRUE(instance.Run(stream).ok());
        EXPECT_TRUE(world_->device->Synchronize(stream).ok());
        fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      return fastest;
    });
  }

  // Both ranks measure again or neither does. `name`: of this question.
  bool HoldsOnBoth(const std::string& name, bool holds) {
    Rendezvous& rendezvous = *world_->rendezvous;
    EXPECT_TRUE(rendezvous.Put(fmt::format("{}.{}", name, world_->rank()), holds ? "yes" : "no").ok());
    const auto other = rendezvous.Get(fmt::format("{}.{}", name, 1 - world_->rank()), 60000);
    EXPECT_TRUE(other.ok()) << Message(other.status());
    return holds && other.ok() && *other == "yes";
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> other_;  // of group 2, where there is one
};

TEST_F(OverlapTest, AStepTakesLittleMoreThanTheLongerOfComputingAndCommunicating) {
  double computing = 1e9, in_turn = 1e9, together = 1e9;
  for (int round = 0; round < 5; ++round) {
    computing = std::min(computing, StepSeconds(true, false));
    in_turn = std::min(in_turn, StepSeconds(false, true));
    together = std::min(together, StepSeconds(true, true));
    const bool holds = round > 0 && together <= 1.1 * std::max(computing, in_turn - computing);
    if (HoldsOnBoth(fmt::format("round{}", round), holds)) break;
  }
  const double communicating = in_turn - computing;
  EXPECT_GE(communicating, 1e-3 * kCollectiveMs * kLayers / kLayersOfABucket) << "collectives that are not waited for";
  EXPECT_LE(together, 1.1 * std::max(computing, communicating))
      << "computing " << computing << " s, communicating " << communicating << " s";
  if (world_->rank() == 0)
    fmt::print("computing {:.3f} s, communicating {:.3f} s, in turn {:.3f} s, together {:.3f} s\n", computing,
               communicating, in_turn, together);
}

// The second collective of a run still waits for its start when the next run is submitted.
TEST_F(OverlapTest, RunsAreSubmittedBeforeTheirCollectivesAreThrough) {
  Graph graph;
  std::vector<Value> sums;
  for (const char* name : {"a", "b", "c"}) {
    const Value input = graph.Input(name, {DType::kF32, {kWidth}}, {Role::kParameter, {}, false});
    sums.push_back(ops::Unary(SY_PW_TANH, ops::AllGather(input, 2)));
  }
  graph.Output("y", ops::Add(ops::Add(sums[0], sums[1]), sums[2]));
  With(graph, true, true, [&](Instance& instance, const Stream& stream) {
    for (int run = 0; run < 4; ++run) EXPECT_TRUE(instance.Run(stream).ok());
    EXPECT_TRUE(world_->device->Synchronize(stream).ok());
    EXPECT_TRUE(instance.Finish().ok());
  });
}

// Of rank 0, a stage: what it computes next is held up until rank 1 lets it go on, and no time is measured.
Graph Stage() {
  Graph graph;
  const TensorType type = {DType::kF32, {kWidth}};
  const Value held = ops::Receive(graph, type, 1, 2, "held");
  const Value first = ops::Unary(SY_PW_TANH, graph.Input("x", type, {Role::kParameter, {}, false}));
  ops::Send(first, 1, 1, "first");
  const Value came = ops::Receive(graph, type, 1, 1, "came");
  ops::Send(came, 1, 1, "back");
  const Value next = ops::Unary(SY_PW_TANH, held);
  graph.Output("y", ops::Add(next, came));
  return graph;
}

// Its messages go and come all the same: the one computed while another is waited for, and one that came. Without
// overlap they wait for what was computed before them.
TEST_F(OverlapTest, MessagesGoAndComeWhileAStageComputes) {
  auto other = world_->communicator->Split(0, world_->rank(), "other");
  ASSERT_TRUE(other.ok()) << Message(other.status());
  other_ = std::move(*other);
  for (const bool overlap : {true, false}) {
    SCOPED_TRACE(fmt::format("--overlap={}", overlap ? 1 : 0));
    if (world_->rank() == 0) {
      With(Stage(), overlap, true, [&](Instance& instance, const Stream& stream) {
        EXPECT_TRUE(instance.Run(stream).ok());
        EXPECT_TRUE(world_->device->Synchronize(stream).ok());
        EXPECT_TRUE(instance.Finish().ok());
      });
      continue;
    }
    std::promise<void> back;
    std::thread neighbour([&] {
      std::vector<float> values(kWidth);
      for (const int is_send : {0, 1, 0}) {
        const Status moved =
            world_->communicator->SendReceive("neighbour", {{0, is_send, values.data(), kWidth * sizeof(float)}});
        EXPECT_TRUE(moved.ok()) << Message(moved);
      }
      back.set_value();
    });
    const auto patience = overlap ? std::chrono::milliseconds(30000) : std::chrono::milliseconds(300);
    const bool came_back = back.get_future().wait_for(patience) == std::future_status::ready;
    EXPECT_EQ(came_back, overlap);
    std::vector<float> held(kWidth);
    const Status let_go = other_->SendReceive("held", {{0, 1, held.data(), kWidth * sizeof(float)}});
    EXPECT_TRUE(let_go.ok()) << Message(let_go);
    neighbour.join();
  }
}

}  // namespace
}  // namespace switchyard
