// Collectives and messages over the groups of a mesh: real ranks compute bit for bit what one process computes that
// plays them all. Values are integers, whose sums are exact in any order.
#include "core/graph/gradients.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/data_parallel.h"
#include "core/parallel/mesh_interpreter.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

Mesh MeshOf(int ranks) { return ranks % 2 == 0 ? Mesh{.data = ranks / 2, .tensor = 2} : Mesh{.data = ranks}; }

const TensorType& Rows() {
  static const TensorType type = {DType::kF32, {840, 3}};  // 840 is divided by 1 to 8
  return type;
}

std::vector<float> Contribution(int rank, int round) {
  std::vector<float> values(static_cast<size_t>(Rows().elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<int>(i) * (rank + 2) + 5 * round) % 19 - 9);
  return values;
}

// A collective reads what another has made, on groups of every kind, and computing goes on between.
Graph Chain(const Mesh& mesh) {
  const int ranks = mesh.size();
  Graph g;
  const Value x = g.Input("x", Rows(), {});
  const Value over_data = ops::AllReduce(x, SY_SUM, 1, kDataGroup, "over_data");
  const Value part = ops::ReduceScatter(over_data, SY_SUM, mesh.tensor, kTensorGroup, "part");
  const Value joined = ops::AllGather(part, mesh.tensor, kTensorGroup, "joined");
  const Value swapped = ops::AllToAll(ops::Add(joined, x), ranks, kWorldGroup, "swapped");
  const Value last = ops::Broadcast(swapped, ranks - 1, kWorldGroup, "last");
  const Value largest = ops::AllReduce(ops::Sub(last, x), SY_MAX, 1, kTensorGroup, "largest");
  g.Output("largest_of_pair", largest);
  g.Output("after_swap", swapped);
  g.Output("input", ops::Scale(x, 1));
  return g;
}

// What collectives read stays as it was until they have read it: states that are written later, parts of inputs.
Graph Careful(const Mesh& mesh) {
  const int ranks = mesh.size();
  Graph g;
  const Value x = g.Input("x", Rows(), {});
  const Value state = g.Input("state", Rows(), {Role::kState, {}, false});
  const Value gathered = ops::AllGather(state, ranks, kWorldGroup, "gathered");
  g.Assign(state, ops::Add(state, x));
  const Value half = ops::AllReduce(ops::Slice(x, 0, 0, Rows().shape[0] / 2), SY_SUM, 1, kWorldGroup, "half");
  g.Output("of_last", ops::Scale(ops::Slice(gathered, 0, (ranks - 1) * Rows().shape[0], Rows().shape[0]), 1));
  g.Output("untouched", ops::Scale(x, 1));
  g.Output("reduced", ops::Scale(ops::Concat({half, half}, 0), 1));
  g.Output("before", state);
  return g;
}

// Of two groups each waits for the other's, while a device still computes what the first is to add.
Graph Turns(const Mesh& mesh) {
  Graph g;
  Value late = g.Input("x", Rows(), {});
  for (int i = 0; i < 8; ++i) late = ops::Scale(late, 1);
  const Value parts = ops::ReduceScatter(late, SY_SUM, mesh.data, kDataGroup, "parts");
  const Value of_model = ops::AllReduce(parts, SY_SUM, 1, kTensorGroup, "of_model");
  const Value shares = ops::AllReduce(of_model, SY_SUM, 1, kDataGroup, "shares");
  g.Output("of_all", ops::AllGather(ops::AllReduce(shares, SY_MAX, 1, kTensorGroup, "of_models"), mesh.data, kDataGroup,
                                    "whole"));
  return g;
}

// A message goes round: rank 0 sends first and receives last.
Graph Ring(int rank, int ranks) {
  Graph g;
  const Value x = g.Input("x", Rows(), {});
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  if (rank == 0) ops::Send(x, next, kWorldGroup, "to_next");
  const Value sum = ops::Add(ops::Receive(g, Rows(), before, kWorldGroup, "from_before"), x);
  if (rank != 0) ops::Send(sum, next, kWorldGroup, "to_next");
  g.Output("sum", sum);
  return g;
}

