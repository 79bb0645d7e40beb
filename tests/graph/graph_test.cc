#include "core/graph/graph.h"

#include <set>
#include <span>

#include "core/graph/op.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/random.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BuilderTest : public ::testing::Test {
 protected:
  Value F32(const Shape& shape) { return graph_.Input("x" + std::to_string(graph_.size()), {DType::kF32, shape}, {}); }
  Value I32(const Shape& shape) { return graph_.Input("i" + std::to_string(graph_.size()), {DType::kI32, shape}, {}); }
  Graph graph_;
};

TEST_F(BuilderTest, AnErrorNamesTheOpTheShapesAndTheLine) {
  const Value a = F32({2, 3}), b = F32({4, 5});
  const int line = __LINE__ + 1;
  const std::string text = ErrorOf([&] { ops::Matmul(a, b); });
  EXPECT_THAT(text, AllOf(HasSubstr("matmul"), HasSubstr("inner extents differ"), HasSubstr("f32(2, 3)"),
                          HasSubstr("f32(4, 5)"), HasSubstr("graph_test.cc:" + std::to_string(line))));
}

TEST_F(BuilderTest, ShapesFollowTheRulesOfTheOps) {
  EXPECT_EQ(ops::Matmul(F32({2, 3, 4}), F32({2, 4, 5})).shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(ops::Linear(F32({2, 3, 4}), F32({7, 4}), F32({7})).shape(), (Shape{2, 3, 7}));
  EXPECT_EQ(ops::Attention(F32({2, 5, 3, 4, 8})).shape(), (Shape{2, 5, 4, 8}));
  EXPECT_EQ(ops::LayerNorm(F32({2, 5, 8}), F32({8}), F32({8}), 1e-6f).shape(), (Shape{2, 5, 8}));
  EXPECT_EQ(ops::GroupNorm(F32({2, 5, 8}), F32({8}), F32({8}), 4, 1e-5f).shape(), (Shape{2, 5, 8}));
  EXPECT_EQ(ops::Add(F32({2, 1, 3}), F32({4, 1})).shape(), (Shape{2, 4, 3}));
  EXPECT_EQ(ops::Reduce(F32({2, 3, 4}), SY_REDUCE_SUM, 0b101).shape(), (Shape{3}));
  EXPECT_EQ(ops::Reduce(F32({2, 3, 4}), SY_REDUCE_SUM, 0b101, 1, true).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(ops::Sum(F32({2, 3})).shape(), (Shape{1}));
  EXPECT_EQ(ops::Mean(F32({})).shape(), (Shape{1}));
  EXPECT_EQ(ops::Reshape(F32({2, 6}), {3, -1}).shape(), (Shape{3, 4}));
  EXPECT_EQ(ops::Transpose(F32({2, 3, 4}), {2, 0, 1}).shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(ops::Slice(F32({2, 9}), 1, 1, 4, 2).shape(), (Shape{2, 4}));
  EXPECT_EQ(ops::Pad(F32({2, 3}), {1, 0}, {0, 2}).shape(), (Shape{3, 5}));
  EXPECT_EQ(ops::Concat({F32({2, 3}), F32({2, 4})}, -1).shape(), (Shape{2, 7}));
  EXPECT_EQ(ops::Gather(F32({10, 4}), I32({2, 3})).shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(ops::CrossEntropy(F32({6, 10}), I32({6})).shape(), (Shape{6}));
  EXPECT_EQ(ops::Convolution(F32({2, 9, 9, 3}), F32({8, 3, 3, 3}), {}, {.stride = 2, .padding = 1}).shape(),
            (Shape{2, 5, 5, 8}));
}

TEST_F(BuilderTest, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(ErrorOf([&] { ops::Linear(F32({2, 3}), F32({7, 4}), {}); }), HasSubstr("linear"));
  EXPECT_THAT(ErrorOf([&] { ops::Attention(F32({2, 5, 4, 8})); }), HasSubstr("qkv must be"));
  EXPECT_THAT(ErrorOf([&] { ops::LayerNorm(F32({2, 8}), F32({7}), F32({8}), 1e-6f); }), HasSubstr("layer_norm"));
  EXPECT_THAT(ErrorOf([&] { ops::Add(F32({2, 3}), F32({4, 3})); }), HasSubstr("do not broadcast"));
  EXPECT_THAT(ErrorOf([&] { ops::Reshape(F32({2, 6}), {5, -1}); }), HasSubstr("another number of elements"));
  EXPECT_THAT(ErrorOf([&] { ops::Transpose(F32({2, 3}), {0, 0}); }), HasSubstr("no permutation"));
  EXPECT_THAT(ErrorOf([&] { ops::Slice(F32({2, 6}), 1, 3, 4); }), HasSubstr("leaves the tensor"));
  EXPECT_THAT(ErrorOf([&] { ops::Concat({F32({2, 3}), F32({3, 3})}, 1); }), HasSubstr("differ outside axis 1"));
  EXPECT_THAT(ErrorOf([&] { ops::Gather(F32({10, 4}), F32({2})); }), HasSubstr("i32"));
  EXPECT_THAT(ErrorOf([&] { ops::CrossEntropy(F32({6, 10}), I32({5})); }), HasSubstr("cross_entropy"));
  EXPECT_THAT(ErrorOf([&] { ops::Dropout(F32({4, 2}), I32({4}), I32({2}), 1.0f, 7); }), HasSubstr("[0, 1)"));
  EXPECT_THAT(ErrorOf([&] { graph_.Assign(F32({2}), F32({3})); }), HasSubstr("differ in type"));
  const Value x = F32({2});
  EXPECT_THAT(ErrorOf([&] { graph_.Assign(ops::Add(x, x), x); }), HasSubstr("not a named input"));
  Graph other;
  const Value foreign = other.Input("foreign", {DType::kF32, {2}}, {});
  EXPECT_THAT(ErrorOf([&] { ops::Add(x, foreign); }), HasSubstr("another graph"));
  EXPECT_THAT(ErrorOf([&] { graph_.Input("x0", {DType::kF32, {2}}, {}); }), HasSubstr("the name x0 is taken"));
}

TEST(GraphTest, ScopesJoinWithDotsAndEndWithTheirBlock) {
  Graph graph;
  const auto input = [&](const char* name) {
    return graph.node(graph.Input(name, {DType::kF32, {1}}, {}).ref().node).name;
  };
  {
    const Graph::Scope blocks(graph, "blocks.0");
    const Graph::Scope attention(graph, "attn");
    EXPECT_EQ(input("weight"), "blocks.0.attn.weight");
    {
      const Graph::Scope root(graph);
      EXPECT_EQ(input("step"), "step");
    }
    EXPECT_EQ(input("bias"), "blocks.0.attn.bias");
  }
  EXPECT_EQ(input("head"), "head");
}

TEST(GraphTest, NamesAreUniqueAndTheSameInEveryBuild) {
  const Graph graph = TrainingGraph({.name = "vit_micro"}, 4);
  std::set<std::string> names;
  for (const Node& node : graph.nodes()) EXPECT_TRUE(names.insert(node.name).second) << node.name;
  EXPECT_EQ(graph.ToText(), TrainingGraph({.name = "vit_micro"}, 4).ToText());
  // The batch enters shapes, never names.
  const Graph larger = TrainingGraph({.name = "vit_micro"}, 8);
  for (int id = 0; id < graph.size(); ++id) ASSERT_EQ(graph.node(id).name, larger.node(id).name);
}

TEST(GraphTest, NamesAreFoundInCopiesAndWhereNodesWereTakenOut) {
  Graph graph;
  std::vector<bool> kept;
  const auto name = [](int i) { return fmt::format("input.{}", i); };
  for (int i = 0; i < 100; ++i) {
    graph.Input(name(i), {DType::kF32, {2}}, {});
    kept.push_back(i % 3 == 0);
  }
  Graph copy = graph;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(copy.FindInput(name(i)).ref(), (Ref{i, 0}));
  const Value x = copy.FindInput(name(0));
  const Attributes attributes = copy.node(ops::Unary(SY_PW_EXP, x).ref().node).attributes;
  const auto add = [&](const std::string& wanted) {
    const Value added = copy.Add("pointwise", {x}, attributes, {}, Graph::Location::current(), wanted)[0];
    return copy.node(added.ref().node).name;
  };
  EXPECT_EQ(add("input.7"), "input.7_1");
  EXPECT_EQ(add("input.7"), "input.7_2");
  EXPECT_EQ(graph.Find("input.7_1"), -1) << "it is the copy's";
  graph.Keep(kept);
  ASSERT_EQ(graph.size(), 34);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(graph.Find(name(i)), i % 3 == 0 ? i / 3 : -1) << name(i);
}

TEST(GraphTest, WhatIsTakenOutLeavesIdsThatFit) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2}}, {});
  ops::Unary(SY_PW_LOG, x);
  const Value first = ops::Unary(SY_PW_EXP, x), y = graph.Input("y", {DType::kF32, {2}}, {});
  const Value second = ops::Add(first, y);
  Node& node = graph.mutable_node(second.ref().node);
  node.control = {first.ref().node};
  node.forward = first.ref().node;
  Verify(graph, "this test");
  graph.Keep({true, false, true, true, true});
  EXPECT_FALSE(graph.verified());
  Verify(graph, "this test");
  ASSERT_EQ(graph.size(), 4);
  EXPECT_EQ(graph.node(1).name, "y") << "inputs come first";
  const Node& sum = graph.node(3);
  EXPECT_EQ(sum.inputs, (std::vector<Ref>{{2, 0}, {1, 0}}));
  EXPECT_EQ(sum.control, std::vector<int>{2});
  EXPECT_EQ(sum.forward, 2);
}

