// The planner and the executor: placement, in-place updates, buckets, fallbacks, debugging, on every device plugin that
// is here.
#include "core/plan/plan.h"

#include <algorithm>
#include <numeric>

#include "core/base/random.h"
#include "core/graph/gradients.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"
#include "core/graph/passes/decompose.h"
#include "core/nn/convolution.h"
#include "core/optim/optimizer.h"
#include "core/parallel/data_parallel.h"
#include "core/plan/launch_order.h"
#include "gmock/gmock.h"
#include "tests/graph/steps.h"
#include "tests/plan/allocation_count.h"
#include "tests/plan/small_program.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

InputInfo As(Role role) { return {role, {}, true}; }
std::vector<float> Ramp(int64_t count, float scale = 0.1f) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(i % 23 - 11);
  return values;
}

class PlanOnDevice : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, PlanOnDevice, ::testing::ValuesIn(TestDevices({"reference", "cpu", "null"})),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PlanOnDevice, ComputesWhatTheGraphSays) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {3, 4}}, As(Role::kBatch));
  const Value w = g.Input("w", {DType::kF32, {2, 4}}, As(Role::kParameter));
  const Value b = g.Input("b", {DType::kF32, {2}}, As(Role::kParameter));
  g.Output("y", ops::Linear(x, w, b));
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set("x", Ramp(12));
  (*c)->Set("w", Ramp(8, 0.5f));
  (*c)->Set("b", std::vector<float>{1, -1});
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  const auto y = (*c)->Get("output/y");
  const auto xs = Ramp(12), ws = Ramp(8, 0.5f);
  for (int r = 0; r < 3; ++r) {
    for (int n = 0; n < 2; ++n) {
      double expected = n == 0 ? 1 : -1;
      for (int k = 0; k < 4; ++k) expected += xs[r * 4 + k] * ws[n * 4 + k];
      EXPECT_NEAR(y[r * 2 + n], expected, 1e-5);
    }
  }
}

TEST_P(PlanOnDevice, NormalisesASingleRow) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {4}}, As(Role::kBatch));
  const Value gamma = g.Input("gamma", x.type(), As(Role::kParameter));
  const Value y = ops::LayerNorm(x, gamma, g.Input("beta", x.type(), As(Role::kParameter)), 1);
  g.Output("y", y);
  g.Output("dgamma", Gradients(ops::Sum(y), {gamma})[0]);
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set<float>("x", {2, -2, 4, -4});
  (*c)->Set<float>("gamma", {1, 1, 1, 3});
  (*c)->Set<float>("beta", {0, 1, 0, 0});
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  const float scale = 1 / std::sqrt(11.0f);
  EXPECT_THAT((*c)->Get("output/y"),
              testing::Pointwise(testing::FloatNear(1e-6f), {2 * scale, 1 - 2 * scale, 4 * scale, -12 * scale}));
  EXPECT_THAT((*c)->Get("output/dgamma"),
              testing::Pointwise(testing::FloatNear(1e-6f), {2 * scale, -2 * scale, 4 * scale, -4 * scale}));
}

// A third times an extremum, and back, is another number: the gradient goes to the extremum all the same.
TEST_P(PlanOnDevice, AScaledExtremumHandsItsGradientToWhereItLies) {
  Graph g;
  constexpr int kCount = 64;
  const Value x = g.Input("x", {DType::kF32, {kCount, 2}}, As(Role::kBatch));
  g.Output("dx", Gradients(ops::Sum(ops::Reduce(x, SY_REDUCE_MAX, 2, 1 / 3.0f)), {x})[0]);
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  std::vector<float> values, expected;
  for (int i = 0; i < kCount; ++i) {
    values.insert(values.end(), {std::sqrt(static_cast<float>(i + 2)), 1});
    expected.insert(expected.end(), {1 / 3.0f, 0});
  }
  (*c)->Set<float>("x", values);
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  EXPECT_EQ((*c)->Get("output/dx"), expected);
}

TEST_P(PlanOnDevice, APowerOfZeroHasAGradient) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {5}}, As(Role::kBatch)), e = g.Input("e", x.type(), As(Role::kBatch));
  const std::vector<Value> gradients = Gradients(ops::Sum(ops::Binary(SY_PW_POW, x, e)), {x, e});
  g.Output("dx", gradients[0]);
  g.Output("de", gradients[1]);
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set<float>("x", {0, 0, 0, 1, 2});
  (*c)->Set<float>("e", {2, 1, 0, 3, 2});
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  EXPECT_THAT((*c)->Get("output/dx"), testing::Pointwise(testing::FloatNear(1e-5f), {0, 1, 0, 3, 4}));
  const std::vector<float> of_exponents = (*c)->Get("output/de");
  EXPECT_EQ(of_exponents[0], 0);
  EXPECT_EQ(of_exponents[1], 0);
  EXPECT_NEAR(of_exponents[4], 4 * std::log(2.0f), 1e-5);
}

