// Gradients that are integers have exact sums in any order, so that everything that data parallelism does to them can
// be checked bit for bit: any bucket size gives the sum over the ranks, node by node or at once, and accumulation with
// one round equals syncing every micro-step.
#include <algorithm>

#include "core/graph/gradients.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/data_parallel.h"
#include "core/parallel/hierarchical_all_reduce.h"
#include "core/parallel/mesh.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

const std::vector<int64_t> kSizes = {1, 63, 64, 65, 1000, 4097, 7, 64};
constexpr int64_t kMicroSteps = 3;
// p2 and p7 are added to each other, so that one value is the gradient of both.
constexpr size_t kTwin = 2, kTwinOf = 7;
constexpr int64_t InputOf(size_t p) { return static_cast<int64_t>(p == kTwinOf ? kTwin : p); }
using Share = DataParallelOptions::Share;

// What gradients are: of type `dtype`, and integers of at most `most`.
struct Integers {
  DType dtype = DType::kF32;
  int64_t most = 0;  // 0: small enough for any sum to be exact in f32

  // What `rank` contributes to element i of parameter p in micro-step a.
  float Contribution(int rank, int64_t a, int64_t p, int64_t i) const {
    if (most == 0) return static_cast<float>((rank + 1) * (i % 101 - 50) + 7 * p - 3 * a * (rank + 2));
    return static_cast<float>((7 * i + 13 * rank + 29 * a + 5 * p) % (2 * most + 1) - most);
  }
};

// loss = Σ p·x, and Σ (p2 + p7)·x2: the gradient of p is the batch input x. SGD at rate 1 from zero leaves −Σ x.
Graph IntegerStep(DataParallelOptions options, BucketUse use, DType dtype) {
  Graph graph;
  std::vector<Value> parameters;
  for (size_t p = 0; p < kSizes.size(); ++p)
    parameters.push_back(graph.Input(fmt::format("p{}", p), {DType::kF32, {kSizes[p]}}, {Role::kParameter, {}, false}));
  Value loss;
  for (size_t p = 0; p < kSizes.size(); ++p) {
    if (p == kTwinOf) continue;
    const TensorType type = {DType::kF32, {kSizes[p]}};
    const Value parameter = p == kTwin ? ops::Add(parameters[p], parameters[kTwinOf]) : parameters[p];
    const Value x = graph.Input(fmt::format("x{}", p), type, {Role::kBatch, {}, false});
    const Value product = dtype == DType::kF32
                              ? ops::Mul(parameter, x)
                              : ops::Cast(ops::Mul(ops::Cast(parameter, dtype), ops::Cast(x, dtype)), DType::kF32);
    const Value term = ops::Sum(product);
    loss = loss ? ops::Add(loss, term) : term;
  }
  const std::vector<Value> gradients = Gradients(loss, parameters);
  std::vector<ParameterGradient> pairs;
  for (size_t p = 0; p < kSizes.size(); ++p) pairs.push_back({parameters[p], gradients[p]});
  options.world = SharedWorld().size();
  options.rank = SharedWorld().rank();
  options.group = kDataGroup;
  if (options.world == 1) options.share = Share::kNothing;
  const Buckets buckets = AddDataParallel(graph, pairs, options, use);
  OptimizerOptions sgd;
  sgd.kind = SY_OPTIMIZER_SGD;
  if (!use.reduces) return graph;
  if (options.share == Share::kNothing) {
    AddOptimizer(graph, buckets.gradients, ops::SquaredNorm(buckets.flat), sgd, 1);
  } else {
    std::vector<Value> sums = buckets.flat;
    if (options.share == Share::kSums) {
      for (const SharedBucket& bucket : buckets.shared) sums.push_back(graph.value(bucket.sums));
    }
    AddOptimizer(graph, pairs, ops::SquaredNorm(sums), sgd, 1, {},
                 {options.world, PartOfRank(options.nodes, options.rank), options.group,
                  GathersOfParts(options.nodes, options.rank, options.world), buckets.shared});
  }
  return graph;
}

