// Accumulation adds each gradient to its bucket as it is computed: a plan that adds takes no more memory than one that
// does not, and sums to the same numbers.
#include "core/graph/gradients.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/structure.h"
#include "tests/plan/small_program.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

class AccumulationOnDevice : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, AccumulationOnDevice, ::testing::ValuesIn(TestDevices({"reference", "cpu", "null"})),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(AccumulationOnDevice, TakesTheMemoryAndTheLaunchesOfOneMicroBatch) {
  const auto measure = [&](int accumulation, std::vector<PlanReport>* reports) {
    const auto program = SmallProgram(accumulation);
    ASSERT_TRUE(program.ok()) << Message(program.status());
    ASSERT_EQ(program->schedule.size(), static_cast<size_t>(accumulation));
    Layout layout(test_->device->info().alignment);
    for (const Action& action : program->schedule) {
      const NamedGraph& named = program->plans[static_cast<size_t>(action.plan)];
      const auto plan = Plan::Compile(named.graph, *test_->kernels, test_->reference_kernels.get(), layout, {});
      ASSERT_TRUE(plan.ok()) << Message(plan.status());
      reports->push_back((*plan)->report());
    }
  };
  std::vector<PlanReport> once, thrice;
  measure(1, &once);
  measure(3, &thrice);
  ASSERT_EQ(once.size(), 1u);
  ASSERT_EQ(thrice.size(), 3u);
  const auto bytes = [](const PlanReport& report, size_t arena) { return report.memory[arena].bytes; };
  for (const PlanReport& report : thrice) {
    EXPECT_EQ(bytes(report, kGradientsArena), bytes(once[0], kGradientsArena)) << "gradients exist once";
    EXPECT_LE(bytes(report, kActivationsArena), bytes(once[0], kActivationsArena));
  }
  if (GetParam() == std::string("null")) return;  // of its kernels only products add, and none works in place
  for (const PlanReport& report : thrice) EXPECT_LE(report.copies, once[0].copies) << "nothing is copied into a bucket";
  EXPECT_EQ(thrice[2].launches, once[0].launches) << "kernels add to the buckets themselves";
}

// The gradient of w is a product, that of b a sum over rows, that of s a pointwise chain.
TEST_P(AccumulationOnDevice, AddsWhatEveryMicroBatchGives) {
  const auto build = [](BucketUse use) {
    Graph g;
    const Value x = g.Input("x", {DType::kF32, {3, 4}}, {});
    std::vector<Value> parameters = {g.Input("w", {DType::kF32, {2, 4}}, {Role::kParameter, {}, true}),
                                     g.Input("b", {DType::kF32, {2}}, {Role::kParameter, {}, true}),
                                     g.Input("s", {DType::kF32, {3, 4}}, {Role::kParameter, {}, true})};
    const Value y = ops::Linear(ops::Mul(x, parameters[2]), parameters[0], parameters[1]);
    const std::vector<Value> gradients = Gradients(ops::Sum(ops::Mul(y, y)), parameters);
    std::vector<ParameterGradient> pairs;
    for (size_t i = 0; i < parameters.size(); ++i) pairs.push_back({parameters[i], gradients[i]});
    const Buckets buckets = AddDataParallel(g, pairs, {}, use);
    for (const ParameterGradient& pair : buckets.gradients)
      g.Output("d" + g.node(pair.parameter.ref().node).name, pair.gradient);
    return g;
  };
  const auto run = [&](const std::vector<BucketUse>& uses, const std::vector<float>& scales) {
    Layout layout(test_->device->info().alignment);
    std::vector<std::unique_ptr<Plan>> plans;
    for (const BucketUse use : uses) {
      auto plan = Plan::Compile(build(use), *test_->kernels, test_->reference_kernels.get(), layout, {});
      EXPECT_TRUE(plan.ok()) << Message(plan.status());
      plans.push_back(std::move(*plan));
    }
    auto memory = Memory::Allocate(layout, *test_->device, nullptr);
    EXPECT_TRUE(memory.ok());
    const auto stream = test_->device->NewStream();
    const auto set = [&](const std::string& name, size_t count, float scale) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(static_cast<int>(i % 7) - 3);
      EXPECT_TRUE((*memory)->Upload(name, values.data(), count * sizeof(float)).ok());
    };
    set("w", 8, 1);
    set("b", 2, 2);
    set("s", 12, 1);
    std::vector<std::vector<float>> found;
    for (size_t i = 0; i < plans.size(); ++i) {
      set("x", 12, scales[i]);
      auto instance = Instance::Bind(*plans[i], **memory, nullptr);
      EXPECT_TRUE(instance.ok()) << Message(instance.status());
      EXPECT_TRUE((*instance)->Run(*stream).ok());
      EXPECT_TRUE(test_->device->Synchronize(*stream).ok());
    }
    for (const auto& [name, count] : {std::pair<const char*, size_t>{"dw", 8}, {"db", 2}, {"ds", 12}}) {
      found.emplace_back(count);
      EXPECT_TRUE((*memory)->Download(std::string("output/") + name, found.back().data(), count * sizeof(float)).ok());
    }
    return found;
  };
  const auto together = run({{false, false}, {true, false}, {true, true}}, {1, 2, 3});
  const auto first = run({{}}, {1}), second = run({{}}, {2}), third = run({{}}, {3});
  for (size_t p = 0; p < together.size(); ++p) {
    for (size_t i = 0; i < together[p].size(); ++i)
      EXPECT_EQ(together[p][i], first[p][i] + second[p][i] + third[p][i]) << p << " " << i;  // integers: exact
  }
}