TEST_P(PlanOnDevice, AGradientKeepsTheFractionsBetweenIntegers) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {2}}, As(Role::kBatch));
  const Value a = g.Input("a", {DType::kI32, {2}}, As(Role::kBatch)), b = g.Input("b", a.type(), As(Role::kBatch));
  sy_pointwise_attributes program{2, 1, {4}, {{SY_PW_DIV, 1, 2}, {SY_PW_MUL, 0, 3}}};  // x·(a/b)
  g.Output("dx", Gradients(ops::Sum(ops::Pointwise({x, a, b}, program, {DType::kF32})[0]), {x})[0]);
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set<int32_t>("a", {3, 1});
  (*c)->Set<int32_t>("b", {2, 4});
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  EXPECT_EQ((*c)->Get("output/dx"), (std::vector<float>{1.5f, 0.25f}));
}

TEST_P(PlanOnDevice, AllocatesExactlyTheBytesItPlanned) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {64, 65}}, As(Role::kBatch));
  g.Output("y", ops::Sum(ops::Softmax(ops::Unary(SY_PW_EXP, x))));
  const uint64_t before = test_->device->allocated_bytes();
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  const uint64_t planned = (*c)->layout->bytes();
  EXPECT_EQ((*c)->memory->allocated_bytes(), planned);
  EXPECT_EQ(test_->device->allocated_bytes() - before, planned);
  uint64_t reported = 0;
  for (const ArenaBytes& arena : (*c)->plan->report().memory) reported += arena.bytes;
  EXPECT_EQ(reported, planned);
}

TEST_P(PlanOnDevice, AsksThePluginOnceForEachDistinctKernel) {
  const auto chain = [](int layers) {
    Graph g;
    Value x = g.Input("x", {DType::kF32, {3, 4}}, As(Role::kBatch));
    const Value w = g.Input("w", {DType::kF32, {4, 4}}, As(Role::kParameter));
    for (int i = 0; i < layers; ++i) x = ops::Matmul(x, w);
    g.Output("y", x);
    return g;
  };
  const auto report = [&](int layers) {
    Layout layout(test_->device->info().alignment);
    const auto plan = Plan::Compile(chain(layers), *test_->kernels, test_->reference_kernels.get(), layout, {});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? (*plan)->report() : PlanReport();
  };
  const PlanReport first = report(1), second = report(5);
  EXPECT_EQ(second.launches, 5);
  EXPECT_GT(first.kernels, 0);
  EXPECT_EQ(second.kernels, first.kernels);
  EXPECT_GT(first.kernel_seconds, 0);
  EXPECT_EQ(second.kernel_seconds, first.kernel_seconds) << "a known kernel takes none of the plugin's time";
}

TEST_P(PlanOnDevice, InstancesOfTwoSlotsShareStateAndHaveInputsAndOutputsOfTheirOwn) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {4}}, As(Role::kBatch));
  const Value total = g.Input("total", {DType::kF32, {4}}, As(Role::kState));
  const Value sum = ops::Add(total, x);
  g.Assign(total, sum);
  g.Output("y", ops::Scale(sum, 2.0f));
  Layout layout(test_->device->info().alignment, 2);
  const auto plan = Plan::Compile(g, *test_->kernels, test_->reference_kernels.get(), layout, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto memory = Memory::Allocate(layout, *test_->device, nullptr);
  ASSERT_TRUE(memory.ok()) << memory.status();
  uint64_t planned = 0;
  for (const ArenaBytes& arena : (*plan)->report().memory) planned += arena.bytes;
  EXPECT_EQ(planned, (*memory)->allocated_bytes());
  const auto stream = test_->device->NewStream();
  ASSERT_TRUE(stream.ok());

  // Both inputs are there before either instance runs, and both outputs are read after both have run.
  const std::vector<float> inputs[2] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  const Layout::Entry& entry = *layout.Find("x");
  for (const int slot : {0, 1}) {
    const sy_place place = (*memory)->place(entry.arena, entry.offset, slot);
    ASSERT_TRUE(test_->device->Upload(place, inputs[slot].data(), 16).ok());
  }
  for (const int slot : {0, 1}) {
    const auto instance = Instance::Bind(**plan, **memory, nullptr, slot);
    ASSERT_TRUE(instance.ok()) << instance.status();
    ASSERT_TRUE((*instance)->Run(*stream).ok());
    ASSERT_TRUE(test_->device->Synchronize(*stream).ok());
  }
  std::vector<float> outputs[2] = {std::vector<float>(4), std::vector<float>(4)}, state(4);
  for (const int slot : {0, 1}) ASSERT_TRUE((*memory)->Download("output/y", outputs[slot].data(), 16, slot).ok());
  ASSERT_TRUE((*memory)->Download("total", state.data(), 16).ok());
  EXPECT_EQ(outputs[0], (std::vector<float>{2, 4, 6, 8}));
  EXPECT_EQ(outputs[1], (std::vector<float>{22, 44, 66, 88}));
  EXPECT_EQ(state, (std::vector<float>{11, 22, 33, 44}));
}