// Plans for the places in a round, over one memory.
class Round {
 public:
  Status Make(const DataParallelOptions& options, const std::vector<BucketUse>& uses, bool overlap = true,
              Integers integers = {}, const GroupCommunicators& groups = SharedWorld().communicator.get()) {
    World& world = SharedWorld();
    integers_ = integers;
    kernels_ = std::make_unique<KernelCache>(*world.device, KernelOptions{});
    if (world.reference) reference_ = std::make_unique<KernelCache>(*world.reference, KernelOptions{});
    layout_ = std::make_unique<Layout>(world.device->info().alignment);
    for (const BucketUse use : uses) {
      SY_ASSIGN_OR_RETURN(auto plan, Plan::Compile(IntegerStep(options, use, integers.dtype), *kernels_,
                                                   reference_.get(), *layout_, {.overlap = overlap}));
      plans_.push_back(std::move(plan));
    }
    SY_ASSIGN_OR_RETURN(memory_, Memory::Allocate(*layout_, *world.device, world.communicator.get()));
    for (const auto& plan : plans_) {
      SY_ASSIGN_OR_RETURN(auto instance, Instance::Bind(*plan, *memory_, groups));
      instances_.push_back(std::move(instance));
    }
    SY_ASSIGN_OR_RETURN(stream_, world.device->NewStream());
    const float rate = 1;
    return memory_->Upload("lr_table", &rate, sizeof rate);
  }
  // Micro-step a of this rank, through the plan-th plan.
  Status Run(size_t plan, int64_t a) {
    for (size_t p = 0; p < kSizes.size(); ++p) {
      if (p == kTwinOf) continue;
      std::vector<float> x(static_cast<size_t>(kSizes[p]));
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = integers_.Contribution(SharedWorld().rank(), a, static_cast<int64_t>(p), static_cast<int64_t>(i));
      SY_RETURN_IF_ERROR(memory_->Upload(fmt::format("x{}", p), x.data(), x.size() * sizeof(float)));
    }
    SY_RETURN_IF_ERROR(instances_[plan]->Run(stream_));
    return SharedWorld().device->Synchronize(stream_);
  }
  std::vector<float> Parameter(size_t p) const {
    std::vector<float> values(static_cast<size_t>(kSizes[p]));
    EXPECT_TRUE(memory_->Download(fmt::format("p{}", p), values.data(), values.size() * sizeof(float)).ok());
    return values;
  }
  const PlanReport& report(size_t plan) const { return plans_[plan]->report(); }
  const Integers& integers() const { return integers_; }

 private:
  Integers integers_;
  std::unique_ptr<KernelCache> kernels_, reference_;
  std::unique_ptr<Layout> layout_;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::unique_ptr<Memory> memory_;
  std::vector<std::unique_ptr<Instance>> instances_;
  Stream stream_;
};

// −Σ over ranks and the first `micro_steps` micro-steps, times `factor`.
void ExpectExactSums(const Round& round, int64_t micro_steps, float factor = 1) {
  for (size_t p = 0; p < kSizes.size(); ++p) {
    const std::vector<float> found = round.Parameter(p);
    for (size_t i = 0; i < found.size(); ++i) {
      float sum = 0;
      for (int rank = 0; rank < SharedWorld().size(); ++rank) {
        for (int64_t a = 0; a < micro_steps; ++a)
          sum += round.integers().Contribution(rank, a, InputOf(p), static_cast<int64_t>(i));
      }
      ASSERT_EQ(found[i], -sum * factor) << "p" << p << "[" << i << "]";
    }
  }
}

// What is sent in f16 has sums up to 2^11, so that it holds every part of them, in whatever order a collective adds.
Integers SentAs(DType wire) {
  return {DType::kF32, wire == DType::kF16 ? 2048 / (SharedWorld().size() * kMicroSteps) : 0};
}

class BucketSize : public ::testing::TestWithParam<uint64_t> {};

TEST_P(BucketSize, DoesNotChangeASum) {
  Round round;
  const Status made = round.Make({.bucket_bytes = GetParam()}, {BucketUse{}});
  ASSERT_TRUE(made.ok()) << Message(made);
  const Status ran = round.Run(0, 0);
  ASSERT_TRUE(ran.ok()) << Message(ran);
  ExpectExactSums(round, 1);
  const int buckets = round.report(0).collectives;
  if (SharedWorld().size() == 1) {
    EXPECT_EQ(buckets, 0);
  } else if (GetParam() == 4) {
    EXPECT_EQ(buckets, static_cast<int>(kSizes.size())) << "a bucket for each parameter";
  } else if (GetParam() > 100000) {
    EXPECT_EQ(buckets, 1);
  } else {
    EXPECT_GT(buckets, 1);
  }
}

