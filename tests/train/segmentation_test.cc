// The task of segmentation on a model of one layer: what it computes against sums written out here, and what evaluation
// counts.
#include "core/train/segmentation.h"

#include <cmath>

#include "core/nn/layers.h"
#include "core/train/confusion.h"
#include "core/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kHeight = 3, kWidth = 4, kClasses = 3, kSamples = 5;

// Grey images whose brightness says the class; some pixels do not count.
struct Stripes : Dataset {
  std::string name() const override { return "stripes"; }
  int64_t size() const override { return kSamples; }
  Content content() const override { return Content::kMaskedImages; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return names; }
  Augmentation augmentation() const override { return Augmentation::kScaleCrop; }
  Status Read(int64_t index, Sample* sample) const override {
    sample->image.Reshape(kHeight, kWidth, 1);
    sample->mask.Reshape(kHeight, kWidth, 1);
    for (int i = 0; i < kHeight * kWidth; ++i) {
      const auto c = static_cast<uint8_t>((i + index) % kClasses);
      sample->image.bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(20 + 100 * c);
      sample->mask.bytes[static_cast<size_t>(i)] = (i * 7 + index) % 5 == 0 ? kIgnoredClass : c;
    }
    if (index == 4) std::fill(sample->mask.bytes.begin(), sample->mask.bytes.end(), kIgnoredClass);
    return OkStatus();
  }
  std::vector<std::string> names = {"dark", "grey", "bright"};
};

TrainConfig Config(const std::string& output) {
  TrainConfig c;
  c.batch_size = 2;
  c.epochs = 30;
  c.lr = 0.5f;
  c.weight_decay = c.clip = c.label_smoothing = 0;
  c.warmup = "0";
  c.warmup_lr = c.min_lr = 0;
  c.augmentation = "none";
  c.device = "reference";
  c.output = output;
  return c;
}

TrainableModel Model() {
  TrainableModel model;
  model.name = "pixels";
  model.architecture = {{"model", "pixels"}};
  model.input_shape = {kHeight, kWidth, 1};
  model.image_size = kWidth;
  model.channels = 1;
  model.classes = kClasses;
  model.build = [](nn::Context& context, const Value& images) {
    return nn::Linear(context, "layer", images, kClasses);
  };
  model.task = MakeSegmentation;
  return model;
}

using SegmentationTest = Scratch;

// Loss and matrix from the weights and the data, in doubles.
struct Expected {
  double loss = 0;  // summed over pixels
  std::vector<double> counts = std::vector<double>(kClasses * kClasses);
};

Expected Count(const HostTensors& parameters, const std::vector<int64_t>& samples) {
  Expected expected;
  const std::vector<float>& weight = parameters.at("layer.weight").values;
  const std::vector<float>& bias = parameters.at("layer.bias").values;
  Sample sample;
  for (const int64_t index : samples) {
    Stripes().Read(index, &sample).IgnoreError();
    for (size_t i = 0; i < sample.mask.bytes.size(); ++i) {
      if (sample.mask.bytes[i] == kIgnoredClass) continue;
      const double x = (sample.image.bytes[i] / 255.0 - 0.5) / 0.5;
      double logits[kClasses], sum = 0;
      int best = 0;
      for (int c = 0; c < kClasses; ++c) {
        logits[c] = x * weight[static_cast<size_t>(c)] + bias[static_cast<size_t>(c)];
        sum += std::exp(logits[c]);
        if (logits[c] > logits[best]) best = c;
      }
      const int truth = sample.mask.bytes[i];
      expected.loss += std::log(sum) - logits[truth];
      ++expected.counts[static_cast<size_t>(truth * kClasses + best)];
    }
  }
  return expected;
}

TEST_F(SegmentationTest, EvaluationCountsThePixelsThatCount) {
  auto world = World::Join({.device = "reference"});
  ASSERT_TRUE(world.ok()) << Message(world.status());
  const Stripes data;
  auto trainer = Trainer::Create(Config(In("runs")), Model(), data, data, **world);
  ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
  const auto result = (*trainer)->Evaluate(data);
  ASSERT_TRUE(result.ok()) << Message(result.status());
  const Expected expected = Count((*trainer)->Parameters().value(), {0, 1, 2, 3, 4});
  const double pixels = Total(expected.counts);
  EXPECT_EQ(result->count, kSamples);
  EXPECT_NEAR(result->metrics.at("loss"), expected.loss / pixels, 1e-5);
  EXPECT_DOUBLE_EQ(result->metrics.at("miou"), MeanIoU(expected.counts, kClasses));
  EXPECT_DOUBLE_EQ(result->metrics.at("pixel_accuracy"), Accuracy(expected.counts, kClasses));
  EXPECT_DOUBLE_EQ(result->metrics.at("dice"), MeanDice(expected.counts, kClasses));
  ASSERT_EQ(result->by_class.size(), static_cast<size_t>(kClasses));
  double counted = 0;
  for (const auto& of_class : result->by_class) counted += of_class["pixels"].get<double>();
  EXPECT_EQ(counted, pixels);
  EXPECT_GT(pixels, 30);
}