// As the stages of a pipeline have them: the sums of an update's micro-batches lie in the bucket from the first one on,
// whether kernels add to them (of w) or sums are taken in place (of v, whose gradients are read besides).
TEST_P(AccumulationOnDevice, HoldsOneGradientForTheMicroBatchesOfOneRun) {
  constexpr int kMicroBatches = 3;
  constexpr int64_t kRows = 64, kColumns = 128;
  const uint64_t gradient = kRows * kColumns * sizeof(float);
  // pasted: a third parameter's gradients are put together of parts of the others', and lie where no kernel adds to
  // them.
  const auto build = [&](bool in_bucket, bool pasted) {
    Graph g;
    const Value w = g.Input("w", {DType::kF32, {kRows, kColumns}}, {Role::kParameter, {}, true}),
                v = g.Input("v", w.type(), {Role::kParameter, {}, true}),
                u = g.Input("u", w.type(), {Role::kParameter, {}, true});
    std::vector<Value> sums(3);
    for (int m = 0; m < kMicroBatches; ++m) {
      const Value x = g.Input("x" + std::to_string(m), {DType::kF32, {2, kColumns}}, {});
      const Value y = ops::Linear(x, w, {}), z = ops::Linear(x, v, {});
      std::vector<Value> gradients = Gradients(ops::Sum(ops::Add(ops::Mul(y, y), ops::Mul(z, z))), {w, v});
      if (m > 0) g.Output("largest" + std::to_string(m), ops::Reduce(gradients[1], SY_REDUCE_MAX, 3));
      if (pasted && m == 0) {
        gradients.push_back(ops::Concat({ops::Slice(gradients[0], 0, 32, 32), ops::Slice(gradients[1], 0, 0, 32)}, 0));
      } else if (pasted) {
        gradients.push_back(ops::Scale(gradients[0], 2));
      }
      for (size_t i = 0; i < gradients.size(); ++i)
        sums[i] = sums[i] ? ops::Accumulate(sums[i], gradients[i]) : gradients[i];
    }
    std::vector<ParameterGradient> pairs = {{w, sums[0]}, {v, sums[1]}};
    if (pasted) pairs.push_back({u, sums[2]});
    const Buckets buckets = in_bucket ? AddDataParallel(g, pairs, {}, {}) : Buckets{pairs};
    for (const ParameterGradient& pair : buckets.gradients)
      g.Output("d" + g.node(pair.parameter.ref().node).name, pair.gradient);
    return g;
  };
  const auto run = [&](bool in_bucket, bool pasted, uint64_t* activations) {
    std::vector<std::vector<float>> found;
    const auto c = Compiled::Make(build(in_bucket, pasted), *test_, {.fuse = false});
    EXPECT_TRUE(c.ok()) << Message(c.status());
    if (!c.ok()) return found;
    const auto set = [&](const std::string& name, int64_t count, int step) {
      std::vector<float> values(static_cast<size_t>(count));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(static_cast<int>(i) * step % 17 - 8);  // sums are exact
      (*c)->Set(name, values);
    };
    set("w", kRows * kColumns, 3);
    set("v", kRows * kColumns, 5);
    for (int m = 0; m < kMicroBatches; ++m) set("x" + std::to_string(m), 2 * kColumns, m + 1);
    for (int repeated = 0; repeated < 2; ++repeated) EXPECT_TRUE((*c)->instance->Run((*c)->stream).ok());
    for (const char* name : {"output/dw", "output/dv"}) found.push_back((*c)->Get(name));
    if (pasted) found.push_back((*c)->Get("output/du"));
    *activations = (*c)->layout->bytes(kActivationsArena);
    EXPECT_EQ((*c)->layout->bytes(kGradientsArena), in_bucket ? found.size() * gradient : 0);
    return found;
  };
  uint64_t here = 0, beside = 0;
  for (const bool pasted : {true, false}) {
    const auto found = run(true, pasted, &here), expected = run(false, pasted, &beside);
    ASSERT_EQ(found.size(), pasted ? 3u : 2u);
    EXPECT_TRUE(found == expected) << pasted;
    EXPECT_NE(found[0], found[1]);
  }
  if (GetParam() == std::string("null")) return;  // of its kernels only products add, and none works in place
  EXPECT_LT(here, 2 * gradient) << "of dv a micro-batch's own, and no sum";
  EXPECT_LE(here + 2 * gradient, beside) << "the sums of both";
}

