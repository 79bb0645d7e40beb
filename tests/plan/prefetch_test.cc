// What is gathered for a computation comes ahead of it as far as a budget of bytes reaches, and is freed behind it.
#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/transfer.h"
#include "core/plan/launch_order.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

constexpr int64_t kWidth = 1024;  // elements of a layer's parameter
constexpr uint64_t kLayerBytes = kWidth * sizeof(float);

struct ChainOptions {
  int layers = 8, ranks = 1;
  bool cast = false;  // gathers halves, and cuts them out of what it gathers
  bool host = false;  // parameters lie in host memory
  bool gathers = true;
};

// x → tanh(x · p) for the parameter of each layer, of which every rank holds a part.
Graph GatheredChain(const ChainOptions& options) {
  Graph g;
  Value x = g.Input("x", {DType::kF32, {kWidth}}, {});
  for (int i = 0; i < options.layers; ++i) {
    Value shard = g.Input(fmt::format("p{}", i), {DType::kF32, {kWidth / options.ranks}},
                          {.role = Role::kParameter, .weight_decay = false, .host = options.host});
    if (options.host) shard = ops::Fetch(shard);
    if (options.cast) shard = ops::Cast(shard, DType::kBF16);
    Value whole =
        options.gathers ? ops::AllGather(shard, options.ranks, 1, fmt::format("gather{}", i)) : std::move(shard);
    if (options.cast) whole = ops::Reshape(ops::Slice(ops::Reshape(whole, {1, kWidth}), 0, 0, 1), {kWidth});
    x = ops::Unary(SY_PW_TANH, ops::Mul(x, options.cast ? ops::Cast(whole, DType::kF32) : whole));
  }
  g.Output("y", x);
  return g;
}

class Prefetch : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("null", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  uint64_t PeakBytes(const ChainOptions& chain, uint64_t budget) {
    Layout layout(64);
    PlanOptions options;
    options.fuse = false;  // a chain of products is one kernel, which reads all that is gathered
    options.prefetch_bytes = budget;
    const auto plan = Plan::Compile(GatheredChain(chain), *test_->kernels, nullptr, layout, options);
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    return layout.bytes(kActivationsArena);
  }
  std::unique_ptr<TestDevice> test_;
};

TEST_F(Prefetch, TheBudgetAndNotTheNumberOfLayersSaysHowMuchIsThereAtOnce) {
  for (const int ranks : {1, 4}) {
    const uint64_t one_by_one = PeakBytes({4, ranks}, 0);
    for (const int layers : {4, 16, 48}) EXPECT_EQ(PeakBytes({layers, ranks}, 0), one_by_one);
    for (const uint64_t ahead : {1, 2, 5}) {
      const uint64_t peak = PeakBytes({16, ranks}, ahead * kLayerBytes);
      EXPECT_EQ(peak, one_by_one + (ahead - 1) * kLayerBytes) << ranks << " ranks; what is read came ahead too";
      EXPECT_EQ(PeakBytes({48, ranks}, ahead * kLayerBytes), peak);
    }
  }
}

TEST_F(Prefetch, WhatIsBroughtFromTheHostComesByTheSameBudget) {
  const auto peak = [&](int layers, uint64_t ahead) {
    return PeakBytes({.layers = layers, .host = true, .gathers = false}, ahead * kLayerBytes);
  };
  const uint64_t one_by_one = peak(4, 0);
  for (const int layers : {4, 16, 48}) EXPECT_EQ(peak(layers, 0), one_by_one);
  for (const uint64_t ahead : {1, 2, 5}) {
    for (const int layers : {16, 48}) EXPECT_EQ(peak(layers, ahead), one_by_one + (ahead - 1) * kLayerBytes);
  }
}

// By gather: how many computing nodes lie between it and its reader.
std::vector<int> Distances(const Graph& g, const std::vector<int>& order) {
  std::vector<int> distances;
  for (size_t i = 0; i < order.size(); ++i) {
    if (g.node(order[i]).op != "all_gather") continue;
    int between = 0;
    std::vector<int> derived = {order[i]};
    for (size_t j = i + 1; j < order.size(); ++j) {
      const Node& node = g.node(order[j]);
      const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(), [&](Ref input) {
        return std::find(derived.begin(), derived.end(), input.node) != derived.end();
      });
      const bool computes = !IsStructural(node.op) && !IsCollective(node.op) && node.op != "slice";
      if (reads && computes) break;
      if (reads) derived.push_back(order[j]);
      between += computes;
    }
    distances.push_back(between);
  }
  return distances;
}