// One update over these samples.
auto StepOn(Trainer& trainer, const Dataset& data, const std::vector<int64_t>& batch) {
  const auto source = trainer.task().Samples(data, true).value();
  std::vector<std::vector<std::byte>> tensors;
  for (const SampleTensor& tensor : source->tensors())
    tensors.emplace_back(static_cast<size_t>(tensor.row.bytes()) * batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    std::vector<void*> rows;
    for (auto& tensor : tensors) rows.push_back(tensor.data() + i * tensor.size() / batch.size());
    EXPECT_TRUE(source->Fill(0, batch[i], rows).ok());
  }
  const std::vector<std::span<const std::byte>> spans(tensors.begin(), tensors.end());
  return trainer.Step(spans);
}

// One update's loss is the mean over the counted pixels of the batch, not the mean of the samples' means.
TEST_F(SegmentationTest, TheLossIsTheMeanOverCountedPixels) {
  auto world = World::Join({.device = "reference"});
  ASSERT_TRUE(world.ok());
  const Stripes data;
  auto trainer = Trainer::Create(Config(In("runs")), Model(), data, data, **world);
  ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
  for (const std::vector<int64_t>& batch : {std::vector<int64_t>{0, 1}, {2, 4}, {4, 4}}) {
    const Expected expected = Count((*trainer)->Parameters().value(), batch);
    const auto step = StepOn(**trainer, data, batch);
    ASSERT_TRUE(step.ok()) << Message(step.status());
    EXPECT_NEAR(step->loss, expected.loss / std::max(1.0, Total(expected.counts)), 1e-5) << batch[0];
  }
}

// Entropy and Dice over the pixels that count, in doubles: a·CE + b·(1 − mean over classes of 2Σ p·t / Σ (p + t)).
double DiceLoss(const HostTensors& parameters, const std::vector<int64_t>& samples, bool sigmoid, double a, double b) {
  const std::vector<float>& weight = parameters.at("layer.weight").values;
  const std::vector<float>& bias = parameters.at("layer.bias").values;
  double entropy = 0, places = 0, overlap[kClasses] = {}, size[kClasses] = {};
  Sample sample;
  for (const int64_t index : samples) {
    Stripes().Read(index, &sample).IgnoreError();
    for (size_t i = 0; i < sample.mask.bytes.size(); ++i) {
      const int truth = sample.mask.bytes[i];
      if (truth == kIgnoredClass) continue;
      const double x = (sample.image.bytes[i] / 255.0 - 0.5) / 0.5;
      double power[kClasses], sum = 0;
      for (size_t c = 0; c < kClasses; ++c) sum += power[c] = std::exp(x * weight[c] + bias[c]);
      for (int c = 0; c < kClasses; ++c) {
        const double p = sigmoid ? power[c] / (1 + power[c]) : power[c] / sum, t = c == truth;
        if (sigmoid) entropy -= t * std::log(p) + (1 - t) * std::log(1 - p);
        if (!sigmoid && c == truth) entropy -= std::log(p);
        overlap[c] += p * t;
        size[c] += p + t;
      }
      places += sigmoid ? kClasses : 1;
    }
  }
  double dice = 0;
  for (int c = 0; c < kClasses; ++c) dice += 2 * overlap[c] / std::max(size[c], 1e-5) / kClasses;
  return a * entropy / std::max(places, 1.0) + b * (1 - dice);
}

