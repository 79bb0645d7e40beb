// The 3-D U-Net against what PyTorch computed for the same weights and volumes: logits of training with the batch's
// statistics and of evaluation with the running ones, loss, the gradient of every parameter, and the running statistics
// after the step (tests/fixtures/README.md).
#include <cmath>

#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4;  // of a tensor's norm
constexpr int64_t kBatch = 2;

// Mean binary cross entropy with logits: max(x, 0) − x·t + log(1 + exp(−|x|)). Targets are u > 0 of the name `targets`.
Value Loss(const Value& logits, const Value& targets) {
  const Value positive = ops::Activation(logits, SY_ACTIVATION_RELU);
  const Value tail =
      ops::Unary(SY_PW_LOG, ops::AddScalar(ops::Unary(SY_PW_EXP, ops::Scale(ops::Unary(SY_PW_ABS, logits), -1)), 1));
  return ops::Mean(ops::Add(ops::Sub(positive, ops::Mul(logits, targets)), tail));
}

Workload WorkloadOf(const ResolvedModel& model) {
  Shape shape = InputShape(model);
  shape.insert(shape.begin(), kBatch);
  const auto logits = [model, shape](nn::Context& context) {
    return BuildModel(model, context, context.graph.Input("images", {DType::kF32, shape}, {}));
  };
  return {model.info->name,
          [logits](nn::Context& context) {
            const Value y = logits(context);
            context.graph.Output("logits", y);
            std::vector<float> targets = Symmetric("targets", y.type().elements());
            for (float& target : targets) target = target > 0 ? 1 : 0;
            // Labels are what StepRun uploads; nothing is read of these.
            const Value labels = context.graph.Input("labels", {DType::kI32, {1}}, {});
            const Value nothing = ops::Scale(ops::Cast(labels, DType::kF32), 0);
            return ops::Add(Loss(y, context.graph.Constant("targets", y.type(), targets)), nothing);
          },
          [logits](nn::Context& context) { context.graph.Output("eval_logits", logits(context)); }};
}

class UNet3dParity : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(UNet3dParity, EqualsPyTorchInTrainingAndEvaluation) {
  const auto& [plugin, up] = GetParam();
  const auto test = OpenOrNull(plugin, 2);
  if (test == nullptr) GTEST_SKIP() << "the " << plugin << " plugin is not in this build";
  const HostTensors recorded = ReadFixture(fmt::format("unet3d_{}_parity.safetensors", up));
  const ResolvedModel model =
      Resolved({.name = "unet3d", .classes = 2, .own = {{"patch_size", {"8", "16", "8"}}, {"width", 4}, {"up", up}}});
  const auto run = StepRun::Make(*test, WorkloadOf(model));
  ASSERT_NE(run, nullptr);
  run->SetParameters(FormulaWeights(model, "torch"));
  size_t compared = 0;
  // Of a large tensor the fixture holds the norm and some elements.
  const auto expect = [&](const std::string& kind, const std::string& rest, const std::vector<float>& values) {
    const std::string name = rest.empty() ? kind : kind + "/" + rest;
    ++compared;
    if (recorded.contains(name)) {
      EXPECT_LE(RelativeError(name, values, recorded.at(name).values), kTolerance) << name;
      return;
    }
    ASSERT_TRUE(recorded.contains(kind + "_norm/" + rest)) << name;
    ++compared;
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    const double norm = recorded.at(kind + "_norm/" + rest).values[0];
    EXPECT_NEAR(std::sqrt(squares), norm, kTolerance * norm) << name;
    const std::vector<float>& samples = recorded.at(kind + "_samples/" + rest).values;
    std::vector<float> ours;
    for (size_t i = 0; i < samples.size(); ++i) ours.push_back(values.at(i * (values.size() / samples.size())));
    EXPECT_LE(RelativeError(name, ours, samples), kTolerance) << name << " (samples)";
  };
  const std::vector<float> volumes = Symmetric("images", kBatch * 8 * 16 * 8);
  expect("eval_logits", "", run->Logits(volumes));
  const double loss = recorded.at("loss").values[0];
  EXPECT_NEAR(run->Step(volumes, {0}), loss, kTolerance * loss);
  expect("logits", "", run->Get("output/logits"));
  const HostTensors gradients = *ExportWeights(model, run->GradientsOfFirstStep(), "torch");
  for (const auto& [name, tensor] : gradients) expect("grad", name, tensor.values);

  const HostTensors after = run->Parameters();
  for (const auto& [name, tensor] : after) {
    if (name.ends_with("running_mean") || name.ends_with("running_var")) expect("state", name, tensor.values);
  }
  EXPECT_EQ(compared + 1, recorded.size());  // the loss, too
}

INSTANTIATE_TEST_SUITE_P(Plugins, UNet3dParity,
                         ::testing::Combine(::testing::ValuesIn(TestDevices({"cpu", "reference"})),
                                            ::testing::Values("trilinear", "transposed")),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace switchyard
