#include "core/train/batch_division.h"

#include "gmock/gmock.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Divided(int64_t global, int world, const BatchRequest& given, int64_t most) {
  const auto division = DivideGlobalBatch(global, world, given, most);
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

TEST(BatchDivision, GivesMultiplesOfAUnitWhereSomeDivideTheShare) {
  const auto divided = [](int64_t global, int64_t most, int64_t unit) {
    const auto division = DivideGlobalBatch(global, 1, {}, most, unit);
    return division.ok() ? fmt::format("{} x {}", division->batch_size, division->accumulation) : "";
  };
  EXPECT_EQ(divided(30, 15, 1), "15 x 2");
  EXPECT_EQ(divided(30, 15, 2), "10 x 3");
  EXPECT_EQ(divided(30, 1, 2), "2 x 15") << "one sample is not enough";
  EXPECT_EQ(divided(15, 15, 2), "15 x 1") << "none";
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
  EXPECT_THAT(Divided(24, 5, {}, 12), AllOf(HasSubstr("24 images cannot be divided over 5 ranks"),
                                            HasSubstr("1, 2, 3, 4, 6, 8, 12, 24 ranks"), HasSubstr("_size=25")));
  EXPECT_THAT(Divided(24, 2, {.batch_size = 5}, 12),
              AllOf(HasSubstr("--batch_size=5 on 2 ranks"), HasSubstr(": 1, 2, 3, 4, 6, 12;"), HasSubstr("_size=10")));
  EXPECT_THAT(Divided(24, 2, {.accumulation = 7}, 12), HasSubstr("--accumulation=7 on 2 ranks"));
  EXPECT_THAT(Divided(24, 1, {.batch_size = 4, .accumulation = 3}, 12),
              AllOf(HasSubstr("--batch_size=4 --accumulation=3 on 1 rank "), HasSubstr("--global_batch_size=12")));
  EXPECT_FALSE(DivideGlobalBatch(0, 1, {}, 1).ok());
  EXPECT_FALSE(DivideGlobalBatch(4, 1, {.batch_size = -1}, 1).ok());
}

TEST(BatchDivision, NamesTheGlobalBatchesNextToTheOneThatDoesNotFit) {
  EXPECT_EQ(GlobalBatchesThatFit(36, 1, 24), "18 or 36");
  EXPECT_EQ(GlobalBatchesThatFit(36, 4, 24), "12 or 36");
  EXPECT_EQ(GlobalBatchesThatFit(36, 1, 100), "36");
  EXPECT_EQ(GlobalBatchesThatFit(36, 5, 15), "");
}

}  // namespace
}  // namespace switchyard
