// ViT-B/16 at 224 pixels against PyTorch: logits, losses, gradients, five AdamW steps. The fixture holds norms and
// samples of the large tensors.
#include <cmath>

#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4, kAfterFiveSteps = 1e-3;  // of a tensor's norm
constexpr const char* kBaseFile = "vit_base_parity.safetensors";

TEST(BaseVit, EqualsTheRecordedLogitsGradientsAndFiveSteps) {
  const auto test = OpenOrNull("cpu", 2);
  if (test == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
  const ResolvedModel model = Resolved({.name = "vit_base"});
  const auto run = StepRun::Make(*test, model, 2);
  ASSERT_NE(run, nullptr);
  run->SetParameters(FormulaWeights(model));
  const std::vector<float> images = Symmetric("images", 2 * 224 * 224 * 3);
  const std::vector<int32_t> labels = ReadLabels(kBaseFile, "labels");
  const std::vector<float> losses = ReadFixture(kBaseFile).at("losses").values;
  EXPECT_LE(RelativeError("logits", run->Logits(images), ReadFixture(kBaseFile).at("logits").values), kTolerance);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(run->Step(images, labels), losses[step], kAfterFiveSteps) << step;
    if (step == 0) ExpectCloseToSamples(kBaseFile, model, run->GradientsOfFirstStep(), "grad", kTolerance);
  }
  ExpectCloseToSamples(kBaseFile, model, run->Parameters(), "after", kAfterFiveSteps);
}

}  // namespace
}  // namespace switchyard
