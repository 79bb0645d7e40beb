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

// Of a large tensor the fixture holds the norm and some elements: compares both, in timm's layout.
void ExpectCloseToSamples(const ResolvedModel& model, HostTensors found, const std::string& kind, double tolerance) {
  const HostTensors norms = ReadFixture(kBaseFile, kind + "_norm/"),
                    samples = ReadFixture(kBaseFile, kind + "_samples/");
  found = *ExportWeights(model, std::move(found), "timm");
  ASSERT_EQ(found.size(), norms.size());
  for (const auto& [name, tensor] : found) {
    const std::vector<float>& values = tensor.values;
    const double norm = norms.at(name).values[0];
    const bool skips = name.ends_with("attn.qkv.bias");
    const size_t third = values.size() / 3, stride = std::max<size_t>(1, values.size() / 64);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += skips && i / third == 1 ? 0 : std::pow(double{values[i]}, 2);
    EXPECT_NEAR(std::sqrt(sum), norm, tolerance * norm) << kind << " " << name;

    std::vector<float> ours, theirs;
    for (size_t s = 0; s < samples.at(name).values.size(); ++s) {
      if (skips && s * stride / third == 1) continue;
      ours.push_back(values[s * stride]);
      theirs.push_back(samples.at(name).values[s]);
    }
    EXPECT_LE(RelativeError(name + " samples", ours, theirs), tolerance) << kind << " " << name;
  }
}

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
    if (step == 0) ExpectCloseToSamples(model, run->GradientsOfFirstStep(), "grad", kTolerance);
  }
  ExpectCloseToSamples(model, run->Parameters(), "after", kAfterFiveSteps);
}

}  // namespace
}  // namespace switchyard