TEST_P(BucketSize, AndOverlapDoNotChangeABit) {
  for (const auto& [wire, overlap] :
       {std::pair{DType::kF32, true}, {DType::kF32, false}, {DType::kF16, true}, {DType::kF16, false}}) {
    SCOPED_TRACE(fmt::format("{}, overlap {}", NameOf(wire), overlap));
    Round round;
    const Status made = round.Make({.bucket_bytes = GetParam(), .wire = wire}, {BucketUse{}}, overlap, SentAs(wire));
    ASSERT_TRUE(made.ok()) << Message(made);
    for (int64_t a = 0; a < kMicroSteps; ++a) {
      const Status ran = round.Run(0, a);
      ASSERT_TRUE(ran.ok()) << Message(ran);
    }
    ExpectExactSums(round, kMicroSteps);
  }
}

TEST_P(BucketSize, AccumulationWithOneRoundEqualsSyncingEveryMicroStep) {
  Round once, always;
  Status status = once.Make({.bucket_bytes = GetParam()}, {{false, false}, {true, false}, {true, true}});
  ASSERT_TRUE(status.ok()) << Message(status);
  status = always.Make({.bucket_bytes = GetParam()}, {BucketUse{}});
  ASSERT_TRUE(status.ok()) << Message(status);
  EXPECT_EQ(once.report(0).collectives, 0);
  EXPECT_EQ(once.report(1).collectives, 0);
  EXPECT_EQ(once.report(2).collectives, always.report(0).collectives) << "one round";
  for (int round = 0; round < 2; ++round) {  // the accumulators start anew in the second round
    for (int64_t a = 0; a < kMicroSteps; ++a) {
      status = once.Run(static_cast<size_t>(a), a);
      ASSERT_TRUE(status.ok()) << Message(status);
    }
  }
  for (int64_t a = 0; a < 2 * kMicroSteps; ++a) {
    status = always.Run(0, a % kMicroSteps);
    ASSERT_TRUE(status.ok()) << Message(status);
  }
  for (size_t p = 0; p < kSizes.size(); ++p) EXPECT_EQ(once.Parameter(p), always.Parameter(p)) << "p" << p;
}

// Gradients of half types are integers that these hold, and what is sent in one has sums that it holds; the sums of
// micro-steps, which are f32, are integers that halves do not hold.
TEST_P(BucketSize, AccumulationWithOneRoundEqualsSyncingEveryMicroStepInHalfTypes) {
  for (const auto& [dtype, exact] : {std::pair<DType, int64_t>{DType::kBF16, 256}, {DType::kF16, 2048}}) {
    for (const DType wire : {DType::kF32, dtype}) {
      SCOPED_TRACE(fmt::format("{} sent as {}", NameOf(dtype), NameOf(wire)));
      const Integers integers = {dtype, wire == DType::kF32 ? exact : exact / (SharedWorld().size() * kMicroSteps)};
      const DataParallelOptions options{.bucket_bytes = GetParam(), .wire = wire};
      Round once, always;
      Status status = once.Make(options, {{false, false}, {true, false}, {true, true}}, true, integers);
      ASSERT_TRUE(status.ok()) << Message(status);
      status = always.Make(options, {BucketUse{}}, true, integers);
      ASSERT_TRUE(status.ok()) << Message(status);
      for (int64_t a = 0; a < kMicroSteps; ++a) {
        status = once.Run(static_cast<size_t>(a), a);
        ASSERT_TRUE(status.ok()) << Message(status);
        status = always.Run(0, a);
        ASSERT_TRUE(status.ok()) << Message(status);
      }
      ExpectExactSums(once, kMicroSteps);
      ExpectExactSums(always, kMicroSteps);
    }
  }
}