TEST_P(PlanOnDevice, WritesStateInPlaceAndKeepsOldReadersRight) {
  // Both outputs read the state before it changes; the state counts up over runs.
  Graph g;
  const Value state = g.Input("state", {DType::kF32, {5}}, As(Role::kState));
  const Value next = ops::AddScalar(state, 1);
  g.Output("before", ops::Scale(state, 10));
  g.Assign(state, next);
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set("state", std::vector<float>{0, 1, 2, 3, 4});
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    EXPECT_FLOAT_EQ((*c)->Get("output/before")[2], 10.0f * (2 + run));
    EXPECT_FLOAT_EQ((*c)->Get("state")[4], 4.0f + run + 1);
  }
}

TEST_P(PlanOnDevice, StatesMayTakeEachOthersOldValues) {
  Graph g;
  std::vector<Value> states;
  for (const char* name : {"a", "b", "c", "d"}) states.push_back(g.Input(name, {DType::kF32, {3}}, As(Role::kState)));
  g.Assign(states[0], states[1]);  // a and b change places
  g.Assign(states[1], states[0]);
  g.Assign(states[2], states[3]);  // c gets what d was
  g.Assign(states[3], ops::AddScalar(states[3], 1));
  g.Output("before", ops::Reshape(states[0], {1, 3}));
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  for (int i = 0; i < 4; ++i) (*c)->Set(std::string(1, static_cast<char>('a' + i)), std::vector<float>(3, i));
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    const float a = run % 2 == 0 ? 1 : 0;
    EXPECT_EQ((*c)->Get("a"), std::vector<float>(3, a));
    EXPECT_EQ((*c)->Get("b"), std::vector<float>(3, 1 - a));
    EXPECT_EQ((*c)->Get("c"), std::vector<float>(3, 3.0f + static_cast<float>(run)));
    EXPECT_EQ((*c)->Get("d"), std::vector<float>(3, 4.0f + static_cast<float>(run)));
    EXPECT_EQ((*c)->Get("output/before"), std::vector<float>(3, 1 - a));
  }
}

TEST_P(PlanOnDevice, WritesConditionalStateOnlyWhereTheConditionHolds) {
  Graph g;
  const Value state = g.Input("state", {DType::kF32, {3}}, As(Role::kState));
  const Value finite = g.Input("finite", {DType::kF32, {1}}, As(Role::kBatch));
  ops::AssignWhen(finite, state, ops::AddScalar(state, 1));
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set("state", std::vector<float>{5, 6, 7});
  for (const float condition : {0.0f, 1.0f}) {
    (*c)->Set("finite", std::vector<float>{condition});
    ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    EXPECT_FLOAT_EQ((*c)->Get("state")[1], 6 + condition);
  }
}

