// Recomputation keeps every bit of losses, gradients and parameters, and takes less memory for more FLOPs.
#include "core/parallel/recompute.h"

#include <cstring>
#include <map>
#include <set>

#include "core/base/random.h"
#include "core/graph/gradients.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/random.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/initialize.h"
#include "gmock/gmock.h"
#include "models/vit.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr int kBatch = 4, kSide = 28, kUpdates = 2;

Workload Classifier() {
  VisionTransformerConfig c = {.image_size = kSide, .channels = 1, .classes = 10, .patch = 7, .width = 32, .depth = 3};
  c.heads = 2;
  c.mlp_ratio = 2;
  c.dropout = 0.2f;
  c.drop_path = 0.3f;
  const auto logits = [c](nn::Context& context) {
    const Value images = context.graph.Input("images", {DType::kF32, {kBatch, kSide, kSide, 1}}, {});
    return VisionTransformer(c, context, images);
  };
  return {"vit",
          [logits](nn::Context& context) {
            const Value labels = context.graph.Input("labels", {DType::kI32, {kBatch}}, {});
            return ops::Mean(ops::CrossEntropy(logits(context), labels, 0.1f));
          },
          [logits](nn::Context& context) { context.graph.Output("logits", logits(context)); }};
}

ProgramOptions OptionsOf(DType precision, std::optional<int> recompute, int accumulation = 2) {
  ProgramOptions options;
  options.precision = precision;
  options.recompute = recompute;
  options.accumulation = accumulation;
  options.bucket_bytes = 20000;
  options.optimizer.clip = 1;
  options.table_length = kUpdates;
  return options;
}

Program Build(const ProgramOptions& options) {
  auto program = BuildProgram(Classifier(), options, 0);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  return program.ok() ? std::move(*program) : Program();
}

bool IsSecond(const Node& node) { return node.name.ends_with("/recomputed"); }

// A program's plans over one memory.
struct Running {
  Layout layout;
  std::vector<std::unique_ptr<Plan>> plans;
  std::unique_ptr<Memory> memory;
  std::vector<std::unique_ptr<Instance>> instances;  // as plans: those of the schedule, then "halves", if any
  uint64_t activations() const { return layout.bytes(kActivationsArena); }
};

