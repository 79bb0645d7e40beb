// What evaluation of a classifier counts.
#include "core/train/classification.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(Classification, CountsTheLossAndTheSamplesWhoseClassIsAmongTheHighest) {
  TrainableModel model;
  model.image_size = 4;
  model.classes = 7;
  const auto task = Classification::Create(TrainConfig(), model, DType::kF32);
  ASSERT_TRUE(task.ok()) << Message(task.status());
  std::vector<double> sums(static_cast<size_t>((*task)->sums()));
  const struct {
    float loss;
    int32_t above;  // classes that score above the true one
  } samples[] = {{0.5f, 0}, {1, 4}, {1.5f, 5}, {3, 1}};
  for (const auto& sample : samples) {
    const void* const rows[] = {&sample.loss, &sample.above};
    (*task)->Count(rows, sums);
  }
  EXPECT_THAT((*task)->Metrics(sums, 4), testing::ElementsAre(1.5, 0.25, 0.75));
  EXPECT_EQ((*task)->metrics().size(), 3u);
}

}  // namespace
}  // namespace switchyard