TEST_P(PlanOnDevice, ControlEdgesOrderNodesThatShareNoValue) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {4}}, As(Role::kBatch));
  const Value reduced = ops::AllReduce(ops::Scale(x, 2), SY_SUM, 1);
  const Value later = ops::AddScalar(x, 1);
  g.mutable_node(later.ref().node).control.push_back(reduced.ref().node);
  g.Output("y", later);
  g.Output("z", reduced);
  PlanOptions options;
  options.fuse = false;
  options.debug_sync = true;  // records the order
  const auto c = Compiled::Make(g, *test_, options);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set("x", std::vector<float>{1, 2, 3, 4});
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  EXPECT_FLOAT_EQ((*c)->Get("output/y")[3], 5);
  EXPECT_FLOAT_EQ((*c)->Get("output/z")[3], 8);
  std::vector<std::string> order;
  const Plan& plan = *(*c)->plan;
  for (const Instance::Timing& timing : (*c)->instance->timings())
    order.push_back(plan.graph().node(plan.schedule().steps[static_cast<size_t>(timing.step)].node).op);
  // Without the edge it would run right before its reader, at the end; with it, before the last kernel.
  const auto last_kernel = std::find(order.rbegin(), order.rend(), "pointwise").base();
  EXPECT_EQ(std::count(order.begin(), last_kernel, "all_reduce"), 1);
}

// A chain of layers, each with a gradient that becomes a bucket of its own.
Graph ChainWithBuckets(int layers) {
  Graph g;
  std::vector<Value> parameters;
  Value x = g.Input("x", {DType::kF32, {3, 60}}, As(Role::kBatch));  // buckets have a gap: 60 is no multiple of 64
  for (int i = 0; i < layers; ++i) {
    parameters.push_back(g.Input(fmt::format("p{}", i), {DType::kF32, {1, 60}}, As(Role::kParameter)));
    x = ops::Unary(SY_PW_TANH, ops::Mul(x, parameters.back()));
  }
  const std::vector<Value> gradients = Gradients(ops::Sum(x), parameters);
  std::vector<ParameterGradient> pairs;
  for (int i = 0; i < layers; ++i) pairs.push_back({parameters[i], gradients[i]});
  DataParallelOptions options;
  options.world = 2;
  options.bucket_bytes = 4;
  const Buckets buckets = AddDataParallel(g, pairs, options);
  OptimizerOptions sgd;
  sgd.kind = SY_OPTIMIZER_SGD;
  AddOptimizer(g, buckets.gradients, ops::SquaredNorm(buckets.flat), sgd, 1);
  return g;
}

std::vector<int> PositionsOf(const Graph& graph, const std::vector<int>& order) {
  std::vector<int> position(graph.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
  for (int id = 0; id < graph.size(); ++id) {
    EXPECT_GE(position[id], 0) << graph.node(id).name << " is missing";
    for (const Ref& input : graph.node(id).inputs) EXPECT_LT(position[input.node], position[id]) << graph.node(id).name;
    for (const int earlier : graph.node(id).control) EXPECT_LT(position[earlier], position[id]) << graph.node(id).name;
  }
  return position;
}

TEST(LaunchOrderTest, AReductionStartsBehindTheLastWriterOfItsBucket) {
  constexpr int kLayers = 6;
  const Graph g = ChainWithBuckets(kLayers);
  for (const bool early : {true, false}) {
    const std::vector<int> order = LaunchOrder(g, early, 0), position = PositionsOf(g, order);
    int last_backward = -1;
    std::vector<int> reductions, writers;
    for (int id = 0; id < g.size(); ++id) {
      const Node& node = g.node(id);
      if (node.phase == Phase::kBackward) {
        EXPECT_GT(position[id], last_backward) << node.name << " does not stand where it was built";
        last_backward = position[id];
      }
      if (!IsCollective(node.op)) continue;
      reductions.push_back(position[id]);
      const Node& bucket = g.node(node.inputs[0].node);
      int writer = -1;
      for (const Ref& part : bucket.inputs) {
        int at = part.node;
        while (TraitsOf(g.node(at).op).view) at = g.node(at).inputs[0].node;
        writer = std::max(writer, position[at]);
      }
      writers.push_back(writer);
    }
    ASSERT_EQ(reductions.size(), static_cast<size_t>(kLayers));
    for (int i = 0; i < kLayers; ++i) {
      if (!early) {
        EXPECT_GT(reductions[i], last_backward);
        continue;
      }
      for (int between = writers[i] + 1; between < reductions[i]; ++between) {
        const Node& node = g.node(order[between]);
        EXPECT_TRUE(TraitsOf(node.op).view || node.op == "concat") << node.name << " holds up reduction " << i;
      }
      if (i + 1 < kLayers) {
        EXPECT_LT(reductions[i], last_backward);
      }
    }
  }
}

// The gradient of an added parameter is that of the sum, which goes on backwards behind the bucket's reduction.
TEST_P(PlanOnDevice, AGradientThatIsReadElsewhereDoesNotLieInABucketThatIsReduced) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {64}}, As(Role::kBatch)),
              p = g.Input("p", {DType::kF32, {64}}, As(Role::kParameter));
  const Value w = g.Input("w", {DType::kF32, {64}}, As(Role::kParameter));
  const Value y = ops::Unary(SY_PW_TANH, ops::Add(ops::Mul(x, w), p));
  const std::vector<Value> gradients = Gradients(ops::Sum(y), {p, w});
  DataParallelOptions options;
  options.world = 2;
  options.bucket_bytes = 4;
  const Buckets buckets = AddDataParallel(g, {{p, gradients[0]}, {w, gradients[1]}}, options);
  for (size_t i = 0; i < 2; ++i) g.Output(fmt::format("g{}", i), buckets.gradients[i].gradient);
  PlanOptions plan_options;
  plan_options.fuse = false;
  const auto c = Compiled::Make(g, *test_, plan_options);
  ASSERT_TRUE(c.ok()) << c.status();
  // Two outputs, and the gradient of p into its bucket; that of w is written where the bucket lies.
  EXPECT_EQ((*c)->plan->report().copies, 3);
}

