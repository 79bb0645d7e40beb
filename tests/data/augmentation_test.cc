// RandAugment and random erasing.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "core/data/rand_augment.h"
#include "core/data/random_erasing.h"
#include "core/data/transforms.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/data/files_for_tests.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

// Every pixel of every op; recorded by tools/fixtures/record_augmentation.py.
TEST(RandAugment, OpsGiveTheSameBytesAsTimm) {
  std::ifstream file(SWITCHYARD_FIXTURES "/augmentation.json");
  const auto recorded = nlohmann::json::parse(file);
  const auto& names = AugmentOpNames();
  std::map<std::string, int> seen;
  for (const auto& c : recorded.at("cases")) {
    const auto op = std::find(names.begin(), names.end(), c.at("op").get<std::string>());
    ASSERT_NE(op, names.end()) << c;
    const int channels = c.at("channels");
    auto fill = recorded.at("fill").get<std::vector<uint8_t>>();
    fill.resize(static_cast<size_t>(channels));
    Image image = Pattern(recorded.at("height"), recorded.at("width"), channels);
    Apply(static_cast<AugmentOp>(op - names.begin()),
          {.magnitude = c.at("magnitude"),
           .negate = c.at("negate"),
           .increasing = c.at("increasing"),
           .interpolation = *ParseInterpolation(c.at("filter")),
           .fill = fill},
          &image);
    EXPECT_EQ(Crc(image.bytes), c.at("crc").get<uint32_t>()) << c;
    ++seen[*op];
  }
  EXPECT_EQ(seen.size(), names.size());
}

TEST(RandAugment, EqualizeCutsOffWhatGrowsBeyondAByte) {
  Image image;
  image.Reshape(1, 511, 1);
  for (int i = 0; i < 511; ++i) image.bytes[static_cast<size_t>(i)] = i < 510 ? 7 : 200;  // a step of two pixels
  Apply(AugmentOp::kEqualize, {}, &image);
  EXPECT_EQ(image.bytes[0], 0);
  EXPECT_EQ(image.bytes[510], 255);
}

TEST(RandAugment, NoBitsLeftIsBlack) {
  Image image = Pattern(5, 4, 3);
  Apply(AugmentOp::kPosterize, {.magnitude = 10, .increasing = true}, &image);
  EXPECT_EQ(image.bytes, Bytes(5 * 4 * 3, 0));
}

TEST(RandAugment, IsWrittenAsTimmWritesIt) {
  const auto policy = ParseRandAugment("rand-m9-n3-mstd0.5-mmax12-p0.7-inc1");
  ASSERT_TRUE(policy.ok()) << Message(policy.status());
  EXPECT_EQ(policy->layers, 3);
  EXPECT_EQ(policy->magnitude, 9);
  EXPECT_EQ(policy->magnitude_std, 0.5);
  EXPECT_EQ(policy->magnitude_max, 12);
  EXPECT_EQ(policy->probability, 0.7f);
  EXPECT_TRUE(policy->increasing);
  EXPECT_EQ(ParseRandAugment("rand")->layers, 2);
  for (const char* wrong : {"", "original", "rand-", "rand-m", "rand-n0", "rand-n1.5", "rand-m-3", "rand-p2", "rand-q1",
                            "rand-inc2", "rand-m1e400", "rand-mstdnan"}) {
    EXPECT_THAT(Message(ParseRandAugment(wrong).status()), HasSubstr("rand-m9-mstd0.5-inc1")) << wrong;
  }
}

// What 20,000 draws of a policy do to an image of one level, where the level tells which op it was.
std::map<int, int> LevelsAfter(const std::string& words, uint8_t level) {
  const RandAugment policy = *ParseRandAugment(words);
  const std::vector<Interpolation> filters = {Interpolation::kBilinear};
  const std::vector<uint8_t> fill = {level};
  std::map<int, int> levels;
  for (int i = 0; i < 20000; ++i) {
    Image image;
    image.Reshape(1, 1, 1);
    image.bytes = {level};
    RandomStream random(Key(7, i));
    Apply(policy, filters, fill, &random, &image);
    ++levels[image.bytes[0]];
  }
  return levels;
}

TEST(RandAugment, DrawsEachOpWithTheSameProbability) {
  // Of 15 ops with magnitude 5, at level 100: invert gives 155, posterize to 2 bits 64, solarize below 128 nothing,
  // solarize_add 155, brightness by 1 nothing.
  const auto levels = LevelsAfter("rand-n1-m5-p0.5", 100);
  EXPECT_NEAR(levels.at(155), 20000 * 0.5 * 2 / 15, 150);
  EXPECT_NEAR(levels.at(64), 20000 * 0.5 / 15, 110);
  EXPECT_EQ(levels.size(), 3u);
  EXPECT_NEAR(LevelsAfter("rand-n1-m5-p1", 100).at(64), 20000.0 / 15, 150);
}

TEST(RandAugment, StrengthFollowsANormalDistributionThatIsCutOff) {
  // Of level 200, brightness alone makes levels from 10 to 180: 200 (1 - 0.09 m); 55, the inverse, and 128, one bit,
  // are left out.
  const auto spread = [](const std::string& words) {
    double sum = 0, squares = 0, count = 0;
    for (const auto& [level, times] : LevelsAfter(words, 200)) {
      if (level < 10 || level > 180 || level == 55 || level == 128) continue;
      const double m = (200 - level - 0.5) / 18;
      sum += times * m, squares += times * m * m, count += times;
    }
    const double mean = sum / count;
    return std::pair(mean, std::sqrt(squares / count - mean * mean));
  };
  const auto [mean, deviation] = spread("rand-n1-m5-mstd0.5-p1-inc1");
  EXPECT_NEAR(mean, 5, 0.08);
  EXPECT_NEAR(deviation, 0.5, 0.06);
  // Uniform from 1.1, where level 180 is, to 8.
  EXPECT_NEAR(spread("rand-n1-m8-mstd101-p1-inc1").second, 6.9 / std::sqrt(12.0), 0.1);
}

