// Loss scaling and half copies of weights, on every device: the scale moves as torch's and apex's do, the state stays
// on the device, and a copy that the update writes is the cast that it stands for.
#include <cmath>
#include <fstream>
#include <limits>

#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/passes.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

constexpr int kProductRows = 4, kProductColumns = 3;

// loss = mean of x·wᵀ: the gradient of w is x's mean, and not finite where x is not.
Workload Product() {
  const auto product = [](nn::Context& c) {
    const Value x = c.graph.Input("x", {DType::kF32, {kProductRows, kProductColumns}}, {});
    return ops::Linear(x, nn::Parameter(c, "w", {5, kProductColumns}, {Initializer::kNormal, 0.5f}, true), {});
  };
  return {"product", [product](nn::Context& c) { return ops::Mean(ops::Cast(product(c), DType::kF32)); },
          [product](nn::Context& c) { c.graph.Output("y", product(c)); }};
}

Program BuildProduct(const ProgramOptions& options) {
  auto program = BuildProgram(Product(), options, 0);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  return program.ok() ? std::move(*program) : Program();
}

// The plan that updates, and the copies' own, over one memory.
struct Products {
  explicit Products(TestDevice& device) : test(device), layout(device.device->info().alignment) {}
  TestDevice& test;
  Layout layout;
  std::vector<std::unique_ptr<Plan>> plans;
  std::unique_ptr<Memory> memory;
  std::vector<std::unique_ptr<Instance>> instances;
  Stream stream;

  Status Make(const Program& program) {
    for (const char* name : {"update", "halves"}) {
      const NamedGraph* const plan = program.Find(name);
      if (plan == nullptr) continue;
      SY_ASSIGN_OR_RETURN(auto compiled,
                          Plan::Compile(plan->graph, *test.kernels, test.reference_kernels.get(), layout, {}));
      plans.push_back(std::move(compiled));
    }
    SY_ASSIGN_OR_RETURN(memory, Memory::Allocate(layout, *test.device, nullptr));
    for (const auto& plan : plans) {
      SY_ASSIGN_OR_RETURN(auto instance, Instance::Bind(*plan, *memory, nullptr));
      instances.push_back(std::move(instance));
    }
    SY_ASSIGN_OR_RETURN(stream, test.device->NewStream());
    const float rate = 0.25f;
    SY_RETURN_IF_ERROR(memory->Upload("lr_table", &rate, sizeof rate));
    std::vector<float> w(5 * kProductColumns);
    for (size_t i = 0; i < w.size(); ++i) w[i] = std::sin(static_cast<float>(i + 1));
    SY_RETURN_IF_ERROR(memory->Upload("w", w.data(), w.size() * sizeof(float)));
    return plans.size() > 1 ? Run(1) : OkStatus();
  }
  Status Run(size_t plan) {
    SY_RETURN_IF_ERROR(instances[plan]->Run(stream));
    return test.device->Synchronize(stream);
  }
  Status Update(float x) {
    std::vector<float> values(kProductRows * kProductColumns, x);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= 1 + 0.01f * static_cast<float>(i);
    SY_RETURN_IF_ERROR(memory->Upload("x", values.data(), values.size() * sizeof(float)));
    return Run(0);
  }
  template <typename T>
  std::vector<T> Get(const std::string& name) {
    const Layout::Entry* const entry = layout.Find(name);
    EXPECT_NE(entry, nullptr) << name;
    std::vector<T> values(entry == nullptr ? 1 : entry->bytes / sizeof(T));
    if (entry != nullptr) {
      EXPECT_TRUE(memory->Download(name, values.data(), entry->bytes).ok()) << name;
    }
    return values;
  }
};