// What reduces the bucket need not read it by its own name.
TEST_P(PlanOnDevice, ABucketIsReducedAlsoBehindAnotherShape) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {64}}, As(Role::kBatch));
  const Value part = ops::Unary(SY_PW_TANH, x);
  const Value bucket = g.Add("concat", {part}, Attributes(sy_axes_attributes{}))[0];
  g.mutable_node(bucket.ref().node).bucket = "gradients/0";
  g.Output("sum", ops::AllReduce(ops::Reshape(bucket, {8, 8}), SY_SUM, 1));
  g.Output("read", ops::Unary(SY_PW_EXP, part));
  PlanOptions options;
  options.fuse = false;
  const auto c = Compiled::Make(g, *test_, options);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*c)->plan->report().copies, 3) << "two outputs, and the part that is read elsewhere into the bucket";
}

TEST(LaunchOrderTest, CollectivesOfCollectivesAndControlEdgesKeepTheirOrder) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {8}}, As(Role::kBatch));
  const Attributes a(sy_collective_attributes{});
  const Value part = g.Add("reduce_scatter", {ops::Scale(x, 2)}, a, {.shape = Shape{2}})[0];
  const Value sum = ops::AllReduce(part, SY_SUM, 1);
  const Value whole = g.Add("all_gather", {sum}, a, {.shape = Shape{8}})[0];
  const Value other = ops::AddScalar(x, 1);
  g.mutable_node(part.ref().node).control.push_back(x.ref().node);
  g.mutable_node(other.ref().node).control.push_back(whole.ref().node);
  g.Output("y", other);
  g.Output("z", whole);
  for (const bool early : {true, false}) PositionsOf(g, LaunchOrder(g, early, 0));
}

TEST(Plan, CapturedSegmentsComputeTheSame) {
  const auto opened = TestDevice::Open("null");
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::vector<std::vector<float>> results;
  for (const bool capture : {true, false}) {
    Graph g;
    const Value x = g.Input("x", {DType::kF32, {8, 9}}, As(Role::kBatch));
    const Value count = g.Input("count", {DType::kF32, {1}}, As(Role::kState));
    g.Assign(count, ops::AddScalar(count, 1));
    g.Output("y", ops::Sum(ops::Mul(ops::Softmax(x), count)));
    PlanOptions options;
    options.capture = capture;
    const auto c = Compiled::Make(g, **opened, options);
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ((*c)->instance->captured_launches() > 0, capture);
    (*c)->Set("x", Ramp(72));
    for (int run = 0; run < 3; ++run) ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    results.push_back((*c)->Get("output/y"));
    results.push_back((*c)->Get("count"));
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
  EXPECT_FLOAT_EQ(results[1][0], 3);
}

TEST_P(PlanOnDevice, PutsBucketPartsWhereTheBucketLies) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {64}}, As(Role::kBatch));
  const Value a = ops::Scale(x, 2), b = ops::Scale(x, 3);
  const Value bucket = g.Add("concat", {a, b}, Attributes(sy_axes_attributes{}))[0];
  g.mutable_node(bucket.ref().node).bucket = "gradients/0";
  g.Output("second", ops::Sum(ops::Slice(bucket, 0, 64, 64)));
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*c)->plan->report().copies, 1) << "only the output is copied";
  EXPECT_EQ((*c)->layout->bytes(kGradientsArena), 128 * sizeof(float));
  (*c)->Set("x", Ramp(64));
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  const auto all = (*c)->Get("gradients/0");
  for (int i = 0; i < 64; ++i) {
    EXPECT_FLOAT_EQ(all[i], 2 * Ramp(64)[i]);
    EXPECT_FLOAT_EQ(all[64 + i], 3 * Ramp(64)[i]);
  }
}

