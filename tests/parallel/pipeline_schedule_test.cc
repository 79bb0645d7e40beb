// The order of a pipeline's steps, the cut of a model into stages, and the time that stages wait.
#include "core/parallel/pipeline_schedule.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(int stage, int stages, int micro_batches) {
  std::string text;
  for (const StageStep& step : OneForwardOneBackward(stage, stages, micro_batches))
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", step.backward ? "B" : "F", step.micro_batch);
  return text;
}

TEST(OneForwardOneBackward, OfFourStagesAndSixMicroBatches) {
  EXPECT_EQ(Text(0, 4, 6), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
  EXPECT_EQ(Text(1, 4, 6), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  EXPECT_EQ(Text(2, 4, 6), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5");
  EXPECT_EQ(Text(3, 4, 6), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

TEST(OneForwardOneBackward, OfFewMicroBatchesOrOneStage) {
  EXPECT_EQ(Text(0, 4, 2), "F0 F1 B0 B1");
  EXPECT_EQ(Text(2, 4, 2), "F0 F1 B0 B1");
  EXPECT_EQ(Text(3, 4, 2), "F0 B0 F1 B1");
  EXPECT_EQ(Text(0, 4, 4), "F0 F1 F2 F3 B0 B1 B2 B3");
  EXPECT_EQ(Text(0, 3, 1), "F0 B0");
  EXPECT_EQ(Text(0, 1, 3), "F0 B0 F1 B1 F2 B2");
}

TEST(OneForwardOneBackward, HoldsNoMoreMicroBatchesThanThereAreStagesBehind) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int stage = 0; stage < stages; ++stage) {
      for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
        int held = 0, most = 0;
        for (const StageStep& step : OneForwardOneBackward(stage, stages, micro_batches)) {
          held += step.backward ? -1 : 1;
          most = std::max(most, held);
        }
        EXPECT_EQ(held, 0);
        EXPECT_EQ(most, std::min(stages - stage, micro_batches));
      }
    }
  }
}

TEST(InterleavedSteps, OfTwoStagesWithTwoChunksEach) {
  const auto text = [](int stage, int stages, int chunks, int micro_batches) {
    std::string all;
    for (const StageStep& step : InterleavedSteps(stage, stages, chunks, micro_batches))
      all += fmt::format("{}{}{}{}", all.empty() ? "" : " ", step.backward ? "B" : "F", step.micro_batch,
                         step.chunk == 0 ? "" : "'");
    return all;
  };
  EXPECT_EQ(text(0, 2, 2, 4), "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3");
  EXPECT_EQ(text(1, 2, 2, 4), "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
  EXPECT_EQ(text(1, 2, 1, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
}

// The step of a chunk adds gradients up in the order of the micro-batches, and nobody waits for ever.
TEST(InterleavedSteps, DoEverythingOnceInOrder) {
  for (const int stages : {1, 2, 3, 4}) {
    for (const int chunks : {1, 2, 3}) {
      for (int micro_batches = stages; micro_batches <= 4 * stages; micro_batches += stages) {
        SCOPED_TRACE(fmt::format("{} stages, {} chunks, {} micro-batches", stages, chunks, micro_batches));
        const std::vector<double> one(static_cast<size_t>(stages * chunks), 1), two(one.size(), 2);
        const PipelineTimes times = TimesOf(one, two, stages, micro_batches);
        for (int stage = 0; stage < stages; ++stage) {
          const auto steps = InterleavedSteps(stage, stages, chunks, micro_batches);
          ASSERT_EQ(times.steps[static_cast<size_t>(stage)].size(), steps.size()) << "some waited for ever";
          std::vector<int> next(static_cast<size_t>(2 * chunks));
          for (const StageStep& step : steps)
            EXPECT_EQ(step.micro_batch, next[static_cast<size_t>(2 * step.chunk + (step.backward ? 1 : 0))]++);
          for (const int count : next) EXPECT_EQ(count, micro_batches);
        }
        // Narayanan et al. 2021: time spent waiting over that of the work is (S − 1)/(V·M).
        EXPECT_NEAR(times.bubble / (1 - times.bubble), (stages - 1.0) / (chunks * micro_batches), 1e-12);
      }
    }
  }
}

TEST(CutIntoStages, MakesTheDearestStageAsCheapAsPossible) {
  const auto cut = [](const std::vector<double>& costs, int stages) {
    auto result = CutIntoStages(costs, stages);
    EXPECT_TRUE(result.ok()) << Message(result.status());
    return result.ok() ? *result : std::vector<int>();
  };
  EXPECT_THAT(cut({1, 1, 1, 1}, 2), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(cut({1, 1, 1, 1, 1}, 2), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT(cut({5, 1, 1, 1}, 2), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(cut({1, 1, 1, 5}, 3), ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(cut({0, 0, 7}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(cut({3}, 1), ElementsAre(0));
  EXPECT_THAT(Message(CutIntoStages({1, 1}, 3).status()), HasSubstr("3 pipeline stages of a model of 2 blocks"));
}

TEST(PipelineTimes, OfEqualStagesHaveTheKnownBubble) {
  for (const int stages : {1, 2, 4, 8}) {
    for (const int micro_batches : {1, 4, 6, 32}) {
      const std::vector<double> one(static_cast<size_t>(stages), 1), two(static_cast<size_t>(stages), 2);
      const PipelineTimes times = TimesOf(one, two, stages, micro_batches);
      EXPECT_DOUBLE_EQ(times.makespan, 3 * (micro_batches + stages - 1));
      EXPECT_NEAR(times.bubble, (stages - 1.0) / (micro_batches + stages - 1), 1e-12);
    }
  }
}

TEST(PipelineTimes, OfUnequalStagesGoByTheDearest) {
  const PipelineTimes times = TimesOf({1, 3}, {2, 6}, 2, 10);
  EXPECT_DOUBLE_EQ(times.makespan, 1 + 10 * 9 + 2);
  EXPECT_DOUBLE_EQ(times.bubble, 1 - 120 / (2 * 93.0));
}

}  // namespace
}  // namespace switchyard
