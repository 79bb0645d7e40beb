// Volumes put together from windows, and what is counted of them.
#include "core/train/sliding_window.h"

#include <cmath>

#include "core/data/mask_picture.h"
#include "core/train/confusion.h"
#include "core/train/volume_segmentation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

TEST(SlidingWindow, AveragesWhereWindowsOverlap) {
  SlidingWindow window({1, 1, 3}, 2, false);
  window.Start({1, 1, 4});
  const float first[] = {1, 10, 2, 20, 3, 30}, second[] = {4, 40, 5, 50, 6, 60};
  window.Add({0, 0, 0}, first);
  window.Add({0, 0, 1}, second);
  EXPECT_THAT(window.Means(), ElementsAre(1, 10, 3, 30, 4, 40, 6, 60));
  // The next volume is smaller than the window, which lies around it.
  window.Start({1, 1, 1});
  window.Add({0, 0, -1}, first);
  EXPECT_THAT(window.Means(), ElementsAre(2, 20));
}

TEST(SlidingWindow, WeighsTheMiddleMoreWhereItIsGaussian) {
  SlidingWindow window({1, 1, 8}, 1, true);
  window.Start({1, 1, 9});
  const std::vector<float> zeros(8, 0), ones(8, 1);
  window.Add({0, 0, 0}, zeros.data());
  window.Add({0, 0, 1}, ones.data());
  const std::vector<float> weights = WindowWeights({1, 1, 8}, true);
  EXPECT_THAT(window.Means()[4], FloatNear(weights[3] / (weights[3] + weights[4]), 1e-6));
  EXPECT_THAT(window.Means()[2], FloatNear(weights[1] / (weights[1] + weights[2]), 1e-6));
  EXPECT_EQ(window.Means()[0], 0);
  EXPECT_EQ(window.Means()[8], 1);
}

TEST(SegmentationSums, OfOneLogitTellForegroundFromBackground) {
  const SegmentationSums counts{1, true};
  std::vector<double> sums(static_cast<size_t>(counts.count()));
  const float logits[] = {2, -1, 0.5f, 9};
  const uint8_t labels[] = {2, 1, 0, kIgnoredClass};
  counts.Add(logits, labels, sums);
  EXPECT_THAT(counts.Confusion(sums), ElementsAre(0, 1, 1, 1));  // background: one taken for foreground
  EXPECT_EQ(*Dice(counts.Confusion(sums), 2, 1), 0.5);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const double p[] = {sigmoid(2), sigmoid(-1), sigmoid(0.5)};
  const double entropy = -(std::log(p[0]) + std::log(p[1]) + std::log(1 - p[2])) / 3;
  const double dice = 1 - 2 * (p[0] + p[1]) / (p[0] + p[1] + p[2] + 2);
  EXPECT_NEAR(counts.Loss(sums, 0.3, 0.7), 0.3 * entropy + 0.7 * dice, 1e-12);
}

TEST(SegmentationSums, OfSeveralLogitsAreOfTheirSoftmax) {
  const SegmentationSums counts{2, false};
  std::vector<double> sums(static_cast<size_t>(counts.count()));
  const float logits[] = {1, 1, 3, 1};
  const uint8_t labels[] = {1, 0};
  counts.Add(logits, labels, sums);
  EXPECT_THAT(counts.Confusion(sums), ElementsAre(1, 0, 1, 0));
  const double sure = 1 / (1 + std::exp(-2.0));
  const double dice = 1 - (2 * sure / (0.5 + sure + 1) + 2 * 0.5 / (0.5 + 1 - sure + 1)) / 2;
  EXPECT_NEAR(counts.Loss(sums, 1, 0), -(std::log(0.5) + std::log(sure)) / 2, 1e-12);
  EXPECT_NEAR(counts.Loss(sums, 0, 1), dice, 1e-12);
}

// The window is (4, 2, 3), so that its middle slice is the third: voxels 12 to 17.
TEST(VolumePictures, AreTheMiddleSliceWithItsMasks) {
  for (const int classes : {1, 3}) {
    TrainableModel model;
    model.name = "voxels";
    model.input_shape = {4, 2, 3, 1};
    model.classes = classes;
    const auto task = VolumeSegmentation::Create(TrainConfig(), model);
    ASSERT_TRUE(task.ok()) << Message(task.status());
    std::vector<float> voxels(24, 50);
    const std::vector<float> slice = {-1, 0, 1, 3, 2, -1};
    std::copy(slice.begin(), slice.end(), voxels.begin() + 12);
    std::vector<int32_t> labels(24, 1);
    const std::vector<int32_t> labels_of_slice = {0, 2, -1, 1, 0, 0};
    std::copy(labels_of_slice.begin(), labels_of_slice.end(), labels.begin() + 12);
    Prediction prediction;
    for (int i = 0; i < 24; ++i) prediction.classes.push_back(i == 13 ? static_cast<uint8_t>(classes == 1 ? 1 : 2) : 0);
    const auto example = (*task)->Show(std::vector<const void*>{voxels.data(), labels.data()}, prediction, {});
    ASSERT_TRUE(example.has_value());
    for (const Raster* picture : {&example->image, &example->truth_mask, &example->predicted_mask}) {
      EXPECT_EQ(picture->width, 3);
      EXPECT_EQ(picture->height, 2);
      ASSERT_EQ(picture->rgb.size(), 18u);
    }
    const auto color = [](const Raster& picture, int i) {
      const uint8_t* const rgb = &picture.rgb[static_cast<size_t>(3 * i)];
      return std::array<uint8_t, 3>{rgb[0], rgb[1], rgb[2]};
    };
    for (int i = 0; i < 6; ++i) {
      const int grey = static_cast<int>(255 * (slice[static_cast<size_t>(i)] + 1) / 4);
      EXPECT_NEAR(color(example->image, i)[0], grey, 1);
      EXPECT_EQ(color(example->image, i)[0], color(example->image, i)[2]) << "grey";
      const int label = labels_of_slice[static_cast<size_t>(i)], shown = classes == 1 ? std::min(label, 1) : label;
      EXPECT_EQ(color(example->truth_mask, i), ClassColor(label < 0 ? kIgnoredClass : static_cast<uint8_t>(shown)));
      EXPECT_EQ(color(example->predicted_mask, i),
                ClassColor(static_cast<uint8_t>(i == 1 ? (classes == 1 ? 1 : 2) : 0)));
    }
  }
}

}  // namespace
}  // namespace switchyard