TEST(RandAugment, StrengthEndsAtTenOrWhereItIsTold) {
  // Brightness of level 40, not increasing: 0.1 and 0.18 m times as much.
  const auto levels = LevelsAfter("rand-n1-m20-p1", 40), beyond = LevelsAfter("rand-n1-m20-mmax20-p1", 40);
  EXPECT_TRUE(levels.contains(76));
  EXPECT_FALSE(levels.contains(148));
  EXPECT_TRUE(beyond.contains(148));
}

TransformOptions Photographs() {
  TransformOptions options;
  options.evaluation = {.image_size = 24, .channels = 3, .resize = 24, .mean = kImageNetMean, .std = kImageNetStd};
  options.train = true;
  return options;
}

Bytes Applied(const TransformOptions& options, int64_t epoch, int64_t index) {
  const auto transform = Transform::Create(options);
  EXPECT_TRUE(transform.ok()) << Message(transform.status());
  Image image = Pattern(40, 30, 3);
  Bytes out(static_cast<size_t>(transform->elements()));
  transform->ApplyBytes(epoch, index, &image, out.data());
  return out;
}

TEST(Augmentation, IsAFunctionOfSeedEpochAndIndex) {
  const TransformOptions plain = Photographs();
  TransformOptions policy = plain, erasing = plain, filters = plain;
  policy.rand_augment = *ParseRandAugment("rand-m9-n4-p1-mstd0.5-inc1");
  erasing.erasing = {.probability = 1, .mode = EraseMode::kPixel};
  filters.filters = {Interpolation::kBilinear, Interpolation::kBicubic};
  for (TransformOptions options : {policy, erasing, filters}) {
    const Bytes first = Applied(options, 3, 5);
    EXPECT_EQ(Applied(options, 3, 5), first);
    EXPECT_NE(Applied(options, 4, 5), first);
    EXPECT_NE(Applied(options, 3, 6), first);
    EXPECT_NE(Applied(plain, 3, 5), first);
    options.seed = 43;
    EXPECT_NE(Applied(options, 3, 5), first);
    options.train = false;
    TransformOptions evaluation = plain;
    evaluation.train = false;
    EXPECT_EQ(Applied(options, 3, 5), Applied(evaluation, 3, 5)) << "nothing is random in evaluation";
  }
}

TEST(Augmentation, TrainingMayHaveAFilterOfItsOwn) {
  TransformOptions own = Photographs(), both = Photographs();
  own.filters = {Interpolation::kBicubic};
  both.evaluation.interpolation = Interpolation::kBicubic;
  EXPECT_EQ(Applied(own, 1, 2), Applied(both, 1, 2));
}

// The share of erased pixels and how many images have any; 200 stands for what is not erased.
struct Erased {
  double share = 0, images = 0;
  std::map<int, int> levels;
};
Erased EraseMany(const RandomErasing& erasing) {
  Erased result;
  constexpr int kImages = 4000, kSide = 20;
  const std::vector<float> mean = {0.5f}, std = {0.1f};
  for (int i = 0; i < kImages; ++i) {
    Image image;
    image.Reshape(kSide, kSide, 1);
    std::fill(image.bytes.begin(), image.bytes.end(), uint8_t{0});
    RandomStream random(Key(11, i));
    Erase(erasing, mean, std, &random, &image);
    const auto left = std::count(image.bytes.begin(), image.bytes.end(), 0);
    result.share += 1 - static_cast<double>(left) / (kSide * kSide);
    result.images += left < kSide * kSide;
    for (const uint8_t byte : image.bytes) ++result.levels[byte];
  }
  result.levels.erase(0);
  result.share /= result.images;
  result.images /= kImages;
  return result;
}

TEST(RandomErasing, TakesAsMuchAsItShould) {
  const Erased one = EraseMany({.probability = 0.25f});
  EXPECT_NEAR(one.images, 0.25, 0.02);
  EXPECT_EQ(one.levels.size(), 1u);
  EXPECT_EQ(one.levels.begin()->first, 128) << "the mean";
  // The mean of 0.02 and 1/3, less the few rectangles of extreme shape that do not fit.
  EXPECT_NEAR(one.share, 0.175, 0.01);
  const Erased three = EraseMany({.probability = 1, .max_count = 3});
  EXPECT_GT(three.images, 0.99);
  EXPECT_LT(three.share, one.share) << "overlaps";
  EXPECT_GT(three.share, 0.8 * one.share) << "rectangles share the area";
}

TEST(RandomErasing, NoiseHasTheStatisticsOfNormalisation) {
  for (const EraseMode mode : {EraseMode::kRand, EraseMode::kPixel}) {
    const Erased erased = EraseMany({.probability = 1, .mode = mode});
    double sum = 0, squares = 0, count = 0;
    for (const auto& [level, times] : erased.levels) {
      sum += level * double(times), squares += double(level) * level * times, count += times;
    }
    const double mean = sum / count;
    EXPECT_NEAR(mean, 127.5, 1.5);
    EXPECT_NEAR(std::sqrt(squares / count - mean * mean), 25.5, 1);
  }
}

TEST(RandomErasing, ModesAreKnownByName) {
  EXPECT_EQ(*ParseEraseMode("pixel"), EraseMode::kPixel);
  EXPECT_THAT(Message(ParseEraseMode("pixle").status()), HasSubstr("did you mean pixel?"));
}

}  // namespace
}  // namespace switchyard