class RecomputeOnDevice : public DeviceTest {
 protected:
  void Compile(const Program& program, bool fuse, Running* running) {
    PlanOptions options;
    options.fuse = fuse;
    std::vector<const Graph*> graphs;
    for (const Action& action : program.schedule)
      graphs.push_back(&program.plans[static_cast<size_t>(action.plan)].graph);
    if (const NamedGraph* const halves = program.Find("halves")) graphs.push_back(&halves->graph);
    for (const Graph* graph : graphs) {
      auto plan = Plan::Compile(*graph, *test_->kernels, test_->reference_kernels.get(), running->layout, options);
      ASSERT_TRUE(plan.ok()) << Message(plan.status());
      running->plans.push_back(std::move(*plan));
    }
    auto memory = Memory::Allocate(running->layout, *test_->device, nullptr);
    ASSERT_TRUE(memory.ok()) << Message(memory.status());
    running->memory = std::move(*memory);
    for (const auto& plan : running->plans) {
      auto instance = Instance::Bind(*plan, *running->memory, nullptr);
      ASSERT_TRUE(instance.ok()) << Message(instance.status());
      running->instances.push_back(std::move(*instance));
    }
  }
  template <typename T>
  static void Set(Running& running, const std::string& name, const std::vector<T>& values) {
    if (running.layout.Find(name) == nullptr) return;  // that nobody reads
    ASSERT_TRUE(running.memory->Upload(name, values.data(), values.size() * sizeof(T)).ok()) << name;
  }
  // Every loss, and what the buckets, parameters and moments hold after each update.
  std::map<std::string, std::vector<float>> Train(const Program& program, bool fuse) {
    Running running = {Layout(test_->device->info().alignment), {}, nullptr, {}};
    Compile(program, fuse, &running);
    std::map<std::string, std::vector<float>> found;
    if (testing::Test::HasFatalFailure()) return found;
    const auto stream = test_->device->NewStream();
    std::vector<std::string> kept;
    for (const Node& node : program.Find("update")->graph.nodes()) {
      if (node.input && node.input->role == Role::kParameter)
        Set(running, node.name, nn::InitialValues(node.name, node.outputs[0], node.input->initializer, 42));
      if (node.input && node.outputs[0].dtype == DType::kF32 && node.input->role != Role::kBatch)
        kept.push_back(node.name);
    }
    for (const GradientPlace& place : program.gradient_places) kept.push_back(place.bucket);
    if (program.Find("halves") != nullptr) {
      EXPECT_TRUE(running.instances.back()->Run(*stream).ok());
    }
    Set(running, "lr_table", std::vector<float>(kUpdates, 1e-2f));
    RandomStream random(7);
    for (int update = 0; update < kUpdates; ++update) {
      for (const Action& action : program.schedule) {
        std::vector<float> images(kBatch * kSide * kSide);
        for (float& v : images) v = random.Normal();
        std::vector<int32_t> labels(kBatch), ids(kBatch);
        for (int i = 0; i < kBatch; ++i) {
          labels[i] = static_cast<int32_t>(random.Below(10));
          ids[i] = update * 100 + action.micro_batch * 10 + i;
        }
        Set(running, "images", images);
        Set(running, "labels", labels);
        Set(running, "sample_ids", ids);
        Set(running, "step", std::vector<int32_t>{update, action.micro_batch});
        EXPECT_TRUE(running.instances[static_cast<size_t>(action.micro_batch)]->Run(*stream).ok());
        EXPECT_EQ(Message(test_->device->Synchronize(*stream)), Message(OkStatus()));
        const auto get = [&](const std::string& name) {
          const Layout::Entry* entry = running.layout.Find(name);
          if (entry == nullptr) return;
          auto& values = found[fmt::format("{} of {}.{}", name, update, action.micro_batch)];
          values.resize(entry->bytes / sizeof(float));
          EXPECT_TRUE(running.memory->Download(name, values.data(), entry->bytes).ok()) << name;
        };
        get("output/loss");
        for (const std::string& name : kept) get(name);
      }
    }
    return found;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RecomputeOnDevice, ::testing::ValuesIn(TestDevices({"reference", "cpu", "null"})),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RecomputeOnDevice, KeepsEveryBit) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    const Program whole = Build(OptionsOf(precision, std::nullopt));
    std::map<int, Program> recomputing;
    for (const int every : {1, 2}) recomputing[every] = Build(OptionsOf(precision, every));
    for (const bool fuse : {false, true}) {
      const auto expected = Train(whole, fuse);
      ASSERT_GT(expected.size(), 50u);
      ASSERT_NE(expected.at("output/loss of 0.0"), expected.at("output/loss of 1.0"));
      for (const auto& [every, program] : recomputing) {
        SCOPED_TRACE(fmt::format("{}, fuse {}, every {}", NameOf(precision), fuse, every));
        const auto found = Train(program, fuse);
        ASSERT_EQ(found.size(), expected.size());
        for (const auto& [name, values] : expected) {
          EXPECT_EQ(std::memcmp(found.at(name).data(), values.data(), values.size() * sizeof(float)), 0) << name;
        }
      }
    }
  }
}

