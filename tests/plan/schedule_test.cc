// What may run beside what, read off the schedule without running anything.
#include "core/plan/schedule.h"

#include <algorithm>

#include "core/base/random.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"
#include "core/graph/ops/transfer.h"
#include "gmock/gmock.h"
#include "tests/plan/happens_before.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

bool Overlap(const PlanPlace& a, const PlanPlace& b) {
  return a.arena == b.arena && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

bool Touches(const Step& writer, const Step& other) {
  for (const PlanPlace& written : writer.outputs) {
    for (const auto* places : {&other.inputs, &other.outputs}) {
      for (const PlanPlace& place : *places) {
        if (Overlap(written, place)) return true;
      }
    }
    if (Overlap(written, other.residual)) return true;
  }
  return false;
}

// The first two steps that use the same bytes, one of them to write, and that nothing orders; "" where there are none,
// and where everything runs between the start and the end of the run.
std::string Race(const StepSchedule& schedule, const Graph& graph) {
  const HappensBefore order = OrderOf(schedule);
  const size_t count = schedule.steps.size();
  const auto name = [&](size_t i) { return fmt::format("{} {}", i, graph.node(schedule.steps[i].node).name); };
  for (size_t i = 0; i < count; ++i) {
    if (!order[i][count]) return name(i) + " may begin before the run";
    if (!order[count][i]) return name(i) + " may end behind the run";
    for (size_t j = 0; j < i; ++j) {
      const Step &a = schedule.steps[j], &b = schedule.steps[i];
      if (!order[i][j] && (Touches(a, b) || Touches(b, a))) return name(j) + " against " + name(i);
    }
  }
  return "";
}

// Nodes that read what is there already, some of it long dead but for them, with collectives on three groups and
// detours over the host between.
Graph RandomGraph(uint64_t seed) {
  constexpr int64_t kElements = 64;
  RandomStream random(Key(HashName(fmt::format("graph {}", seed))));
  const auto choose = [&](size_t count) {
    return std::min(count - 1, static_cast<size_t>(random.Uniform(0, static_cast<float>(count))));
  };
  Graph g;
  std::vector<Value> values, states;
  for (int i = 0; i < 3; ++i) {
    states.push_back(g.Input(fmt::format("state{}", i), {DType::kF32, {kElements}}, {Role::kState, {}, true}));
    values.push_back(states.back());
  }
  values.push_back(g.Input("x", {DType::kF32, {kElements}}, {}));
  for (int i = 0; i < 40; ++i) {
    const Value& a = values[values.size() - 1 - choose(std::min<size_t>(values.size(), 6))];
    const Value& b = values[choose(values.size())];
    const int group = static_cast<int>(choose(3));
    switch (choose(9)) {
      case 0:
        values.push_back(ops::AllReduce(a, SY_SUM, 1, group));
        break;
      case 1:
        values.push_back(ops::ReduceScatter(ops::AllGather(a, 4, group), SY_SUM, 4, static_cast<int>(choose(3))));
        break;
      case 2:
        values.push_back(ops::AllToAll(a, 2, group));
        break;
      case 3:
        values.push_back(
            ops::Reshape(ops::AllGather(ops::Slice(ops::Reshape(a, {2, 32}), 0, 0, 1), 2, group), {kElements}));
        break;
      case 4:
        values.push_back(ops::Softmax(ops::Reshape(a, {1, kElements})));
        values.back() = ops::Reshape(values.back(), {kElements});
        break;
      case 5:
        values.push_back(ops::Fetch(ops::Add(ops::Store(a), ops::Store(b))));
        break;
      default:
        values.push_back(ops::Add(a, b));
    }
  }
  for (size_t i = 0; i < states.size(); ++i) g.Assign(states[i], values[values.size() - 1 - i]);
  g.Output("y", values[values.size() - 5]);
  return g;
}

class ScheduleTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  std::unique_ptr<Plan> Compile(const Graph& graph, PlanOptions options = {}) {
    Layout layout(64);
    auto plan = Plan::Compile(graph, *test_->kernels, nullptr, layout, options, test_->reference_kernels.get());
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    return std::move(*plan);
  }
  std::unique_ptr<TestDevice> test_;
};