TEST(GraphTest, EveryInputComesBeforeItsUse) {
  const Graph graph = TrainingGraph({.name = "vit_micro"}, 4);
  for (int id = 0; id < graph.size(); ++id) {
    for (const Ref& input : graph.node(id).inputs) ASSERT_LT(input.node, id) << graph.node(id).name;
  }
}

TEST(GraphTest, UsersListsEveryReaderOncePerRead) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2}}, {});
  const Value y = ops::Mul(x, x);
  graph.Output("y", y);
  const auto users = graph.Users();
  const auto of = [&](const Value& value) {
    const std::span<const int> ids = users[value.ref().node];
    return std::vector<int>(ids.begin(), ids.end());
  };
  EXPECT_EQ(of(x), (std::vector<int>{y.ref().node, y.ref().node}));
  EXPECT_EQ(of(y), (std::vector<int>{graph.size() - 1}));
}

double Flops(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes()) flops += CostOf(graph, node).flops;
  return flops;
}

TEST(CostTest, AStepOfSwinTinyTakesThreeTimesThePublishedForwardPass) {
  const double forward = 2 * 4.5e9;  // Liu et al. 2021, table 1: 4.5 G multiply-adds
  EXPECT_NEAR(Flops(ForwardGraph({.name = "swin_tiny"}, 1)), forward, 0.01 * forward);
  EXPECT_NEAR(Flops(TrainingGraph({.name = "swin_tiny"}, 8)) / 8, 3 * forward, 0.01 * 3 * forward);
}