TEST_F(SegmentationTest, LossesWithADicePartEqualTheFormula) {
  auto world = World::Join({.device = "reference"});
  ASSERT_TRUE(world.ok());
  const Stripes data;
  for (const std::string loss : {"dice_ce", "bce_dice"}) {
    SCOPED_TRACE(loss);
    const bool sigmoid = loss == "bce_dice";
    TrainConfig config = Config(In(loss));
    config.loss = loss;
    config.entropy_weight = 0.75f;
    config.dice_weight = 2;
    auto trainer = Trainer::Create(config, Model(), data, data, **world);
    ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
    const HostTensors parameters = (*trainer)->Parameters().value();
    const auto result = (*trainer)->Evaluate(data);
    ASSERT_TRUE(result.ok()) << Message(result.status());
    EXPECT_NEAR(result->metrics.at("loss"), DiceLoss(parameters, {0, 1, 2, 3, 4}, sigmoid, 0.75, 2), 1e-5);
    EXPECT_DOUBLE_EQ(result->metrics.at("miou"), MeanIoU(Count(parameters, {0, 1, 2, 3, 4}).counts, kClasses));
    EXPECT_EQ(result->by_class.size(), static_cast<size_t>(kClasses));
    for (const std::vector<int64_t>& batch : {std::vector<int64_t>{0, 1}, {2, 4}}) {
      const double expected = DiceLoss((*trainer)->Parameters().value(), batch, sigmoid, 0.75, 2);
      const auto step = StepOn(**trainer, data, batch);
      ASSERT_TRUE(step.ok()) << Message(step.status());
      EXPECT_NEAR(step->loss, expected, 1e-5) << batch[0];
    }
  }
  TrainConfig smoothed = Config(In("runs"));
  smoothed.loss = "dice_ce";
  smoothed.label_smoothing = 0.1f;
  EXPECT_THAT(Message(Trainer::Create(smoothed, Model(), data, data, **world).status()),
              HasSubstr("--label_smoothing=0.1 with --loss=dice_ce"));
}

TEST_F(SegmentationTest, LearnsAndIsKeptWithItsClasses) {
  auto world = World::Join({.device = "reference"});
  ASSERT_TRUE(world.ok());
  Stripes data;
  TrainConfig config = Config(In("runs"));
  auto trainer = Trainer::Create(config, Model(), data, data, **world);
  ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
  const auto result = (*trainer)->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_GT(*result->best, 0.6) << "two of three classes can be told apart by one threshold";
  std::vector<std::vector<float>> scores;
  ASSERT_TRUE((*trainer)
                  ->Predict(data,
                            [&](int64_t index, const Prediction& prediction) {
                              EXPECT_EQ(index, static_cast<int64_t>(scores.size()));
                              scores.push_back(prediction.scores);
                              return OkStatus();
                            })
                  .ok());
  ASSERT_EQ(scores.size(), static_cast<size_t>(kSamples));
  ASSERT_EQ(scores[0].size(), static_cast<size_t>(kHeight * kWidth * kClasses));
  EXPECT_EQ(std::max_element(&scores[0][0], &scores[0][3]) - &scores[0][0], 0) << "dark";
  EXPECT_EQ(std::max_element(&scores[0][6], &scores[0][9]) - &scores[0][6], 2) << "bright";

  config.resume = result->run_folder;
  data.names = {"dark", "grey", "white"};
  trainer->reset();
  EXPECT_THAT(Message(Trainer::Create(config, Model(), data, data, **world).status()),
              testing::AllOf(HasSubstr("bright"), HasSubstr("white")));
}

TEST(Confusion, NumbersOfASmallMatrix) {
  // 3 of class 0 right, 1 called 1; 2 of class 1 right; class 2 is nowhere.
  const std::vector<double> counts = {3, 1, 0, 0, 2, 0, 0, 0, 0};
  EXPECT_EQ(IoU(counts, 3, 0), 3.0 / 4);
  EXPECT_EQ(IoU(counts, 3, 1), 2.0 / 3);
  EXPECT_EQ(IoU(counts, 3, 2), std::nullopt);
  EXPECT_EQ(Dice(counts, 3, 1), 4.0 / 5);
  EXPECT_EQ(Recall(counts, 3, 0), 3.0 / 4);
  EXPECT_DOUBLE_EQ(MeanIoU(counts, 3), (3.0 / 4 + 2.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(MeanDice(counts, 3), (6.0 / 7 + 4.0 / 5) / 2);
  EXPECT_DOUBLE_EQ(Accuracy(counts, 3), 5.0 / 6);
  EXPECT_EQ(Accuracy(std::vector<double>(4), 2), 0);
  // A class that is predicted but never there has an IoU of 0, which counts.
  EXPECT_EQ(IoU(std::vector<double>{1, 1, 0, 0}, 2, 1), 0.0);
  EXPECT_EQ(Recall(std::vector<double>{1, 1, 0, 0}, 2, 1), std::nullopt);
}

}  // namespace
}  // namespace switchyard