// The gradients of a concatenation's parts are places in one tensor, those of slices may be put together in place: no
// kernel writes them where a bucket lies.
TEST_P(AccumulationOnDevice, AddsGradientsThatAreAPlaceInAnotherTensor) {
  const auto build = [](BucketUse use) {
    Graph g;
    const Value a = g.Input("a", {DType::kF32, {64, 1}}, {Role::kParameter}),
                b = g.Input("b", a.type(), {Role::kParameter});
    const Value both = ops::Concat({a, b}, 0);
    const std::vector<Value> parts = Gradients(ops::Sum(ops::Mul(both, g.Input("x", both.type(), {}))), {a, b});
    const Value c = g.Input("c", both.type(), {Role::kParameter});
    std::vector<ParameterGradient> pairs = {{a, parts[0]}, {b, parts[1]}, {c, ops::Concat({parts[1], parts[0]}, 0)}};
    DataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 64;
    const Buckets buckets = AddDataParallel(g, pairs, options, use);
    for (const ParameterGradient& pair : buckets.gradients)
      g.Output("d" + g.node(pair.parameter.ref().node).name, pair.gradient);
    return g;
  };
  Layout layout(test_->device->info().alignment);
  std::vector<std::unique_ptr<Plan>> plans;
  for (const BucketUse use : {BucketUse{false, false}, BucketUse{true, true}}) {
    auto plan = Plan::Compile(build(use), *test_->kernels, test_->reference_kernels.get(), layout, {});
    ASSERT_TRUE(plan.ok()) << Message(plan.status());
    plans.push_back(std::move(*plan));
  }
  auto memory = Memory::Allocate(layout, *test_->device, nullptr);
  ASSERT_TRUE(memory.ok()) << Message(memory.status());
  const auto stream = test_->device->NewStream();
  std::vector<float> x(128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  ASSERT_TRUE((*memory)->Upload("x", x.data(), x.size() * sizeof(float)).ok());
  for (const auto& plan : plans) {
    auto instance = Instance::Bind(*plan, **memory, nullptr);
    ASSERT_TRUE(instance.ok()) << Message(instance.status());
    ASSERT_TRUE((*instance)->Run(*stream).ok());
    ASSERT_TRUE(test_->device->Synchronize(*stream).ok());
  }
  std::vector<float> da(64), dc(128);
  ASSERT_TRUE((*memory)->Download("output/da", da.data(), da.size() * sizeof(float)).ok());
  ASSERT_TRUE((*memory)->Download("output/dc", dc.data(), dc.size() * sizeof(float)).ok());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(da[i], 2 * x[i]);
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(dc[i], 2 * x[(i + 64) % 128]);
}

}  // namespace
}  // namespace switchyard