TEST(CostTest, AForwardPassOfViTBaseTakes35GigaflopsPerImage) {
  EXPECT_NEAR(Flops(ForwardGraph({.name = "vit_base"}, 1)), 35.1e9, 0.351e9);
  EXPECT_NEAR(Flops(ForwardGraph({.name = "vit_base"}, 3)), 3 * 35.1e9, 3 * 0.351e9);
}

TEST(CostTest, ATrainingStepTakesThreeForwardPasses) {
  const double forward = Flops(ForwardGraph({.name = "vit_small"}, 8));
  EXPECT_NEAR(Flops(TrainingGraph({.name = "vit_small"}, 8)) / forward, 3, 0.1);
}

TEST(CostTest, BytesCountEachTensorOnce) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4, 8}}, {}), w = graph.Input("w", {DType::kBF16, {2, 8}}, {});
  const Value y = ops::Linear(x, w, {});
  const Cost cost = CostOf(graph, graph.node(y.ref().node));
  EXPECT_EQ(cost.flops, 2 * 4 * 8 * 2);
  EXPECT_EQ(cost.bytes, 4 * (4 * 8) + 2 * (2 * 8) + 4 * (4 * 2));
}

// Of a large table a few rows are read, and of a large tensor a part.
TEST(CostTest, OfATableAndATensorOnlyThePartCounts) {
  Graph graph;
  const Value table = graph.Input("table", {DType::kF32, {1000, 4}}, {});
  const Value rows = graph.Input("rows", {DType::kI32, {2}}, {});
  const Value read = ops::Gather(table, rows), part = ops::Slice(table, 0, 10, 3);
  EXPECT_EQ(CostOf(graph, graph.node(read.ref().node)).bytes, 2 * (2 * 4 * 4) + 2 * 4);
  EXPECT_EQ(CostOf(graph, graph.node(part.ref().node)).bytes, 2 * (3 * 4 * 4));
}

TEST(GraphTest, ASliceWithAStepIsNoWholeAxis) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4}}, {});
  EXPECT_EQ(ops::Slice(x, 0, 0, 4).ref(), x.ref());
  EXPECT_THAT(ErrorOf([&] { ops::Slice(x, 0, 0, 4, 2); }), testing::HasSubstr("leaves the tensor"));
}

}  // namespace
}  // namespace switchyard
