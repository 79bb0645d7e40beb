// Two backends in one process: the same graph, weights and batches on cpu and on opencl, step by step.
#include <cmath>

#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

class OpenClBesideCpu : public testing::Test {
 protected:
  // Steps on both; losses, then parameters and logits are compared.
  static void ExpectEqualTraining(const ModelOptions& options, int64_t batch, int steps) {
    const auto cpu = OpenOrNull("cpu", 2), opencl = OpenOrNull("opencl", 2);
    if (cpu == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
    ASSERT_NE(opencl, nullptr);
    const ResolvedModel model = Resolved(options);
    const auto expected = StepRun::Make(*cpu, model, batch), found = StepRun::Make(*opencl, model, batch);
    ASSERT_NE(expected, nullptr);
    ASSERT_NE(found, nullptr);
    for (StepRun* run : {expected.get(), found.get()}) run->SetParameters(FormulaWeights(model));
    const auto size = model.image_size;
    std::vector<float> images;
    for (int step = 0; step < steps; ++step) {
      images = Symmetric("images " + std::to_string(step), batch * size * size * model.channels);
      std::vector<int32_t> labels;
      for (int64_t i = 0; i < batch; ++i) labels.push_back(static_cast<int32_t>((i * 7 + step) % model.classes));
      const double loss = expected->Step(images, labels);
      EXPECT_NEAR(found->Step(images, labels), loss, 1e-4 * std::fabs(loss)) << "step " << step;
    }
    const std::vector<float> logits = found->Logits(images);
    EXPECT_LT(RelativeError("logits", logits, expected->Logits(images)), 1e-3);
    const HostTensors parameters = found->Parameters();
    for (const auto& [name, tensor] : expected->Parameters()) {
      const auto other = parameters.find(name);
      ASSERT_NE(other, parameters.end()) << name;
      EXPECT_LT(RelativeError(name, other->second.values, tensor.values), 2e-3) << name;
    }
  }
};

TEST_F(OpenClBesideCpu, TrainsAnMlpAlike) { ExpectEqualTraining({.name = "mlp", .own = {{"width", 64}}}, 16, 5); }

TEST_F(OpenClBesideCpu, TrainsAVitAlike) { ExpectEqualTraining({.name = "vit_micro"}, 8, 5); }

TEST_F(OpenClBesideCpu, TrainsAVitTinyAlike) {
  ExpectEqualTraining({.name = "vit_tiny", .image_size = 64, .classes = 10, .own = {{"depth", 3}}}, 4, 3);
}

}  // namespace
}  // namespace switchyard
