// Sums over nodes of equal and of unequal size are those of one all_reduce, for any length, and send between nodes what
// they should.
#include "core/parallel/hierarchical_all_reduce.h"

#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/parallel/mesh_interpreter.h"
#include "gtest/gtest.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using Nodes = std::vector<int>;

class HierarchicalSums : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  static Graph Sum(const Mesh& mesh, int rank, int64_t n) {
    const auto groups = GroupsOf(mesh, rank);
    EXPECT_TRUE(groups.ok()) << Message(groups.status());
    Nodes nodes;
    int own = 0;
    for (const int member : (*groups)[kDataGroup].ranks) {
      if (member == rank) own = static_cast<int>(nodes.size());
      nodes.push_back(mesh.nodes[static_cast<size_t>(member)]);
    }
    Graph graph;
    const Value x = graph.Input("x", {DType::kF32, {n}}, {});
    graph.Output("sum", HierarchicalAllReduce(x, nodes, own, "sum"));
    return graph;
  }
  // Rank r holds (r + 1)·(i + 1).
  void ExpectSums(const Mesh& mesh, int64_t n) {
    SCOPED_TRACE(fmt::format("{} elements", n));
    std::vector<Graph> graphs;
    std::vector<const Graph*> pointers;
    MeshInterpreter ranks(mesh, *test_->device);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      graphs.push_back(Sum(mesh, rank, n));
      std::vector<float> x(static_cast<size_t>(n));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((rank + 1) * (static_cast<int>(i) + 1));
      ranks.Set(rank, "x", x.data(), x.size() * sizeof(float));
    }
    for (const Graph& graph : graphs) pointers.push_back(&graph);
    const Status ran = ranks.Run(pointers);
    ASSERT_TRUE(ran.ok()) << Message(ran);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      int weights = 0;
      for (int other = rank % mesh.tensor; other < mesh.size(); other += mesh.tensor) weights += other + 1;
      const auto bytes = ranks.Get(rank, "sum");
      ASSERT_TRUE(bytes.ok()) << Message(bytes.status());
      ASSERT_EQ(bytes->size(), static_cast<size_t>(n) * sizeof(float));
      const auto* const sums = reinterpret_cast<const float*>(bytes->data());
      for (int i = 0; i < n; ++i) ASSERT_EQ(sums[i], static_cast<float>(weights * (i + 1))) << rank << " " << i;
    }
  }
  std::unique_ptr<TestDevice> test_;
};

TEST_F(HierarchicalSums, AreThoseOfAllRanks) {
  const std::vector<Nodes> layouts = {{0, 0, 1, 1}, {0, 1, 0, 1},    {0, 0, 0, 1, 1, 1}, {5, 5, 9},
                                      {0, 0, 0, 1}, {0, 1, 1, 1, 2}, {0, 1, 1, 0, 1},    {0, 0, 1, 1, 2, 2, 3, 3}};
  for (const Nodes& nodes : layouts) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(nodes, " ")));
    for (const int64_t n : {1, 2, 3, 4, 7, 64, 67})
      ExpectSums({.data = static_cast<int>(nodes.size()), .nodes = nodes}, n);
  }
}

// Ranks that share a model hold different parts of it: sums stay within data groups.
TEST_F(HierarchicalSums, StayWithinDataGroups) {
  ExpectSums({.data = 4, .tensor = 2, .nodes = {0, 0, 0, 0, 1, 1, 1, 1}}, 13);
  ExpectSums({.data = 3, .tensor = 2, .nodes = {0, 0, 0, 1, 1, 1}}, 13);  // one has two ranks on node 0, the other one
}

TEST_F(HierarchicalSums, SendOneShareBetweenNodes) {
  const Mesh mesh{.data = 4, .nodes = {0, 0, 1, 1}};
  for (const int rank : {0, 3}) {
    const Graph graph = Sum(mesh, rank, 1000);
    int64_t within = 0, across = 0;
    for (const Node& node : graph.nodes()) {
      if (!IsCollective(node.op)) continue;
      const int group = node.attributes.as<sy_collective_attributes>().group;
      (group == kAcrossGroup ? across : within) += graph.type(node.inputs[0]).elements();
    }
    EXPECT_EQ(across, 500);
    EXPECT_EQ(within, 1500);  // of a reduce_scatter and of an all_gather
  }
}

TEST(HasHierarchy, WhereThereAreNodesOfSeveralRanks) {
  EXPECT_TRUE(HasHierarchy({0, 0, 1}));
  EXPECT_FALSE(HasHierarchy({0, 0, 0}));
  EXPECT_FALSE(HasHierarchy({0, 1, 2}));
  EXPECT_FALSE(HasHierarchy({}));
}

}  // namespace
}  // namespace switchyard