class MixedPrecisionOnDevice : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, MixedPrecisionOnDevice, ::testing::ValuesIn(TestDevices({"reference", "cpu", "null"})),
                         [](const auto& info) { return std::string(info.param); });

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_P(MixedPrecisionOnDevice, TheScaleMovesAsTheRecordedOnes) {
  std::ifstream file(std::string(SWITCHYARD_FIXTURES) + "/loss_scaler.json");
  const nlohmann::json recorded = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(recorded.contains("cases"));
  for (const nlohmann::json& c : recorded["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const nlohmann::json& given = c["options"];
    ProgramOptions options;
    options.loss_scale = {.dynamic = true,
                          .initial = given["initial"],
                          .growth_factor = given["growth_factor"],
                          .backoff_factor = given["backoff_factor"],
                          .growth_interval = given["growth_interval"],
                          .hysteresis = given["hysteresis"],
                          .minimum = given["minimum"],
                          .maximum = given["maximum"]};
    Products running(*test_);
    const Status made = running.Make(BuildProduct(options));
    ASSERT_TRUE(made.ok()) << Message(made);
    ASSERT_TRUE(running.memory->Upload("loss_scale", &options.loss_scale.initial, sizeof(float)).ok());
    int updates = 0;
    for (size_t i = 0; i < c["overflows"].size(); ++i) {
      const bool overflows = c["overflows"][i] != 0;
      const Status ran = running.Update(overflows ? kInfinity : 0.5f);
      ASSERT_TRUE(ran.ok()) << Message(ran);
      EXPECT_EQ(running.Get<float>("output/loss_scale_of_update")[0], c["scales"][i].get<float>()) << "update " << i;
      updates += !overflows;
      ASSERT_EQ(running.Get<float>("update")[0], updates) << "the schedule counts updates that were made";
    }
    EXPECT_EQ(running.Get<float>("loss_scale")[0], c["last_scale"].get<float>());
    EXPECT_EQ(running.Get<float>("loss_scale_growth")[0], c["last_growth"].get<float>());
    for (const float w : running.Get<float>("w")) EXPECT_TRUE(std::isfinite(w));
  }
}

// Two overflows lower the scale, then each one does, until it grows; at its minimum the flag says so.
TEST_P(MixedPrecisionOnDevice, HysteresisToleratesOverflowsUntilItIsUsedUp) {
  ProgramOptions options;
  options.loss_scale = {
      .dynamic = true, .initial = 8, .growth_interval = 3, .hysteresis = 2, .minimum = 2, .maximum = 8};
  Products running(*test_);
  const Status made = running.Make(BuildProduct(options));
  ASSERT_TRUE(made.ok()) << Message(made);
  ASSERT_TRUE(running.memory->Upload("loss_scale", &options.loss_scale.initial, sizeof(float)).ok());
  struct Expected {
    bool overflows;
    float next;
    float growth, hysteresis;
    float at_floor;
  };
  const Expected course[] = {{true, 8, 0, 1, 0},  {false, 8, 1, 1, 0}, {true, 4, 0, 2, 0},  {true, 2, 0, 2, 0},
                             {false, 2, 1, 2, 0}, {true, 2, 0, 2, 1},  {false, 2, 1, 2, 0}, {false, 2, 2, 2, 0},
                             {false, 4, 0, 0, 0}, {true, 4, 0, 1, 0},  {false, 4, 1, 1, 0}, {false, 4, 2, 1, 0},
                             {false, 8, 0, 0, 0}, {false, 8, 1, 0, 0}, {false, 8, 2, 0, 0}, {false, 8, 0, 0, 0}};
  for (size_t i = 0; i < std::size(course); ++i) {
    SCOPED_TRACE(i);
    const auto before = running.Get<float>("w");
    ASSERT_TRUE(running.Update(course[i].overflows ? kInfinity : 0.5f).ok());
    EXPECT_EQ(running.Get<float>("loss_scale")[0], course[i].next);
    EXPECT_EQ(running.Get<float>("loss_scale_growth")[0], course[i].growth);
    EXPECT_EQ(running.Get<float>("loss_scale_hysteresis")[0], course[i].hysteresis);
    EXPECT_EQ(running.Get<float>("output/loss_scale_at_floor")[0], course[i].at_floor);
    EXPECT_EQ(running.Get<float>("w") == before, course[i].overflows);
  }
}

// The norm that is clipped and shown is that of the gradients themselves, and only the scale makes them overflow.
TEST_P(MixedPrecisionOnDevice, GradientsThatOverflowInHalfLowerTheScaleUntilTheyFit) {
  ProgramOptions options;
  options.precision = DType::kF16;
  options.optimizer.clip = 0.1f;
  options.loss_scale = {.dynamic = true, .initial = 16777216, .hysteresis = 1};
  Products running(*test_);
  const Status made = running.Make(BuildProduct(options));
  ASSERT_TRUE(made.ok()) << Message(made);
  ASSERT_TRUE(running.memory->Upload("loss_scale", &options.loss_scale.initial, sizeof(float)).ok());
  const auto before = running.Get<float>("w");
  int left_out = 0;
  for (; left_out < 30; ++left_out) {
    ASSERT_TRUE(running.Update(0.5f).ok());
    if (std::isfinite(running.Get<float>("output/grad_norm")[0])) break;
    EXPECT_EQ(running.Get<float>("w"), before);
  }
  EXPECT_GT(left_out, 3);
  EXPECT_LT(left_out, 20);
  // 15 elements of about x / 5 each.
  EXPECT_NEAR(running.Get<float>("output/grad_norm")[0], 0.5f / 5 * 1.05f * std::sqrt(15.0f), 0.01f);
  EXPECT_NE(running.Get<float>("w"), before);
}

TEST_P(MixedPrecisionOnDevice, ACopyThatTheUpdateWritesIsTheParameterRounded) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(NameOf(half));
    ProgramOptions options;
    options.precision = half;
    Products running(*test_);
    const Status made = running.Make(BuildProduct(options));
    ASSERT_TRUE(made.ok()) << Message(made);
    auto before = running.Get<uint16_t>("half/w");
    for (const float x : {0.5f, kInfinity, -1.0f}) {
      ASSERT_TRUE(running.Update(x).ok());
      const auto written = running.Get<uint16_t>("half/w");
      EXPECT_EQ(written == before, x == kInfinity);
      ASSERT_TRUE(running.Run(1).ok());
      EXPECT_EQ(running.Get<uint16_t>("half/w"), written);
      before = written;
    }
  }
}