TEST_P(BucketSize, AndWhatIsSentAndWhenDoNotChangeABit) {
  const auto world = static_cast<float>(SharedWorld().size());
  for (const DType wire : {DType::kF32, DType::kF16}) {
    for (const bool delayed : {false, true}) {
      for (const std::optional<float> predivide : {std::optional<float>(), {0.5f}, {4.0f}}) {
        SCOPED_TRACE(fmt::format("{}, {}, predivide {}", NameOf(wire), delayed ? "delayed" : "beside",
                                 predivide ? fmt::to_string(*predivide) : "by default"));
        DataParallelOptions options{.bucket_bytes = GetParam()}, plain = options;
        options.wire = wire;
        options.delay_reduction = delayed;
        options.predivide = predivide;
        Round round, other;
        const Status made = round.Make(options, {{false, false}, {true, false}, {true, true}}, true, SentAs(wire));
        ASSERT_TRUE(made.ok()) << Message(made);
        ASSERT_TRUE(other.Make(plain, {BucketUse{}}).ok());
        for (int64_t a = 0; a < kMicroSteps; ++a) {
          const Status ran = round.Run(static_cast<size_t>(a), a);
          ASSERT_TRUE(ran.ok()) << Message(ran);
        }
        // What is given is not divided here, so that the factor behind the reduction shows.
        ExpectExactSums(round, kMicroSteps, predivide && world > 1 ? *predivide / world : 1);
        const PlanReport &found = round.report(2), &expected = other.report(0);
        EXPECT_EQ(found.collective_bytes * (wire == DType::kF16 ? 2 : 1), expected.collective_bytes);
        if (delayed) {
          EXPECT_EQ(found.collectives, world > 1 ? 1 : 0);
        }
      }
    }
  }
}

// Each rank updates its part of each bucket, of the sums of all ranks or of those that it has alone.
TEST_P(BucketSize, AndWhoUpdatesDoNotChangeABit) {
  const int ranks = SharedWorld().size();
  for (const Share share : {Share::kUpdate, Share::kSums}) {
    for (const DType wire : {DType::kF32, DType::kF16}) {
      Round round, whole;
      DataParallelOptions options{.bucket_bytes = GetParam(), .wire = wire, .share = share};
      const Status made = round.Make(options, {{false, false}, {true, false}, {true, true}}, true, SentAs(wire));
      ASSERT_TRUE(made.ok()) << Message(made);
      for (int64_t a = 0; a < kMicroSteps; ++a) {
        const Status ran = round.Run(static_cast<size_t>(a), a);
        ASSERT_TRUE(ran.ok()) << Message(ran);
      }
      ExpectExactSums(round, kMicroSteps);
      options.share = Share::kNothing;
      ASSERT_TRUE(whole.Make(options, {BucketUse{}}).ok());
      const int buckets = whole.report(0).collectives;
      EXPECT_EQ(round.report(2).collectives, 2 * buckets) << "each is reduced, and its parameters are gathered";
      EXPECT_EQ(round.report(0).collectives, ranks > 1 && share == Share::kSums ? buckets : 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bytes, BucketSize, ::testing::Values(4, 5000, 1 << 20));

// Sums node by node, of nodes of equal and of unequal size, are those at once: of whole buckets, and of the parts of
// ranks that share the update, or the sums too. What halves hold of a sum's integers, they hold of its parts.
TEST(NodeByNodeSums, HaveTheBitsOfSumsAtOnce) {
  World& world = SharedWorld();
  if (world.size() < 3) GTEST_SKIP() << "3 ranks or more make nodes of several";
  for (const int first_of_second : {world.size() / 2, world.size() - 1}) {
    std::vector<int> nodes(static_cast<size_t>(world.size()), 0);
    std::fill(nodes.begin() + first_of_second, nodes.end(), 1);
    const auto groups = GroupsOf({.data = world.size(), .nodes = nodes}, world.rank());
    ASSERT_TRUE(groups.ok()) << Message(groups.status());
    const auto communicators = world.CommunicatorsOf(*groups);
    ASSERT_TRUE(communicators.ok()) << Message(communicators.status());
    for (const Share share : {Share::kNothing, Share::kUpdate, Share::kSums}) {
      for (const auto& [wire, exact] :
           {std::pair<DType, int64_t>{DType::kF32, 1 << 20}, {DType::kF16, 2048}, {DType::kBF16, 256}}) {
        SCOPED_TRACE(
            fmt::format("nodes {}, share {}, {}", fmt::join(nodes, " "), static_cast<int>(share), NameOf(wire)));
        DataParallelOptions options{.bucket_bytes = 20000, .wire = wire, .share = share};
        options.nodes = nodes;
        Round round;
        const Status made = round.Make(options, {{false, false}, {true, true}}, true,
                                       {DType::kF32, exact / (world.size() * 2)}, *communicators);
        ASSERT_TRUE(made.ok()) << Message(made);
        for (int64_t a = 0; a < 2; ++a) {
          const Status ran = round.Run(static_cast<size_t>(a), a);
          ASSERT_TRUE(ran.ok()) << Message(ran);
        }
        ExpectExactSums(round, 2);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
