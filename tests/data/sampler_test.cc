#include "core/data/sampler.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

std::vector<int64_t> Taken(DistributedSampler::Options options, int64_t epoch) {
  auto sampler = DistributedSampler::Create(options);
  EXPECT_TRUE(sampler.ok()) << Message(sampler.status());
  sampler->SetEpoch(epoch);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < sampler->length(); ++i) samples.push_back(sampler->At(i));
  return samples;
}

TEST(DistributedSampler, ElevenSamplesOnTwoRanksBecomeTwelvePaddedWithTheLeadingOne) {
  const auto first = Taken({11, 0, 2}, 3), second = Taken({11, 1, 2}, 3), alone = Taken({11, 0, 1}, 3);
  ASSERT_EQ(first.size(), 6u);
  ASSERT_EQ(second.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(first[i], alone[2 * i]);
    EXPECT_EQ(second[i], alone[(2 * i + 1) % 11]);
  }
}

TEST(DistributedSampler, TheUnionOverRanksCoversTheDatasetForEveryWorld) {
  for (const int64_t size : {1, 2, 7, 11, 64, 1000}) {
    for (int world = 1; world <= 5; ++world) {
      std::set<int64_t> seen;
      for (int rank = 0; rank < world; ++rank) {
        const auto samples = Taken({size, rank, world}, 1);
        EXPECT_EQ(static_cast<int64_t>(samples.size()), (size + world - 1) / world);
        seen.insert(samples.begin(), samples.end());
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), size - 1);
    }
  }
}

TEST(DistributedSampler, PaddingRepeatsTheOrderWhereThereAreFewerSamplesThanRanks) {
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(Taken({2, rank, 5, false}, 0), std::vector<int64_t>{rank % 2});
}

TEST(DistributedSampler, DropLastTakesTheFloorAndNothingTwice) {
  std::set<int64_t> seen;
  for (int rank = 0; rank < 2; ++rank) {
    const auto samples = Taken({11, rank, 2, true, true}, 0);
    EXPECT_EQ(samples.size(), 5u);
    seen.insert(samples.begin(), samples.end());
  }
  EXPECT_EQ(seen.size(), 10u);
}

TEST(DistributedSampler, OrderDependsOnSeedAndEpochAndNothingElse) {
  EXPECT_EQ(Taken({100, 0, 1}, 5), Taken({100, 0, 1}, 5));
  EXPECT_NE(Taken({100, 0, 1}, 5), Taken({100, 0, 1}, 6));
  EXPECT_NE(Taken({100, 0, 1, true, false, 1}, 5), Taken({100, 0, 1, true, false, 2}, 5));
  auto order = Taken({100, 0, 1}, 5);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, Taken({100, 0, 1, false}, 0));
}

TEST(DistributedSampler, RefusesWhatCannotBeSampled) {
  EXPECT_FALSE(DistributedSampler::Create({0, 0, 1}).ok());
  EXPECT_FALSE(DistributedSampler::Create({5, 2, 2}).ok());
  EXPECT_FALSE(DistributedSampler::Create({5, -1, 2}).ok());
  EXPECT_FALSE(DistributedSampler::Create({3, 0, 4, true, true}).ok());
}

TEST(EvaluationSampler, GivesAWholeToOneRank) {
  const auto of = [](int rank) { return *EvaluationSampler::Create(9, rank, 2, {0, 4, 5, 7}); };
  const auto taken = [](const EvaluationSampler& sampler) {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < sampler.length(); ++i) samples.push_back(sampler.At(i));
    return samples;
  };
  EXPECT_EQ(taken(of(0)), (std::vector<int64_t>{0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(taken(of(1)), (std::vector<int64_t>{4, 7, 8, -1, -1, -1}));
  EXPECT_FALSE(EvaluationSampler::Create(9, 0, 2, {1, 4}).ok());
  EXPECT_FALSE(EvaluationSampler::Create(9, 0, 2, {0, 4, 4}).ok());
  EXPECT_FALSE(EvaluationSampler::Create(9, 0, 2, {0, 9}).ok());
}

TEST(EvaluationSampler, EverySampleIsTakenExactlyOnceForEveryWorld) {
  for (const int64_t size : {1, 3, 8, 11}) {
    for (int world = 1; world <= 4; ++world) {
      std::vector<int> times(static_cast<size_t>(size), 0);
      for (int rank = 0; rank < world; ++rank) {
        const auto sampler = EvaluationSampler::Create(size, rank, world);
        ASSERT_TRUE(sampler.ok());
        EXPECT_EQ(sampler->length(), (size + world - 1) / world);
        for (int64_t i = 0; i < sampler->length(); ++i) {
          if (sampler->At(i) >= 0) ++times[static_cast<size_t>(sampler->At(i))];
        }
      }
      EXPECT_EQ(times, std::vector<int>(static_cast<size_t>(size), 1));
    }
  }
}

}  // namespace
}  // namespace switchyard