TEST_P(RecomputeOnDevice, TakesLessMemoryAndTheFlopsOfWhatIsComputedAgain) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    uint64_t before = 0;
    double flops = 0;
    std::map<std::string, double> costs;  // of a step that computes nothing again, by node
    for (const std::optional<int> every : {std::optional<int>(), {2}, {1}}) {
      SCOPED_TRACE(fmt::format("{}, {}", NameOf(precision), RecomputeText(every)));
      const Program program = Build(OptionsOf(precision, every, 1));
      Running running = {Layout(test_->device->info().alignment), {}, nullptr, {}};
      const uint64_t allocated = test_->device->allocated_bytes();
      Compile(program, false, &running);
      if (HasFatalFailure()) return;
      EXPECT_EQ(test_->device->allocated_bytes() - allocated, running.layout.bytes());
      // What attention consists of carries its name; a part of it that only the second computation's readers need, as
      // its logarithm of sums, is computed there alone.
      double again = 0, there_alone = 0;
      std::set<std::string> first, second;
      const Graph& graph = running.plans[0]->graph();
      for (const Node& node : graph.nodes()) {
        const double cost = CostOf(graph, node).flops;
        std::string name = node.name;
        const size_t at = name.find("/recomputed");
        if (at != std::string::npos) name.erase(at, std::strlen("/recomputed"));
        (at == std::string::npos ? first : second).insert(name);
        if (at != std::string::npos) again += cost;
        if (!every) costs[name] = cost;
        ASSERT_EQ(costs.count(name), 1u) << name;
        EXPECT_EQ(costs.at(name), cost) << node.name;
      }
      for (const auto& [name, cost] : costs) {
        if (first.count(name) > 0) continue;
        EXPECT_EQ(second.count(name), 1u) << name;
        EXPECT_THAT(name, testing::HasSubstr(".attention"));
        there_alone += cost;
      }
      if (!every) {
        EXPECT_EQ(again, 0);
        flops = running.plans[0]->report().flops;
      } else {
        EXPECT_GT(again, 0.1 * flops);
        EXPECT_DOUBLE_EQ(running.plans[0]->report().flops, flops - there_alone + again);
        EXPECT_LT(running.activations(), 0.85 * static_cast<double>(before));
      }
      before = running.activations();
    }
  }
}

class RecomputedGraph : public testing::Test {
 protected:
  const Program program_ = Build(OptionsOf(DType::kF32, 1, 1));
  const Graph& graph_ = program_.Find("update")->graph;
};

TEST_F(RecomputedGraph, ReadsTheSecondComputationInTheBackwardPass) {
  std::map<std::string, int> by_name;
  for (int id = 0; id < graph_.size(); ++id) by_name[graph_.node(id).name] = id;
  int seconds = 0, dropouts = 0, pairs = 0, held = 0;
  for (int id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    if (IsSecond(node)) {
      ++seconds;
      const int first = by_name.at(node.name.substr(0, node.name.rfind('/')));
      EXPECT_EQ(node.attributes, graph_.node(first).attributes) << node.name;
      EXPECT_EQ(node.block, graph_.node(first).block);
      EXPECT_EQ(node.phase, Phase::kForward);
      dropouts += node.op == "dropout";
      bool inside = false;  // what reads no other second computation is held back by an edge
      for (const Ref& input : node.inputs) inside = inside || IsSecond(graph_.node(input.node));
      if (inside) continue;
      ++held;
      ASSERT_EQ(node.control.size(), 1u) << node.name;
      EXPECT_EQ(graph_.node(node.control[0]).phase, Phase::kBackward);
    } else if (node.phase == Phase::kForward) {
      for (const Ref& input : node.inputs) EXPECT_FALSE(IsSecond(graph_.node(input.node))) << node.name;
    } else if (node.phase == Phase::kBackward) {
      for (const Ref& input : node.inputs)
        EXPECT_FALSE(by_name.contains(graph_.node(input.node).name + "/recomputed")) << node.name;
      if (node.forward < 0) continue;
      const bool repeated = by_name.contains(graph_.node(node.forward).name + "/recomputed");
      EXPECT_FALSE(repeated) << node.name << " is paired with the first computation";
      pairs += IsSecond(graph_.node(node.forward));
    }
  }
  EXPECT_GT(seconds, 3 * 8);
  EXPECT_GT(dropouts, 0);
  EXPECT_EQ(pairs, 3 * 3);  // two norms and an attention in each block
  EXPECT_GE(held, 3);
}

TEST_F(RecomputedGraph, MarksBlocksInBothDirections) {
  int forward = 0, backward = 0;
  for (const Node& node : graph_.nodes()) {
    if (node.input || node.phase == Phase::kUpdate) {
      EXPECT_EQ(node.block, -1) << node.name;
      continue;
    }
    if (!node.name.starts_with("blocks.")) continue;
    EXPECT_EQ(node.block, node.name[7] - '0') << node.name;
    (node.phase == Phase::kForward ? forward : backward) += 1;
  }
  EXPECT_GT(forward, 0);
  EXPECT_GT(backward, 0);
}

