// Batch norms over the samples of all ranks: ranks with unequal numbers of samples compute what one rank computes on
// all of them, results, gradients and running statistics.
#include <cmath>

#include "core/base/random.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/convolution.h"
#include "core/parallel/mesh_interpreter.h"
#include "core/parallel/passes.h"
#include "gtest/gtest.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

constexpr int64_t kExtent = 3, kChannels = 5, kPixels = kExtent * kExtent * kChannels;  // of a sample

// The pixels of samples first, first + 1, …, around `centre` and the sample's number.
std::vector<float> Samples(const std::string& name, int64_t first, int64_t count, float centre) {
  std::vector<float> values;
  for (int64_t sample = first; sample < first + count; ++sample) {
    RandomStream random(Key(HashName(name), static_cast<uint64_t>(sample)));
    for (int64_t i = 0; i < kPixels; ++i) values.push_back(centre + static_cast<float>(sample) + random.Uniform(-1, 1));
  }
  return values;
}

// The plan of a rank of `ranks`: loss Σ dy·bn(x), whose gradients are outputs.
Graph PlanOf(int64_t samples, int ranks, bool sync) {
  Program program;
  NamedGraph& plan = program.plans.emplace_back(NamedGraph{"update", {}, {false, true}, true, {}, {}});
  nn::Context context(plan.graph, true, 42);
  const TensorType images = {DType::kF32, {samples, kExtent, kExtent, kChannels}};
  const Value x = plan.graph.Input("x", images, {Role::kParameter, {}, false}), dy = plan.graph.Input("dy", images, {});
  const Value y = nn::BatchNorm(context, "bn", x);
  plan.graph.Output("y", y);
  plan.graph.Output("loss", ops::Sum(ops::Mul(y, dy)));
  ProgramOptions options;
  options.mesh.data = ranks;
  options.sync_batchnorm = sync;
  GradientsPass().apply(program, options);
  SyncBatchNormPass().apply(program, options);
  for (const GradientOf& pair : plan.gradients) {
    const std::string name = plan.graph.node(pair.parameter.node).name;
    plan.graph.Output("d_" + name, ops::Scale(plan.graph.value(pair.gradient), static_cast<float>(ranks)));
  }
  return std::move(plan.graph);
}

class SyncBatchNorm : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  void Give(MeshInterpreter& ranks, int rank, int64_t first, int64_t samples) {
    const auto set = [&](const std::string& name, const std::vector<float>& values) {
      ranks.Set(rank, name, values.data(), values.size() * sizeof(float));
    };
    // Far from zero, so that a variance taken as the mean of squares less the square of the mean would show.
    set("x", Samples("x", first, samples, 100));
    set("dy", Samples("dy", first, samples, -3));
    set("bn.weight", {1, 0.5f, -2, 1.5f, 0.1f});
    set("bn.bias", {0, 1, 2, 3, 4});
    set("bn.running_mean", {1, 2, 3, 4, 5});
    set("bn.running_var", {5, 4, 3, 2, 1});
  }
  static std::vector<float> Floats(const StatusOr<std::vector<char>>& bytes) {
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    if (!bytes.ok()) return {};
    std::vector<float> values(bytes->size() / sizeof(float));
    std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  std::unique_ptr<TestDevice> test_;
};

double Distance(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    difference += std::pow(double{found[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(SyncBatchNorm, OnUnequalRanksIsBatchNormOfAllSamples) {
  const std::vector<int64_t> counts = {1, 4, 2};
  const int ranks = static_cast<int>(counts.size());
  MeshInterpreter one({}, *test_->device), many({.data = ranks}, *test_->device);
  const Graph whole = PlanOf(7, 1, true);
  Give(one, 0, 0, 7);
  const Status alone = one.Run({&whole});
  ASSERT_TRUE(alone.ok()) << Message(alone);

  std::vector<Graph> graphs;
  std::vector<const Graph*> pointers;
  int64_t first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    graphs.push_back(PlanOf(counts[static_cast<size_t>(rank)], ranks, true));
    Give(many, rank, first, counts[static_cast<size_t>(rank)]);
    first += counts[static_cast<size_t>(rank)];
  }
  for (const Graph& graph : graphs) pointers.push_back(&graph);
  const Status ran = many.Run(pointers);
  ASSERT_TRUE(ran.ok()) << Message(ran);

  constexpr double kTolerance = 2e-5;  // values near 100 in f32, whose deviation is 2
  for (const std::string name : {"y", "d_x"}) {
    std::vector<float> joined;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> part = Floats(many.Get(rank, name));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_LE(Distance(joined, Floats(one.Get(0, name))), kTolerance) << name;
  }
  // Those of weight and bias are parts of a sum, which "buckets" takes.
  for (const std::string name : {"d_bn.weight", "d_bn.bias"}) {
    std::vector<float> sum(kChannels);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> part = Floats(many.Get(rank, name));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    EXPECT_LE(Distance(sum, Floats(one.Get(0, name))), kTolerance) << name;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (const std::string name : {"bn.running_mean", "bn.running_var"})
      EXPECT_LE(Distance(Floats(many.Get(rank, name)), Floats(one.Get(0, name))), kTolerance) << name;
  }
}

TEST_F(SyncBatchNorm, IsLeftAloneWhereItIsNotAskedFor) {
  const auto count = [](const Graph& graph, const char* op) {
    int found = 0;
    for (const Node& node : graph.nodes()) found += node.op == op;
    return found;
  };
  EXPECT_EQ(count(PlanOf(2, 3, false), "batch_norm"), 1);
  EXPECT_EQ(count(PlanOf(2, 1, true), "batch_norm"), 1);
  const Graph synced = PlanOf(2, 3, true);
  EXPECT_EQ(count(synced, "batch_norm"), 0);
  EXPECT_EQ(count(synced, "all_gather"), 1);
  EXPECT_EQ(count(synced, "all_reduce"), 1);
}

}  // namespace
}  // namespace switchyard
