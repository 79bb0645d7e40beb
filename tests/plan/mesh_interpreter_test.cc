// One process that plays many ranks: what it computes, and what it says of ranks that do not fit each other.
#include "core/parallel/mesh_interpreter.h"

#include "core/graph/gradients.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/data_parallel.h"
#include "gmock/gmock.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class PlayedRanks : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  static std::vector<float> Floats(const StatusOr<std::vector<char>>& bytes) {
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    std::vector<float> values(bytes->size() / sizeof(float));
    std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  std::unique_ptr<TestDevice> test_;
};

// Sums of 192 ones and zeros, which every type holds exactly.
TEST_F(PlayedRanks, AddGradientsOfSixtyFourRanksOnceAnUpdateOrEachMicroBatch) {
  const auto step = [](DType wire, BucketUse use) {
    Graph g;
    const Value x = g.Input("x", {DType::kF32, {5}}, {});
    const Value p = g.Input("p", {DType::kF32, {5}}, {Role::kParameter, {}, true});
    const std::vector<Value> gradients = Gradients(ops::Sum(ops::Mul(p, x)), {p});
    DataParallelOptions options;
    options.world = 64;
    options.group = kDataGroup;
    options.wire = wire;
    for (const ParameterGradient& pair : AddDataParallel(g, {{p, gradients[0]}}, options, use).gradients)
      g.Assign(p, ops::Sub(p, pair.gradient));
    return g;
  };
  const auto trained = [&](DType wire, bool once) {
    const Graph first = step(wire, {false, !once}), middle = step(wire, {once, !once}), last = step(wire, {once, true});
    MeshInterpreter ranks({.data = 64}, *test_->device);
    int round = 0;
    for (const Graph* graph : {&first, &middle, &last}) {
      for (int rank = 0; rank < 64; ++rank) {
        const std::vector<float> x(5, static_cast<float>((rank + round) % 3 != 0));
        ranks.Set(rank, "x", x.data(), x.size() * sizeof(float));
      }
      const Status ran = ranks.Run(std::vector<const Graph*>(64, graph));
      EXPECT_TRUE(ran.ok()) << Message(ran);
      ++round;
    }
    for (const int rank : {31, 63}) EXPECT_EQ(Floats(ranks.Get(rank, "p")), Floats(ranks.Get(0, "p")));
    EXPECT_EQ(ranks.Get(0, "nothing").status().code(), absl::StatusCode::kNotFound);
    return Floats(ranks.Get(0, "p"));
  };
  for (const DType wire : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool once : {true, false}) EXPECT_EQ(trained(wire, once), std::vector<float>(5, -128)) << once;
  }
}

TEST_F(PlayedRanks, ThatWaitForEachOtherAreNamed) {
  const auto receive_first = [](int peer) {
    Graph g;
    const Value x = g.Input("x", {DType::kF32, {2}}, {});
    g.Output("y", ops::Receive(g, x.type(), peer, kWorldGroup, "from_peer"));
    ops::Send(x, peer, kWorldGroup, "to_peer");
    return g;
  };
  const auto send_first = [](int peer) {
    Graph g;
    const Value x = g.Input("x", {DType::kF32, {2}}, {});
    ops::Send(x, peer, kWorldGroup, "to_peer");
    g.Output("y", ops::Receive(g, x.type(), peer, kWorldGroup, "from_peer"));
    return g;
  };
  const Graph zero = receive_first(1), one = receive_first(0), sends_to_one = send_first(1),
              sends_to_zero = send_first(0);
  MeshInterpreter ranks({.data = 2}, *test_->device);
  const Status stuck = ranks.Run({&zero, &one});
  EXPECT_THAT(Message(stuck), HasSubstr("rank 0 in from_peer, rank 1 in from_peer"));
  EXPECT_THAT(Message(ranks.Run({&sends_to_one, &sends_to_zero})), HasSubstr("rank 0 in to_peer, rank 1 in to_peer"));
  const Status meet = ranks.Run({&sends_to_one, &one});
  EXPECT_TRUE(meet.ok()) << Message(meet);
}

TEST_F(PlayedRanks, ThatDisagreeAreNamed) {
  const auto graph = [](bool sums) {
    Graph g;
    const Value x = g.Input("x", {DType::kF32, {2}}, {});
    g.Output("y", sums ? ops::AllReduce(x, SY_SUM, 1, kWorldGroup, "sum") : ops::Broadcast(x, 0, kWorldGroup, "root"));
    return g;
  };
  const Graph sum = graph(true), broadcast = graph(false);
  MeshInterpreter ranks({.data = 2}, *test_->device);
  EXPECT_THAT(Message(ranks.Run({&sum, &broadcast})), HasSubstr("rank 0 is at sum (all_reduce) instead"));
  EXPECT_THAT(Message(ranks.Run({&sum})), HasSubstr("1 graphs for 2 ranks"));
}

TEST(MeshGroups, HoldTheRanksThatDifferAlongOneAxis) {
  const Mesh mesh{.data = 2, .pipeline = 3, .tensor = 2};
  const auto groups = GroupsOf(mesh, 7);  // data 1, pipeline 0, tensor 1
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ((*groups)[kWorldGroup].ranks.size(), 12u);
  EXPECT_EQ((*groups)[kDataGroup].ranks, (std::vector<int>{1, 7}));
  EXPECT_EQ((*groups)[kPipelineGroup].ranks, (std::vector<int>{7, 9, 11}));
  EXPECT_EQ((*groups)[kTensorGroup].ranks, (std::vector<int>{6, 7}));
  EXPECT_FALSE(GroupsOf(mesh, 12).ok());
  EXPECT_FALSE(GroupsOf({.data = 0}, 0).ok());
}

}  // namespace
}  // namespace switchyard