TEST_P(PlanOnDevice, ReusesMemoryOfDeadValues) {
  Graph g;
  Value x = g.Input("x", {DType::kF32, {1 << 16}}, As(Role::kBatch));
  const int64_t one = x.type().bytes();
  for (int i = 0; i < 10; ++i) x = ops::Reshape(ops::Softmax(ops::Reshape(x, {256, 256})), {1 << 16});
  g.Output("y", ops::Sum(x));
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_LE((*c)->layout->bytes(kActivationsArena), static_cast<uint64_t>(3 * one));
}

// A new value that cannot be written over its state is copied there as soon as nobody needs the old one.
TEST_P(PlanOnDevice, ReusesMemoryOfValuesThatStatesHaveTaken) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {128, 256}}, As(Role::kBatch));
  std::vector<Value> states;
  for (int i = 0; i < 8; ++i) {
    states.push_back(g.Input(fmt::format("s{}", i), {DType::kF32, {64, 256}}, As(Role::kState)));
    g.Assign(states.back(), ops::Slice(ops::Softmax(ops::Scale(x, static_cast<float>(i + 1))), 0, 64, 64));
  }
  g.Output("before", states[7]);
  const auto c = Compiled::Make(g, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_LE((*c)->layout->bytes(kActivationsArena), static_cast<uint64_t>(4 * x.type().bytes()));
  const std::vector<float> old(64 * 256, 5);
  (*c)->Set("s7", old);
  (*c)->Set("x", Ramp(128 * 256));
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  EXPECT_EQ((*c)->Get("output/before"), old);
  EXPECT_NE((*c)->Get("s7"), old);
  for (int i = 0; i < 8; ++i) {
    const std::vector<float> rows = (*c)->Get(fmt::format("s{}", i));
    for (size_t row = 0; row < 64; ++row) {
      EXPECT_NEAR(std::accumulate(rows.begin() + static_cast<std::ptrdiff_t>(256 * row),
                                  rows.begin() + static_cast<std::ptrdiff_t>(256 * (row + 1)), 0.0),
                  1, 1e-4);
    }
  }
}

TEST_P(PlanOnDevice, FusedAndUnfusedPlansAgree) {
  const Graph graph = SmallProgram().value().Find("update")->graph;
  std::vector<std::vector<float>> parameters;
  double losses[2] = {};
  for (const bool fuse : {true, false}) {
    PlanOptions plan;
    plan.fuse = fuse;
    const auto c = Compiled::Make(graph, *test_, plan);
    ASSERT_TRUE(c.ok()) << c.status();
    const NodeList& nodes = (*c)->plan->graph().nodes();
    const auto is_fused = [](const Node& node) { return TraitsOf(node.op).fused; };
    EXPECT_TRUE(fuse || std::none_of(nodes.begin(), nodes.end(), is_fused));
    for (const auto& [name, entry] : (*c)->layout->entries()) {
      if (entry.role != Role::kParameter) continue;
      std::vector<float> values(entry.bytes / 4);
      RandomStream random(Key(HashName(name)));
      for (float& v : values) v = random.Uniform(-0.1f, 0.1f);
      (*c)->Set(name, values);
    }
    (*c)->Set("lr_table", std::vector<float>{1e-3f});
    (*c)->Set("images", Ramp(static_cast<int64_t>((*c)->layout->Find("images")->bytes / sizeof(float))));
    (*c)->Set("labels", std::vector<int32_t>{1, 3});
    ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    losses[fuse] = (*c)->Get("output/loss")[0];
    parameters.push_back((*c)->Get("blocks.0.attn.qkv.weight"));
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-5);
  ASSERT_EQ(parameters[0].size(), parameters[1].size());
  for (size_t i = 0; i < parameters[0].size(); ++i) ASSERT_NEAR(parameters[0][i], parameters[1][i], 2.1e-3f) << i;
}