// The gradient of p is x: buckets of several sizes, summed over the data group.
Graph Step(const Mesh& mesh) {
  Graph g;
  const Value x = g.Input("x", Rows(), {});
  std::vector<Value> parameters;
  Value loss;
  for (int i = 0; i < 4; ++i) {
    parameters.push_back(g.Input(fmt::format("p{}", i), Rows(), {Role::kParameter, {}, false}));
    const Value term = ops::Sum(ops::Mul(parameters.back(), ops::Scale(x, static_cast<float>(i + 1))));
    loss = loss ? ops::Add(loss, term) : term;
  }
  const std::vector<Value> gradients = Gradients(loss, parameters);
  std::vector<ParameterGradient> pairs;
  for (size_t i = 0; i < parameters.size(); ++i) pairs.push_back({parameters[i], gradients[i]});
  DataParallelOptions options;
  options.world = mesh.data;
  options.group = kDataGroup;
  options.bucket_bytes = 16000;
  const Buckets buckets = AddDataParallel(g, pairs, options);
  for (const ParameterGradient& pair : buckets.gradients)
    g.Assign(pair.parameter, ops::Sub(pair.parameter, pair.gradient));
  return g;
}

// Meshes of so many ranks with an axis each way, on nodes of two ranks, the last of which has one where they are odd.
std::vector<Mesh> MeshesOnNodes(int ranks) {
  std::vector<Mesh> meshes = {{.data = ranks}, {.pipeline = ranks}};
  if (ranks % 2 == 0) meshes.push_back({.data = ranks / 2, .pipeline = 2});
  if (ranks % 4 == 0) meshes.push_back({.data = ranks / 4, .pipeline = 2, .tensor = 2});
  for (Mesh& mesh : meshes) {
    for (int rank = 0; rank < ranks; ++rank) mesh.nodes.push_back(rank / 2);
  }
  return meshes;
}

// What rank `rank` does over each of its groups: sums of all, in shares and put together again, and an exchange.
Graph OverEveryGroup(const Mesh& mesh, int rank) {
  Graph g;
  const std::vector<Group> groups = *GroupsOf(mesh, rank);
  for (int index = 0; index < static_cast<int>(groups.size()); ++index) {
    const std::string& name = groups[static_cast<size_t>(index)].name;
    const auto size = static_cast<int>(groups[static_cast<size_t>(index)].ranks.size());
    const Value x = index == 0 ? g.Input("x", Rows(), {}) : g.FindInput("x");
    const Value sum = ops::AllReduce(x, SY_SUM, 1, index, name + "_sum");
    const Value share = ops::ReduceScatter(ops::Add(sum, x), SY_MAX, size, index, name + "_share");
    const Value whole = ops::AllGather(share, size, index, name + "_whole");
    const Value swapped = ops::AllToAll(ops::Sub(whole, x), size, index, name + "_swapped");
    g.Output("over_" + name, ops::Broadcast(swapped, size - 1, index, name + "_last"));
  }
  return g;
}

class OnMesh : public ::testing::Test {
 protected:
  World& world_ = SharedWorld();
  const Mesh mesh_ = MeshOf(world_.size());