TEST_F(ScheduleTest, OrdersWhateverSharesBytesAndSaysNoWaitTwice) {
  int edges = 0, reuses = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const bool overlap : {true, false}) {
      PlanOptions options;
      options.overlap = overlap;
      const auto plan = Compile(RandomGraph(seed), options);
      StepSchedule schedule = plan->schedule();
      ASSERT_EQ(Race(schedule, plan->graph()), "") << "seed " << seed << "\n" << schedule.ToText(plan->graph());
      EXPECT_EQ(plan->report().edges, schedule.edges());
      if (!overlap) continue;  // a collective then waits for all that was computed before it
      // Each edge is needed: without it two steps would race.
      const auto expect_needed = [&](std::vector<int>& waits, size_t step) {
        for (size_t i = 0; i < waits.size(); ++i, ++edges) {
          const int earlier = waits[i];
          waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(i));
          EXPECT_NE(Race(schedule, plan->graph()), "") << "seed " << seed << ": " << step << " after " << earlier;
          waits.insert(waits.begin() + static_cast<std::ptrdiff_t>(i), earlier);
        }
      };
      for (size_t i = 0; i < schedule.steps.size(); ++i) {
        Step& step = schedule.steps[i];
        for (const int earlier : step.waits) {
          // What it waits for reads or writes bytes that it does not read itself: only memory used again joins the two.
          const bool reads = earlier != kRunStart && Touches(schedule.steps[static_cast<size_t>(earlier)],
                                                             {.kind = step.kind, .inputs = step.inputs});
          reuses += earlier != kRunStart && !reads;
        }
        expect_needed(step.waits, i);
      }
      expect_needed(schedule.at_end, schedule.steps.size());
    }
  }
  EXPECT_GT(edges, 1000);
  EXPECT_GT(reuses, 50) << "graphs in which memory is used again on another stream";
}

TEST_F(ScheduleTest, CommunicatesBesideComputingAndWaitsWhereTheResultIsRead) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {64}}, {});
  const Value sent = ops::Softmax(ops::Reshape(x, {1, 64}));
  const Value sum = ops::AllReduce(sent, SY_SUM, 1, 2, "sum");
  Value beside = x;
  for (int i = 0; i < 3; ++i) beside = ops::Reshape(ops::Softmax(ops::Reshape(beside, {1, 64})), {64});
  g.Output("y", ops::Add(beside, ops::Reshape(sum, {64})));
  PlanOptions options;
  options.fuse = false;
  const auto plan = Compile(g, options);
  const StepSchedule& schedule = plan->schedule();
  int collective = -1;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const std::string& op = plan->graph().node(step.node).op;
    if (op == "all_reduce") {
      collective = static_cast<int>(i);
      EXPECT_EQ(step.stream, CommunicationStream(2));
      EXPECT_EQ(step.waits, std::vector<int>{collective - 1}) << "its writer";
    } else {
      EXPECT_EQ(step.stream, kComputeStream);
      EXPECT_EQ(step.waits, op == "pointwise" ? std::vector<int>{collective} : std::vector<int>{}) << op;
    }
  }
  ASSERT_GE(collective, 0);
  EXPECT_TRUE(schedule.at_end.empty()) << "the sum has been waited for";
  EXPECT_EQ(schedule.edges(), 2);
  EXPECT_THAT(schedule.ToText(plan->graph()), HasSubstr(fmt::format("pointwise  after {}", collective)));
  EXPECT_THAT(plan->report().ToText(), HasSubstr("waits between computing and communicating 2"));
}

TEST_F(ScheduleTest, AControlEdgeBetweenStreamsIsAWait) {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {64}}, {});
  const Value sum = ops::AllReduce(ops::Scale(x, 2), SY_SUM, 1);
  const Value later = ops::AddScalar(x, 1);
  g.mutable_node(later.ref().node).control.push_back(sum.ref().node);
  g.Output("y", later);
  g.Output("z", sum);
  PlanOptions options;
  options.fuse = false;
  const auto plan = Compile(g, options);
  bool waits = false;
  for (const Step& step : plan->schedule().steps)
    waits = waits || (plan->graph().node(step.node).op == "pointwise" && !step.waits.empty());
  EXPECT_TRUE(waits) << plan->schedule().ToText(plan->graph());
}

}  // namespace
}  // namespace switchyard