TEST_P(PlanOnDevice, BatchNormsGiveTheSameFusedUnfusedAndDecomposed) {
  for (const bool training : {true, false}) {
    const Graph graph = ResidualBlocksGraph(training);
    const Graph decomposed =
        Decompose(graph, [](const Graph&, const Node& node) { return !node.op.starts_with("batch_norm"); });
    std::map<std::string, std::vector<float>> expected;
    for (const Graph* variant : {&decomposed, &graph, &graph}) {
      PlanOptions plan;
      plan.fuse = variant == &graph && !expected.empty();
      const auto c = Compiled::Make(*variant, *test_, plan);
      ASSERT_TRUE(c.ok()) << c.status();
      for (const Node& node : graph.nodes()) {
        if (node.op != "input") continue;
        std::vector<float> values(static_cast<size_t>(node.outputs[0].elements()));
        RandomStream random(Key(HashName(node.name)));
        const bool positive = node.name.starts_with("variance") || node.name.starts_with("gamma");
        for (float& v : values) v = positive ? random.Uniform(0.5f, 1.5f) : random.Uniform(-1, 1);
        (*c)->Set(node.name, values);
      }
      ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
      for (const Node& node : graph.nodes()) {
        if (node.op != "output") continue;
        const std::vector<float> found = (*c)->Get("output/" + node.name);
        const auto [known, first] = expected.emplace(node.name, found);
        if (first) continue;
        for (size_t i = 0; i < found.size(); ++i)
          ASSERT_NEAR(found[i], known->second[i], 2e-5f) << node.name << " " << i << ", training " << training;
      }
    }
    EXPECT_GE(expected.size(), training ? 16u : 1u);
  }
}

// An overflow must not stay in what evaluation normalises with.
TEST_P(PlanOnDevice, RunningStatisticsTakeInWhatIsFinite) {
  Graph graph;
  nn::Context context(graph, /*training=*/true);
  const Value x = graph.Input("x", {DType::kF32, {4, 2}}, As(Role::kBatch));
  graph.Output("y", nn::BatchNorm(context, "bn", x));
  const auto c = Compiled::Make(graph, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  const int statistics = std::string(GetParam()) == "null" ? 2 : 0;  // null's kernels write over no operand
  EXPECT_EQ((*c)->plan->report().copies, 1 + statistics) << "the output; statistics are written where they lie";
  (*c)->Set("bn.weight", std::vector<float>{1, 1});
  (*c)->Set("bn.bias", std::vector<float>{0, 0});
  (*c)->Set("bn.running_mean", std::vector<float>{5, 5});
  (*c)->Set("bn.running_var", std::vector<float>{2, 2});
  (*c)->Set("x", std::vector<float>{1, INFINITY, 1, 2, 3, 2, 3, 2});
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  const std::vector<float> mean = (*c)->Get("bn.running_mean"), var = (*c)->Get("bn.running_var");
  EXPECT_NEAR(mean[0], 0.9 * 5 + 0.1 * 2, 1e-5);
  EXPECT_NEAR(var[0], 0.9 * 2 + 0.1 * 4 / 3, 1e-5);
  EXPECT_EQ(mean[1], 5);
  EXPECT_EQ(var[1], 2);
}

// On cpu: reference and null are made to be read, their kernels and queues allocate.
TEST(Plan, WarmRunsMakeNoAllocationOfOurs) {
  const auto opened = TestDevice::Open("cpu");
  if (!opened.ok()) GTEST_SKIP() << Message(opened.status());
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {8, 16}}, As(Role::kBatch));
  const Value gamma = g.Input("gamma", {DType::kF32, {16}}, As(Role::kParameter));
  g.Output("y", ops::Sum(ops::LayerNorm(ops::Softmax(x), gamma, gamma, 1e-6f)));
  const auto c = Compiled::Make(g, **opened);
  ASSERT_TRUE(c.ok()) << c.status();
  (*c)->Set("x", Ramp(128));
  (*c)->Set("gamma", Ramp(16));
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  int64_t allocations = 0;
  bool ok = true;
  {
    const AllocationCount count;
    for (int run = 0; run < 10; ++run) ok = ok && (*c)->instance->Run((*c)->stream).ok();
    allocations = count.value();
  }
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations, 0);
  EXPECT_TRUE((*opened)->device->Synchronize().ok());
}