TEST_F(Prefetch, WithoutABudgetEachGatherIsRightBeforeItsReader) {
  for (const bool cast : {false, true}) {
    const Graph g = GatheredChain({.layers = 6, .ranks = 2, .cast = cast});
    for (const bool early : {true, false})
      EXPECT_EQ(Distances(g, LaunchOrder(g, early, 0)), std::vector<int>(6, 0)) << cast << early;
    const std::vector<int> ahead = Distances(g, LaunchOrder(g, true, 2 * kLayerBytes));
    EXPECT_GT(*std::min_element(ahead.begin() + 3, ahead.end()), 0) << "each comes a layer ahead";
  }
}

TEST_F(Prefetch, WhatIsBroughtToBeGatheredTakesNoneOfTheBudget) {
  const Graph here = GatheredChain({.layers = 8, .ranks = 2}),
              there = GatheredChain({.layers = 8, .ranks = 2, .host = true});
  for (const uint64_t ahead : {0, 1, 2, 3})
    EXPECT_EQ(Distances(there, LaunchOrder(there, true, ahead * kLayerBytes)),
              Distances(here, LaunchOrder(here, true, ahead * kLayerBytes)));
}

TEST_F(Prefetch, KeepsTheOrderOfGathersAndLeavesReductionsWhereTheyWere) {
  Graph g = GatheredChain({.layers = 6, .ranks = 2});
  const Value x = g.FindInput("x");
  g.Output("sum", ops::AllReduce(ops::Scale(x, 2), SY_SUM, 1, 1, "reduce"));
  std::vector<std::string> orders;
  for (const uint64_t budget : {uint64_t{0}, kLayerBytes, 3 * kLayerBytes, 100 * kLayerBytes}) {
    const std::vector<int> order = LaunchOrder(g, true, budget);
    ASSERT_EQ(order.size(), static_cast<size_t>(g.size()));
    std::string gathers;
    for (size_t i = 0; i < order.size(); ++i) {
      const Node& node = g.node(order[i]);
      if (node.op == "all_gather") gathers += node.name + " ";
      if (node.op == "all_reduce") {
        EXPECT_EQ(order[i - 1], node.inputs[0].node) << "right behind what it reduces";
      }
    }
    orders.push_back(gathers);
  }
  EXPECT_EQ(orders, std::vector<std::string>(4, "gather0 gather1 gather2 gather3 gather4 gather5 "));
}

TEST_F(Prefetch, AGatherThatStandsBehindANodeStaysThere) {
  Graph g = GatheredChain({.layers = 4, .ranks = 2});
  std::vector<int> computed, gathers;
  for (int id = 0; id < g.size(); ++id) {
    if (g.node(id).op == "pointwise") computed.push_back(id);
    if (g.node(id).op == "all_gather") gathers.push_back(id);
  }
  g.mutable_node(gathers.back()).control.push_back(computed[0]);
  const std::vector<int> order = LaunchOrder(g, true, 100 * kLayerBytes);
  const auto position = [&](int id) { return std::find(order.begin(), order.end(), id) - order.begin(); };
  EXPECT_LT(position(gathers[2]), position(computed[0]));
  EXPECT_LT(position(computed[0]), position(gathers[3]));
  EXPECT_LT(position(gathers[3]), position(computed[1]));
}

TEST_F(Prefetch, ComputesTheSame) {
  std::vector<std::vector<float>> results;
  for (const uint64_t budget : {uint64_t{0}, kLayerBytes, 3 * kLayerBytes, 100 * kLayerBytes}) {
    PlanOptions options;
    options.fuse = false;
    options.prefetch_bytes = budget;
    const auto c = Compiled::Make(GatheredChain({}), *test_, options);
    ASSERT_TRUE(c.ok()) << Message(c.status());
    std::vector<float> values(kWidth);
    const auto fill = [&](const std::string& name, int by) {
      for (int64_t i = 0; i < kWidth; ++i) values[static_cast<size_t>(i)] = 0.01f * static_cast<float>((i * by) % 97);
      (*c)->Set(name, values);
    };
    fill("x", 3);
    for (int i = 0; i < 8; ++i) fill(fmt::format("p{}", i), 5 + i);
    ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    results.push_back((*c)->Get("output/y"));
    EXPECT_GT(results.back()[1], 0);
    EXPECT_EQ(results.back(), results.front());
  }
}

}  // namespace
}  // namespace switchyard