  // Runs the graphs twice, on real ranks and on played ones; `names`: what both must hold in the end.
  void ExpectThePlayedRanksEqualTheRealOnes(const Mesh& mesh, const std::vector<Graph>& graphs,
                                            const GroupCommunicators& communicators,
                                            const std::vector<std::string>& names) {
    KernelCache kernels(*world_.device, {});
    Device& reference = world_.reference ? *world_.reference : *world_.device;
    KernelCache reference_kernels(reference, {});
    Layout layout(world_.device->info().alignment);
    const Graph& own = graphs[static_cast<size_t>(world_.rank())];
    const auto plan = Plan::Compile(own, kernels, &reference_kernels, layout, {});
    ASSERT_TRUE(plan.ok()) << Message(plan.status());
    const auto memory = Memory::Allocate(layout, *world_.device, nullptr);
    ASSERT_TRUE(memory.ok()) << Message(memory.status());
    const auto instance = Instance::Bind(**plan, **memory, communicators);
    ASSERT_TRUE(instance.ok()) << Message(instance.status());
    const auto stream = world_.device->NewStream();
    ASSERT_TRUE(stream.ok());
    MeshInterpreter interpreter(mesh, reference);
    std::vector<const Graph*> all;
    for (const Graph& graph : graphs) all.push_back(&graph);

    const auto bytes = static_cast<uint64_t>(Rows().bytes());
    for (int round = 0; round < 2; ++round) {
      const std::vector<float> x = Contribution(world_.rank(), round);
      ASSERT_TRUE((*memory)->Upload("x", x.data(), bytes).ok());
      const Status ran = (*instance)->Run(*stream);
      ASSERT_TRUE(ran.ok()) << Message(ran);
      ASSERT_TRUE(world_.Synchronize(*stream).ok());
      for (int rank = 0; rank < mesh.size(); ++rank)
        interpreter.Set(rank, "x", Contribution(rank, round).data(), bytes);
      const Status played = interpreter.Run(all);
      ASSERT_TRUE(played.ok()) << Message(played);
      for (const std::string& name : names) {
        std::vector<char> real(bytes);
        const bool is_output = layout.Find(name) == nullptr;
        ASSERT_TRUE((*memory)->Download(is_output ? "output/" + name : name, real.data(), bytes).ok()) << name;
        const auto expected = interpreter.Get(world_.rank(), name);
        ASSERT_TRUE(expected.ok()) << Message(expected.status());
        EXPECT_EQ(real, *expected) << name << " in round " << round;
      }
    }
  }
  StatusOr<GroupCommunicators> Communicators(const Mesh& mesh) {
    SY_ASSIGN_OR_RETURN(const auto groups, GroupsOf(mesh, world_.rank()));
    return world_.CommunicatorsOf(groups);
  }
};

TEST_F(OnMesh, CollectivesMessagesAndBucketsEqualThoseOfPlayedRanks) {
  const auto communicators = Communicators(mesh_);
  ASSERT_TRUE(communicators.ok()) << Message(communicators.status());
  const auto ranks = static_cast<size_t>(mesh_.size());
  ExpectThePlayedRanksEqualTheRealOnes(mesh_, std::vector<Graph>(ranks, Chain(mesh_)), *communicators,
                                       {"largest_of_pair", "after_swap", "input"});
  ExpectThePlayedRanksEqualTheRealOnes(mesh_, std::vector<Graph>(ranks, Turns(mesh_)), *communicators, {"of_all"});
  ExpectThePlayedRanksEqualTheRealOnes(mesh_, std::vector<Graph>(ranks, Step(mesh_)), *communicators,
                                       {"p0", "p1", "p2", "p3"});
  ExpectThePlayedRanksEqualTheRealOnes(mesh_, std::vector<Graph>(ranks, Careful(mesh_)), *communicators,
                                       {"state", "of_last", "untouched", "reduced", "before"});
  if (ranks == 1) return;
  std::vector<Graph> ring;
  for (int rank = 0; rank < mesh_.size(); ++rank) ring.push_back(Ring(rank, mesh_.size()));
  ExpectThePlayedRanksEqualTheRealOnes(mesh_, ring, *communicators, {"sum"});
}

TEST_F(OnMesh, EveryGroupOfEveryMeshEqualsThatOfPlayedRanks) {
  for (const Mesh& mesh : MeshesOnNodes(world_.size())) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", mesh.data, mesh.pipeline, mesh.tensor));
    const auto communicators = Communicators(mesh);
    ASSERT_TRUE(communicators.ok()) << Message(communicators.status());
    std::vector<Graph> graphs;
    for (int rank = 0; rank < mesh.size(); ++rank) graphs.push_back(OverEveryGroup(mesh, rank));
    ExpectThePlayedRanksEqualTheRealOnes(
        mesh, graphs, *communicators,
        {"over_world", "over_data", "over_pipeline", "over_tensor", "over_node", "over_across"});
  }
}

// As two trainers do that live in one world: each has groups of its own, and both work, in any order.
TEST_F(OnMesh, GroupsOfTwoTrainersDoNotClash) {
  const auto ranks = static_cast<size_t>(mesh_.size());
  const auto first = Communicators(mesh_), second = Communicators(mesh_);
  ASSERT_TRUE(first.ok()) << Message(first.status());
  ASSERT_TRUE(second.ok()) << Message(second.status());
  for (const auto* communicators : {&*second, &*first}) {
    ExpectThePlayedRanksEqualTheRealOnes(mesh_, std::vector<Graph>(ranks, Chain(mesh_)), *communicators,
                                         {"largest_of_pair", "after_swap", "input"});
  }
}

}  // namespace
}  // namespace switchyard
