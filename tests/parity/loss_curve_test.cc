// Fifty (twenty for CIFAR-10) AdamW steps on real images, loss by loss, against PyTorch's recorded ones.
#include <cmath>
#include <fstream>

#include "core/base/environment.h"
#include "core/data/dataset.h"
#include "core/data/transforms.h"
#include "nlohmann/json.hpp"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

// Batch `step` of the records in file order, (x/255 − 0.5)/0.5.
void ReadBatch(const Dataset& data, const Transform& transform, int64_t step, int64_t batch, std::vector<float>* images,
               std::vector<int32_t>* labels) {
  images->resize(static_cast<size_t>(batch * transform.elements()));
  labels->resize(static_cast<size_t>(batch));
  Sample sample;
  for (int64_t i = 0; i < batch; ++i) {
    const Status status = data.Read(step * batch + i, &sample);
    ASSERT_TRUE(status.ok()) << Message(status);
    transform.Apply(0, step * batch + i, &sample.image, images->data() + i * transform.elements());
    (*labels)[static_cast<size_t>(i)] = sample.label;
  }
}

void ExpectRecordedLosses(const std::string& file, const std::string& dataset, const ModelOptions& options) {
  if (!Environment("SWITCHYARD_DATA"))
    GTEST_SKIP() << "SWITCHYARD_DATA does not name the folder that holds " << dataset;
  const auto test = OpenOrNull("cpu");
  if (test == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
  std::ifstream stream(std::string(SWITCHYARD_FIXTURES) + "/" + file);
  const nlohmann::json recorded = nlohmann::json::parse(stream);
  const int64_t batch = recorded["batch"];
  DatasetOptions data_options;
  data_options.name = dataset;
  data_options.download = false;
  const auto data = OpenDataset(data_options, Split::kTrain);
  ASSERT_TRUE(data.ok()) << Message(data.status());

  const ResolvedModel model = Resolved(options);
  TransformOptions transform_options;
  transform_options.evaluation.image_size = transform_options.evaluation.resize = model.image_size;
  transform_options.evaluation.channels = model.channels;
  transform_options.augmentation = Augmentation::kNone;
  const auto transform = Transform::Create(transform_options);
  ASSERT_TRUE(transform.ok()) << Message(transform.status());
  const auto run = StepRun::Make(*test, model, batch);
  ASSERT_NE(run, nullptr);
  run->SetParameters(FormulaWeights(model));
  std::vector<float> images;
  std::vector<int32_t> labels;
  int64_t step = 0;
  for (const double expected : recorded["losses"]) {
    ReadBatch(**data, *transform, step, batch, &images, &labels);
    EXPECT_NEAR(run->Step(images, labels), expected, 1e-3) << "step " << step;
    ++step;
  }
}

TEST(LossCurve, OfVitMicroOnFashionMnistIsPyTorchs) {
  ExpectRecordedLosses("vit_micro_50_losses.json", "fashion-mnist", {.name = "vit_micro"});
}

TEST(LossCurve, OfAnMlpOnFashionMnistIsPyTorchs) {
  ExpectRecordedLosses("mlp_50_losses.json", "fashion-mnist", {.name = "mlp", .own = {{"width", 128}}});
}

TEST(LossCurve, OfASmallVitOnCifar10IsPyTorchs) {
  ExpectRecordedLosses("vit_cifar10_20_losses.json", "cifar10",
                       {.name = "vit_tiny",
                        .image_size = 32,
                        .classes = 10,
                        .own = {{"patch", 4}, {"width", 96}, {"depth", 4}, {"heads", 4}}});
}

}  // namespace
}  // namespace switchyard
