// Communication runs beside computing: on a device whose kernels take a known time, with collectives that take a known
// time, a step takes little more than the longer of the two, and without overlap their sum; and so do updates that run
// on the host, beside those of the device. A busy machine lengthens sleeps and never shortens them, so the fastest
// steps are compared, and more are measured until the bound holds.
#include <algorithm>
#include <chrono>

#include "core/graph/gradients.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/context.h"
#include "core/optim/optimizer.h"
#include "core/parallel/data_parallel.h"
#include "core/parallel/program.h"
#include "core/plan/plan.h"
#include "core/runtime/plugins/interpose.h"
#include "core/runtime/plugins/registry.h"
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

constexpr int kTensors = 48, kHostMs = 8;  // half of them are updated on the host, each in a launch that takes so long

// A product of many parameters, each with an update of its own.
Workload ManyParameters() {
  return {"many_parameters",
          [](nn::Context& context) {
            Value product = context.graph.Input("x", {DType::kF32, {kWidth}}, {Role::kBatch});
            for (int i = 0; i < kTensors; ++i)
              product = ops::Mul(
                  product, nn::Parameter(context, fmt::format("p{}", i), {kWidth}, {Initializer::kConstant, 1}, true));
            return ops::Sum(product);
          },
          [](nn::Context& context) {
            context.graph.Output("x", context.graph.Input("x", {DType::kF32, {kWidth}}, {Role::kBatch}));
          }};
}

class OverlapTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    WorldRequest request;
    request.device = "null";
    request.collective = "shm";
    request.interpose = {fmt::format("fault:collective@1+:delay={}", kCollectiveMs)};
    auto joined = World::Join(request);
    ASSERT_TRUE(joined.ok()) << Message(joined.status());
    world_ = std::move(*joined);
    ASSERT_EQ(world_->size(), 2);
  }

  static void TearDownTestSuite() { world_.reset(); }

  // Seconds of the faster of two steps. `communicates`: else the collectives are left out.
  double StepSeconds(bool overlap, bool communicates) {
    KernelCache kernels(*world_->device, {}), reference(*world_->reference, {});
    Layout layout(world_->device->info().alignment);
    auto plan = Plan::Compile(Layers(), kernels, &reference, layout, {.fuse = false, .overlap = overlap});
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    Communicator* const communicator = world_->communicator.get();
    auto memory = Memory::Allocate(layout, *world_->device, communicator);
    EXPECT_TRUE(memory.ok()) << Message(memory.status());
    auto instance = Instance::Bind(**plan, **memory, communicates ? communicator : nullptr);
    EXPECT_TRUE(instance.ok()) << Message(instance.status());
    auto stream = world_->device->NewStream();
    EXPECT_TRUE(stream.ok());
    double fastest = 1e9;
    for (int run = 0; run < 2; ++run) {
      EXPECT_TRUE(communicator->Barrier("run").ok());
      const auto start = std::chrono::steady_clock::now();
      EXPECT_TRUE((*instance)->Run(*stream).ok());
      EXPECT_TRUE(world_->device->Synchronize(*stream).ok());
      fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return fastest;
  }

  // Both ranks measure again or neither does. `name`: of this question.
  bool HoldsOnBoth(const std::string& name, bool holds) {
    Rendezvous& rendezvous = *world_->rendezvous;
    EXPECT_TRUE(rendezvous.Put(fmt::format("{}.{}", name, world_->rank()), holds ? "yes" : "no").ok());
    const auto other = rendezvous.Get(fmt::format("{}.{}", name, 1 - world_->rank()), 60000);
    EXPECT_TRUE(other.ok()) << Message(other.status());
    return holds && other.ok() && *other == "yes";
  }

  // Seconds of the fastest of three updates with half the moments on the host, where each launch takes so long.
  double UpdateSeconds(int host_ms) {
    const auto found = Registry::Get().Find(PluginKind::kBackend, "reference");
    EXPECT_TRUE(found.ok()) << Message(found.status());
    std::vector<std::string> slow;
    if (host_ms > 0) slow.push_back(fmt::format("fault:launch@1+:delay={}", host_ms));
    const auto plugin = Interpose(*found, slow);
    EXPECT_TRUE(plugin.ok()) << Message(plugin.status());
    const auto host = Device::Open(**plugin, 0, {.threads = 1});
    EXPECT_TRUE(host.ok()) << Message(host.status());
    ProgramOptions options;
    options.optimizer.kind = SY_OPTIMIZER_ADAMW;
    options.optimizer.fused = false;
    options.bucket_bytes = kWidth * sizeof(float);
    options.offload = Offload::kOptimizer;
    options.offload_optim_frac = 0.5f;
    const auto program = BuildProgram(ManyParameters(), options, 0);
    EXPECT_TRUE(program.ok()) << Message(program.status());
    KernelCache kernels(*world_->device, {}), reference(*world_->reference, {}), on_host(**host, {});
    Layout layout(world_->device->info().alignment);
    auto plan = Plan::Compile(program->Find("update")->graph, kernels, &reference, layout, {}, &on_host);
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    EXPECT_GE((*plan)->report().host_launches, kTensors / 2);
    host_launches_ = (*plan)->report().host_launches;
    auto memory = Memory::Allocate(layout, *world_->device, nullptr, host->get());
    EXPECT_TRUE(memory.ok()) << Message(memory.status());
    auto instance = Instance::Bind(**plan, **memory, nullptr);
    EXPECT_TRUE(instance.ok()) << Message(instance.status());
    auto stream = world_->device->NewStream();
    EXPECT_TRUE(stream.ok());
    double fastest = 1e9;
    for (int run = 0; run < 3; ++run) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_TRUE((*instance)->Run(*stream).ok());
      EXPECT_TRUE(world_->device->Synchronize(*stream).ok());
      fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      EXPECT_TRUE((*instance)->Finish().ok());
    }
    return fastest;
  }
  int host_launches_ = 0;
  static inline std::unique_ptr<World> world_;
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

TEST_F(OverlapTest, UpdatesOnTheHostRunBesideThoseOfTheDevice) {
  double at_once = 1e9, slowly = 1e9;
  for (int round = 0; round < 5; ++round) {
    at_once = std::min(at_once, UpdateSeconds(0));
    slowly = std::min(slowly, UpdateSeconds(kHostMs));
    if (HoldsOnBoth(fmt::format("host{}", round), slowly - at_once <= 0.4e-3 * kHostMs * host_launches_)) break;
  }
  const double on_host = 1e-3 * kHostMs * host_launches_;
  EXPECT_LE(slowly - at_once, 0.5 * on_host) << "an update takes " << at_once << " s where the host takes no time";
  if (world_->rank() == 0)
    fmt::print("{} launches on the host: {:.3f} s, which make {:.3f} s of {:.3f} s\n", host_launches_, on_host, slowly,
               at_once);
}

}  // namespace
}  // namespace switchyard
