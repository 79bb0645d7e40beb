// Learning rates of a run that goes on with another global batch.
#include "core/train/timetable.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

// 40 epochs of 20 updates, the first 20 of them warm-up; batches before the change were twice as large.
StatusOr<Timetable> GoneOnAfter(int64_t epochs) {
  TrainConfig config;
  config.batch_size = 64;
  config.epochs = 40;
  config.schedule = "multistep";
  config.milestones = {"5000"};
  config.warmup = "20e";
  config.warmup_lr = 0;
  config.lr = 1;
  config.scale_lr = "none";
  SY_ASSIGN_OR_RETURN(Timetable table, Timetable::Of(config, 1280, 1));
  RunPosition position;
  position.data_step = epochs * 10;
  position.epoch = epochs;
  table.GoOnFrom(position, 1);
  return table;
}

TEST(TimetableTest, AWarmUpThatIsOverStaysOver) {
  const auto table = GoneOnAfter(30);
  ASSERT_TRUE(table.ok()) << Message(table.status());
  EXPECT_EQ(table->updates, 300 + 200);
  for (int64_t i = 300; i < table->updates; ++i) ASSERT_EQ(table->rates[static_cast<size_t>(i)], 1) << i;
}

TEST(TimetableTest, AWarmUpThatIsNotOverEndsAfterItsEpochs) {
  const auto table = GoneOnAfter(10);
  ASSERT_TRUE(table.ok()) << Message(table.status());
  EXPECT_LT(table->rates[100], 1);
  EXPECT_LT(table->rates[298], 1);
  EXPECT_EQ(table->rates[300], 1);
}

}  // namespace
}  // namespace switchyard
