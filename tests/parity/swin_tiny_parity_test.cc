// Swin-T at 224 pixels against timm: logits, loss and gradients. The fixture holds norms and samples of the gradients.
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4;  // of a tensor's norm
constexpr const char* kTinyFile = "swin_tiny_parity.safetensors";

TEST(TinySwin, EqualsTheRecordedLogitsAndGradients) {
  const auto test = OpenOrNull("cpu", 2);
  if (test == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
  const ResolvedModel model = Resolved({.name = "swin_tiny", .own = {{"drop_path", 0}}});
  const auto run = StepRun::Make(*test, model, 2);
  ASSERT_NE(run, nullptr);
  run->SetParameters(FormulaWeights(model));
  const std::vector<float> images = Symmetric("images", 2 * 224 * 224 * 3);
  EXPECT_LE(RelativeError("logits", run->Logits(images), ReadFixture(kTinyFile).at("logits").values), kTolerance);
  const double loss = ReadFixture(kTinyFile).at("loss").values[0];
  EXPECT_NEAR(run->Step(images, ReadLabels(kTinyFile, "labels")), loss, kTolerance * loss);
  ExpectCloseToSamples(kTinyFile, model, run->GradientsOfFirstStep(), "grad", kTolerance);
}

}  // namespace
}  // namespace switchyard