// The rule of a product makes both factors' gradients; that of the batch is left behind.
TEST(Recompute, RepeatsNothingForGradientsThatNobodyAskedFor) {
  Program program;
  Graph& g = program.plans.emplace_back().graph;
  const Value p = g.Input("p", {DType::kF32, {4}}, {Role::kParameter}), x = g.Input("x", p.type(), {});
  Value loss;
  {
    const Graph::Block block(g, 0);
    loss = ops::Sum(ops::Mul(ops::Unary(SY_PW_NEG, p), x));
  }
  program.plans[0].gradients = {{p.ref(), Gradients(loss, {p})[0].ref()}};
  ProgramOptions options;
  options.recompute = 1;
  RecomputePass().apply(program, options);
  for (const Node& node : program.plans[0].graph.nodes()) EXPECT_FALSE(IsSecond(node)) << node.name;
}

TEST(Recompute, RepeatsNoCollectiveAndNoAssignment) {
  const Workload workload = {"blocks",
                             [](nn::Context& context) {
                               Graph& g = context.graph;
                               Value x = g.Input("x", {DType::kF32, {4, 4}}, {});
                               const Value state = g.Input("state", x.type(), {Role::kState, {}, false});
                               for (int i = 0; i < 2; ++i) {
                                 const Graph::Block block(g, i);
                                 const Value w = g.Input(fmt::format("w{}", i), x.type(), {Role::kParameter, {}, true});
                                 const Value e = ops::Unary(SY_PW_EXP, ops::Mul(x, w));
                                 if (i == 0) g.Assign(state, e);
                                 const Value all = ops::Broadcast(e, 0, 0, fmt::format("broadcast{}", i));
                                 const Value y = ops::Mul(ops::Unary(SY_PW_TANH, ops::Add(e, x)), w);
                                 g.Output(fmt::format("shown{}", i), ops::Scale(all, 2));
                                 x = ops::Unary(SY_PW_EXP, ops::Mul(y, y));
                               }
                               return ops::Sum(x);
                             },
                             [](nn::Context&) {}};
  ProgramOptions options = OptionsOf(DType::kF32, 1, 1);
  const auto program = BuildProgram(workload, options, 0);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  std::map<std::string, int> ops;
  int seconds = 0;
  for (const Node& node : program->Find("update")->graph.nodes()) {
    if (node.phase == Phase::kForward) ++ops[node.op];
    seconds += IsSecond(node);
  }
  EXPECT_GT(seconds, 0);
  EXPECT_EQ(ops["broadcast"], 2);
  EXPECT_EQ(ops["assign"], 1);
}

TEST(Recompute, SettingsAreReadOrRefused) {
  EXPECT_EQ(*ParseRecompute("none"), std::nullopt);
  EXPECT_EQ(*ParseRecompute("blocks"), 1);
  EXPECT_EQ(*ParseRecompute("every:3"), 3);
  for (const char* wrong : {"", "every", "every:", "every:0", "every:-1", "every:x", "all"})
    EXPECT_THAT(Message(ParseRecompute(wrong).status()),
                HasSubstr("--recompute: expected none, blocks, auto or every:K"))
        << wrong;
}

TEST(Recompute, AModelWithoutBlocksIsRefused) {
  const Workload workload = {
      "plain",
      [](nn::Context& context) {
        const Value w = context.graph.Input("w", {DType::kF32, {4}}, {Role::kParameter, {}, true});
        return ops::Sum(ops::Mul(w, w));
      },
      [](nn::Context&) {}};
  EXPECT_THAT(Message(BuildProgram(workload, OptionsOf(DType::kF32, 1, 1), 0).status()),
              HasSubstr("the model marks no blocks"));
  EXPECT_THAT(Message(BuildProgram(workload, OptionsOf(DType::kF32, -1, 1), 0).status()), HasSubstr("recompute -1"));
}

}  // namespace
}  // namespace switchyard