// One kernel, where the device has it, reads a weight once and writes it twice.
TEST(HalfCopies, AreWrittenByTheUpdateItself) {
  ProgramOptions options;
  options.precision = DType::kBF16;
  const Program program = BuildProduct(options);
  const NamedGraph* const plan = program.Find("update");
  ASSERT_NE(plan, nullptr);
  int updates = 0;
  for (const Node& node : plan->graph.nodes()) {
    if (node.op == "assign" && plan->graph.node(node.inputs[0].node).name == "half/w") {
      EXPECT_EQ(plan->graph.node(node.inputs[1].node).op, "optimizer_update");
      ++updates;
    }
  }
  EXPECT_EQ(updates, 1);
}

// The pass that makes casts of parameters state changes no bit of a step.
TEST_P(MixedPrecisionOnDevice, CopiesTrainBitForBitAsCastsInEveryStep) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    ProgramOptions options;
    options.precision = half;
    Program casts;
    casts.mesh = options.mesh;
    NamedGraph& plan = casts.plans.emplace_back(NamedGraph{"update", {}, {false, true}, true, {}, {}, {}, {}});
    nn::Context context(plan.graph, true, options.seed);
    plan.graph.Output("loss", Product().loss(context));
    for (const Pass& pass : Passes()) {
      if (std::string(pass.name) != "half_weights") pass.apply(casts, options);
    }
    Products copying(*test_), casting(*test_);
    ASSERT_TRUE(copying.Make(BuildProduct(options)).ok());
    ASSERT_TRUE(casting.Make(casts).ok());
    ASSERT_EQ(copying.plans.size(), 2u);
    ASSERT_EQ(casting.plans.size(), 1u);
    for (const float x : {0.5f, 2.0f, -1.0f}) {
      ASSERT_TRUE(copying.Update(x).ok());
      ASSERT_TRUE(casting.Update(x).ok());
      EXPECT_EQ(copying.Get<uint32_t>("output/loss"), casting.Get<uint32_t>("output/loss"));
      EXPECT_EQ(copying.Get<uint32_t>("w"), casting.Get<uint32_t>("w"));
    }
  }
}

}  // namespace
}  // namespace switchyard
