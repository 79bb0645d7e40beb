#include "core/train/batch_division.h"

#include "gmock/gmock.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Divided(int64_t global, int world, const BatchRequest& given, int64_t most, int64_t unit = 1) {
  const auto division = DivideGlobalBatch(global, world, given, most, unit);
  if (!division.ok()) return Message(division.status());
  return fmt::format("{} x {}", division->batch_size, division->accumulation);
}

TEST(BatchDivision, KeepsTheGlobalBatchOnAnyNumberOfRanksThatDividesIt) {
  for (int64_t global = 1; global <= 64; ++global) {
    for (int world = 1; world <= 8; ++world) {
      for (int64_t most = 1; most <= 16; ++most) {
        const auto division = DivideGlobalBatch(global, world, {}, most);
        ASSERT_EQ(division.ok(), global % world == 0) << global << " over " << world;
        if (!division.ok()) continue;
        ASSERT_EQ(division->batch_size * world * division->accumulation, global);
        ASSERT_LE(division->batch_size, most) << "what fitted into memory";
        for (int64_t larger = division->batch_size + 1; larger <= most; ++larger)
          ASSERT_NE(global / world % larger, 0) << larger << " would do";
      }
    }
  }
}

TEST(BatchDivision, GivesMultiplesOfAUnit) {
  EXPECT_EQ(Divided(30, 1, {}, 15, 1), "15 x 2");
  EXPECT_EQ(Divided(30, 1, {}, 15, 2), "10 x 3");
  EXPECT_EQ(Divided(30, 1, {}, 1, 2), "2 x 15") << "one sample is not enough";
  EXPECT_EQ(Divided(30, 1, {.batch_size = 6}, 15, 2), "6 x 5");
  EXPECT_EQ(Divided(30, 1, {.accumulation = 5}, 15, 2), "6 x 5");
}

// Whatever a refusal names can be had, and everything that can be had is named.
TEST(BatchDivision, RefusalsNameWhatGivesMultiplesOfAUnit) {
  EXPECT_THAT(Divided(4, 4, {}, 4, 2), AllOf(HasSubstr("over 4 data-parallel ranks in batches that are multiples of 2"),
                                             HasSubstr("it can over 1 or 2 of them, or --global_batch_size=8 ")));
  EXPECT_THAT(Divided(3, 1, {}, 3, 2), AllOf(HasSubstr("over 1 data-parallel rank in batches"),
                                             HasSubstr("nor over any other number of them; --sp=0, or --mixup=0"),
                                             HasSubstr("--global_batch_size=4 ")));
  EXPECT_THAT(Divided(24, 2, {.batch_size = 3}, 12, 2),
              AllOf(HasSubstr("by --batch_size=2, 4, 6 or 12"), Not(HasSubstr("--global_batch_size"))));
  EXPECT_THAT(Divided(24, 2, {.accumulation = 12}, 12, 2),
              AllOf(HasSubstr("by --accumulation=1, 2, 3 or 6;"), HasSubstr("--global_batch_size=48 ")));
  for (const int world : {1, 2}) EXPECT_EQ(Divided(4, world, {}, 4, 2), fmt::format("{} x 1", 4 / world));
  for (const int64_t batch : {2, 4, 6, 12})
    EXPECT_EQ(Divided(24, 2, {.batch_size = batch}, 12, 2), fmt::format("{} x {}", batch, 12 / batch));
  for (const int64_t rounds : {1, 2, 3, 6})
    EXPECT_EQ(Divided(24, 2, {.accumulation = rounds}, 12, 2), fmt::format("{} x {}", 12 / rounds, rounds));
  EXPECT_EQ(Divided(48, 2, {.accumulation = 12}, 12, 2), "2 x 12");
}

TEST(BatchDivision, TheSameRanksGetTheSameDivision) {
  for (const int64_t batch : {1, 6, 7, 12}) {
    for (const int64_t accumulation : {1, 2, 5}) {
      for (const int world : {1, 2, 3}) {
        EXPECT_EQ(Divided(batch * world * accumulation, world, {}, batch), fmt::format("{} x {}", batch, accumulation));
      }
    }
  }
}

TEST(BatchDivision, WhatIsGivenStays) {
  EXPECT_EQ(Divided(24, 2, {.batch_size = 3}, 12), "3 x 4");
  EXPECT_EQ(Divided(24, 2, {.accumulation = 3}, 12), "4 x 3");
  EXPECT_EQ(Divided(24, 2, {.batch_size = 12, .accumulation = 1}, 4), "12 x 1");
}

TEST(BatchDivision, RefusalsSayWhatWouldDo) {
  EXPECT_THAT(Divided(24, 5, {}, 12), AllOf(HasSubstr("24 images cannot be divided over 5 data-parallel ranks"),
                                            HasSubstr("1, 2, 3, 4, 6, 8, 12 or 24 of them"), HasSubstr("_size=25")));
  EXPECT_THAT(Divided(24, 2, {.batch_size = 5}, 12),
              AllOf(HasSubstr("--batch_size=5 on 2 ranks"), HasSubstr("=1, 2, 3, 4, 6 or 12;"), HasSubstr("_size=10")));
  EXPECT_THAT(Divided(24, 2, {.accumulation = 7}, 12),
              AllOf(HasSubstr("--accumulation=7 on 2 ranks"), HasSubstr("--global_batch_size=28 changes")));
  EXPECT_THAT(Divided(24, 1, {.batch_size = 4, .accumulation = 3}, 12),
              AllOf(HasSubstr("--batch_size=4 --accumulation=3 on 1 rank "),
                    HasSubstr("24 alone, or --accumulation=1,"), HasSubstr("--global_batch_size=12")));
  EXPECT_FALSE(DivideGlobalBatch(0, 1, {}, 1).ok());
  EXPECT_FALSE(DivideGlobalBatch(4, 1, {.batch_size = -1}, 1).ok());
}

TEST(BatchDivision, StagesTakeAsManyMicroBatchesAndInChunksMultiples) {
  EXPECT_THAT(MicroBatchesOfStages(3, 1, 2, 1), ElementsAre(3));
  EXPECT_THAT(MicroBatchesOfStages(12, 1, 3, 1), ElementsAre(3, 4, 6, 12));
  EXPECT_THAT(MicroBatchesOfStages(12, 1, 3, 2), ElementsAre(3, 6, 12));
  EXPECT_THAT(MicroBatchesOfStages(12, 2, 3, 1), ElementsAre(3, 6));
  EXPECT_THAT(MicroBatchesOfStages(2, 2, 2, 1), IsEmpty());
}

TEST(BatchDivision, NamesTheGlobalBatchesNextToTheOneThatDoesNotFit) {
  EXPECT_EQ(GlobalBatchesThatFit(36, 1, 24), "18 or 36");
  EXPECT_EQ(GlobalBatchesThatFit(36, 4, 24), "12 or 36");
  EXPECT_EQ(GlobalBatchesThatFit(36, 1, 100), "36");
  EXPECT_EQ(GlobalBatchesThatFit(36, 5, 15), "");
}

}  // namespace
}  // namespace switchyard
