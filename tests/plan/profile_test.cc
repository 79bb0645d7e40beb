// A profile holds every step of the plan, in order, with what it does and costs; and rates that were measured bound
// what a plan needs.
#include "core/plan/profile.h"

#include <regex>
#include <set>

#include "core/base/json.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/softmax.h"
#include "gmock/gmock.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

class ProfileOnDevice : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ProfileOnDevice, ::testing::ValuesIn(TestDevices({"reference", "cpu", "null"})),
                         [](const auto& info) { return std::string(info.param); });

Graph SmallGraph() {
  Graph g;
  const Value x = g.Input("x", {DType::kF32, {24, 32}}, {.role = Role::kBatch});
  const Value w = g.Input("w", {DType::kF32, {32, 16}}, {.role = Role::kParameter});
  const Value reduced = ops::AllReduce(ops::Matmul(x, w), SY_SUM, 1);
  g.Output("y", ops::Softmax(reduced));
  return g;
}

TEST_P(ProfileOnDevice, HasEveryStepOfThePlanInOrder) {
  const auto c = Compiled::Make(SmallGraph(), *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  const Plan& plan = *(*c)->plan;
  const auto& steps = plan.schedule().steps;
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
  ASSERT_TRUE(test_->device->Synchronize((*c)->stream).ok());
  EXPECT_TRUE((*c)->instance->timings().empty()) << "nobody wants them";

  Profile profile;
  (*c)->instance->Record(true);
  for (const int64_t update : {3, 4}) {
    profile.BeginUpdate(update);
    profile.Waited("data", 1e-6);
    ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
    profile.Add("update", plan, (*c)->instance->timings());
    profile.EndUpdate();
  }
  EXPECT_EQ(profile.updates(), 2);
  const nlohmann::json trace = nlohmann::json::parse(profile.TraceJson(5));
  const nlohmann::json& events = trace.at("traceEvents");
  std::vector<nlohmann::json> updates, of_steps;
  std::set<std::string> tracks;
  for (const nlohmann::json& event : events) {
    EXPECT_EQ(event.at("pid"), 6) << event << ": 0 is the kernel's";
    EXPECT_GE(event.at("tid"), 1) << event;
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name"));
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0) << event;
    if (event.at("cat") == "update") {
      updates.push_back(event);
      EXPECT_EQ(event.at("tid"), event.at("pid")) << "Perfetto's main thread";
    }
    if (event.contains("args")) of_steps.push_back(event);
  }
  EXPECT_THAT(tracks, testing::IsSupersetOf({"host", "computing"}));
  ASSERT_EQ(updates.size(), 2u);
  ASSERT_EQ(of_steps.size(), 2 * steps.size());
  double end = 0;
  for (size_t i = 0; i < of_steps.size(); ++i) {
    const nlohmann::json& event = of_steps[i];
    const nlohmann::json& update = updates[i / steps.size()];
    const Step& step = steps[i % steps.size()];
    const Node& node = plan.graph().node(step.node);
    EXPECT_EQ(event.at("args").at("node"), node.name);
    EXPECT_EQ(event.at("name"), step.kind == Step::kCopy ? "copy" : node.op);
    EXPECT_EQ(event.at("args").at("flops"), step.cost.flops);
    EXPECT_EQ(event.at("args").at("bytes"), step.cost.bytes);
    EXPECT_EQ(event.at("args").at("update"), 3 + static_cast<int>(i / steps.size()));
    EXPECT_EQ(event.at("tid"), 6 + 1 + step.stream);
    const double start = event.at("ts");
    EXPECT_GE(start, end) << "one after the other";
    end = start + event.at("dur").get<double>() - 1e-3;  // written to the nanosecond
    EXPECT_GE(start, update.at("ts").get<double>());
    EXPECT_LE(end, update.at("ts").get<double>() + update.at("dur").get<double>());
  }

  double flops = 0, seconds = 0;
  int64_t calls = 0;
  const DeviceRates rates{.flops_per_s = 1e9, .bytes_per_s = 1e9};
  for (const FamilyWork& work : profile.Families(rates)) {
    flops += work.cost.flops;
    seconds += work.seconds;
    calls += work.calls;
    EXPECT_GT(work.seconds, 0) << work.family;
  }
  EXPECT_DOUBLE_EQ(flops, 2 * plan.report().flops);
  EXPECT_EQ(calls, static_cast<int64_t>(of_steps.size()));
  EXPECT_LE(seconds, profile.seconds());

  // Beside a device that reaches next to nothing.
  const std::string table = profile.Table({.flops_per_s = 1, .bytes_per_s = 1});
  EXPECT_THAT(table, testing::HasSubstr(">100 %"));
  const std::regex share("([0-9.]+) %");
  for (std::sregex_iterator found(table.begin(), table.end(), share), none; found != none; ++found)
    EXPECT_LE(std::stod((*found)[1]), 100) << table;

  (*c)->instance->Record(false);
  ASSERT_TRUE((*c)->instance->Run((*c)->stream).ok());
}

TEST_P(ProfileOnDevice, WhatEachFamilyNeedsFollowsFromTheRates) {
  const auto c = Compiled::Make(SmallGraph(), *test_);
  ASSERT_TRUE(c.ok()) << c.status();
  const Plan& plan = *(*c)->plan;
  const double flops = 2.0 * 24 * 32 * 16, bytes = 4.0 * (24 * 32 + 32 * 16 + 24 * 16);
  for (const bool computes : {true, false}) {
    const DeviceRates rates{.flops_per_s = computes ? 1e6 : 1e15, .bytes_per_s = computes ? 1e15 : 1e6};
    const auto families = FamiliesOf(plan, rates);
    const auto of = [&](const std::string& family) {
      const auto found =
          std::find_if(families.begin(), families.end(), [&](const auto& work) { return work.family == family; });
      return found == families.end() ? FamilyWork() : *found;
    };
    const FamilyWork product = of("matmul");
    EXPECT_EQ(product.calls, 1);
    EXPECT_EQ(product.cost.flops, flops);
    EXPECT_DOUBLE_EQ(product.least_seconds, computes ? flops / 1e6 : bytes / 1e6);
    EXPECT_EQ(BoundOf(product, rates), computes ? "compute" : "memory");
    EXPECT_EQ(of("collective").least_seconds, 0) << "the network's, which nobody has measured";
    double sum = 0;
    for (const FamilyWork& work : families) sum += work.least_seconds;
    EXPECT_DOUBLE_EQ(EstimateJson(families, rates).at("least_ms").get<double>(), 1e3 * sum);
  }
}

TEST(MeasuredRates, AreThoseOfTheDevice) {
  const auto test = TestDevice::Open("cpu");
  if (!test.ok()) GTEST_SKIP() << "no cpu plugin: " << Message(test.status());
  const uint64_t before = (*test)->device->allocated_bytes();
  const auto rates = MeasureRates(*(*test)->device, DType::kF32);
  ASSERT_TRUE(rates.ok()) << Message(rates.status());
  EXPECT_EQ((*test)->device->allocated_bytes(), before) << "all of it is freed";
  // Within two orders of magnitude of any machine that runs these tests.
  EXPECT_GT(rates->flops_per_s, 1e9);
  EXPECT_LT(rates->flops_per_s, 1e14);
  EXPECT_GT(rates->bytes_per_s, 1e8);
  EXPECT_LT(rates->bytes_per_s, 1e13);
}

}  // namespace
}  // namespace switchyard