TEST_P(PlanOnDevice, RunsSubmitWithoutWaiting) {
  const Graph graph = SmallProgram().value().Find("update")->graph;
  const auto c = Compiled::Make(graph, *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  const int64_t before = test_->device->host_waits();
  for (int run = 0; run < 3; ++run) ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  EXPECT_EQ(test_->device->host_waits(), before);
  EXPECT_TRUE(test_->device->Synchronize().ok());
}

TEST_P(PlanOnDevice, DebugNanNamesTheNodeAndTheSourceLine) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    SCOPED_TRACE(NameOf(dtype));
    Graph g;
    const Value x = ops::Cast(g.Input("x", {DType::kF32, {4}}, As(Role::kBatch)), dtype);
    Value y;
    {
      Graph::Scope scope(g, "head");
      y = ops::Unary(SY_PW_LOG, x);
    }
    ASSERT_EQ(y.dtype(), dtype);
    g.Output("y", ops::Sum(y));
    PlanOptions options;
    options.debug_nan = true;
    options.fuse = false;
    const auto c = Compiled::Make(g, *test_, options);
    ASSERT_TRUE(c.ok()) << c.status();
    const auto error = [&](const std::vector<float>& values) {
      (*c)->Set("x", values);
      return Message((*c)->instance->Run((*c)->stream));
    };
    EXPECT_EQ(error({1, 2, 65504, 3}), "") << "the largest number of f16";
    EXPECT_THAT(error({1, 2, -1, 3}),
                testing::AllOf(testing::HasSubstr("head.pointwise"), testing::HasSubstr("plan_test.cc"),
                               testing::HasSubstr("nan at element 2")));
    EXPECT_THAT(error({1, 0, 2, 3}), testing::HasSubstr("inf at element 1"));
  }
}

TEST(Plan, CountsNodesThatRunOnTheReferencePlugin) {
  const auto opened = TestDevice::Open("cpu");
  if (!opened.ok()) GTEST_SKIP() << Message(opened.status());
  // f64 is a dtype that only the reference plugin computes with.
  Graph g;
  const Value x = g.Input("x", {DType::kF64, {4, 4}}, As(Role::kBatch));
  g.Output("y", ops::Softmax(x));
  const auto c = Compiled::Make(g, **opened);
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_GE((*c)->plan->report().fallbacks.size(), 1u);
  (*c)->Set("x", std::vector<double>(16, 1.0));
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  std::vector<double> y(16);
  ASSERT_TRUE((*c)->memory->Download("output/y", y.data(), 128).ok());
  EXPECT_DOUBLE_EQ(y[5], 0.25);
  EXPECT_GT((*c)->instance->fallback_seconds(), 0);

  PlanOptions none;
  none.max_fallback = 0;
  const auto refused = Compiled::Make(g, **opened, none);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(Message(refused.status()).find("--max_fallback=0"), std::string::npos);
  EXPECT_NE(Message(refused.status()).find("softmax"), std::string::npos);
}

TEST(Plan, CountsTrafficOfAWorldThatIsNotThere) {
  const auto opened = TestDevice::Open("reference");
  ASSERT_TRUE(opened.ok()) << opened.status();
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {1024}}, As(Role::kBatch));
  g.Output("y", ops::Sum(ops::AllReduce(ops::Scale(x, 2), SY_SUM, 1)));
  PlanOptions options;
  options.group_sizes = {64};
  const auto c = Compiled::Make(g, **opened, options);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*c)->plan->report().collective_bytes, 4096u);
  EXPECT_DOUBLE_EQ((*c)->plan->report().wire_bytes, 2.0 * 63 / 64 * 4096);
}

TEST(Plan, CountsTheWindowsOfEachCommunicator) {
  const auto opened = TestDevice::Open("null");
  ASSERT_TRUE(opened.ok()) << opened.status();
  Graph g;
  g.Output("y", ops::AllReduce(g.Input("x", {DType::kF32, {1024}}, As(Role::kBatch)), SY_SUM, 1));
  const auto windows = [&](std::vector<int> group_sizes) -> uint64_t {
    PlanOptions options;
    options.group_sizes = std::move(group_sizes);
    const auto c = Compiled::Make(g, **opened, options);
    EXPECT_TRUE(c.ok()) << c.status();
    return c.ok() ? (*c)->plan->report().peer_memory_bytes : 0;
  };
  EXPECT_GT(windows({2, 2}), 0u);
  EXPECT_EQ(windows({2, 2, 1, 2}), windows({2, 1})) << "of all ranks: one for all of them";
  EXPECT_EQ(windows({4, 2, 1, 2}), windows({4, 4}) + 2 * windows({2, 1}));
  EXPECT_EQ(windows({1, 1}), 0u);
}

}  // namespace
}  // namespace switchyard
