#include "core/data/mixing.h"

#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

TEST(Mixing, GivesTheImagesAndTargetsOfTimm) {
  const auto recorded = nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/mixing.json"));
  const std::vector<int> shape = recorded["shape"], labels = recorded["labels"];
  const int classes = recorded["classes"], elements = shape[1] * shape[2] * shape[3];
  const float smoothing = recorded["smoothing"];
  for (const auto& c : recorded["cases"]) {
    std::vector<Mix> mixes;
    for (const auto& m : c["mixes"]) {
      Mix& mix = mixes.emplace_back(Mix{.share = m["share"], .cut = !m["box"].is_null()});
      if (mix.cut) mix.top = m["box"][0], mix.bottom = m["box"][1], mix.left = m["box"][2], mix.right = m["box"][3];
    }
    std::vector<float> images;
    std::vector<uint8_t> bytes;
    for (int i = 0; i < shape[0] * elements; ++i) {
      images.push_back(static_cast<float>(i * 7 % 256));
      bytes.push_back(static_cast<uint8_t>(i * 7 % 256));
    }
    MixImages(mixes, shape[1], shape[2], shape[3], images.data());
    MixImages(mixes, shape[1], shape[2], shape[3], bytes.data());
    for (size_t i = 0; i < images.size(); ++i) {
      const float expected = c["images"][i];
      ASSERT_NEAR(images[i], expected, 2e-4) << c["mode"] << " element " << i;
      ASSERT_NEAR(bytes[i], expected, 0.5003) << c["mode"] << " element " << i;
    }
    const float off = smoothing / static_cast<float>(classes);
    for (size_t i = 0; i < mixes.size(); ++i) {
      for (int k = 0; k < classes; ++k) {
        const auto target = [&](size_t sample) { return off + (labels[sample] == k ? 1 - smoothing : 0); };
        EXPECT_NEAR(c["targets"][i * static_cast<size_t>(classes) + static_cast<size_t>(k)].get<float>(),
                    mixes[i].share * target(i) + (1 - mixes[i].share) * target(mixes.size() - 1 - i), 1e-6);
      }
    }
  }
}

TEST(Mixing, SharesHaveTheBetaDistribution) {
  for (const float alpha : {0.05f, 0.2f, 0.8f, 1.0f, 5.0f}) {
    double sum = 0, squares = 0;
    constexpr int kDraws = 20000;
    for (int key = 0; key < kDraws; ++key) {
      RandomStream random(Key(3, key));
      const double share = DrawMix({.mixup = alpha}, 8, 8, &random).share;
      ASSERT_TRUE(share >= 0 && share <= 1);
      sum += share, squares += share * share;
    }
    const double mean = sum / kDraws, variance = 1 / (4 * (2.0 * alpha + 1));
    EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(squares / kDraws - mean * mean, variance, 0.03 * variance) << alpha;
  }
}

TEST(Mixing, ChoosesAsAskedAndTheShareIsWhatTheRectangleLeaves) {
  int mixed = 0, cut = 0;
  for (int key = 0; key < 4000; ++key) {
    RandomStream random(Key(5, key));
    const Mix mix =
        DrawMix({.mixup = 0.8f, .cutmix = 1, .probability = 0.6f, .switch_probability = 0.25f}, 20, 30, &random);
    mixed += mix.share != 1 || mix.cut, cut += mix.cut;
    if (mix.cut) {
      EXPECT_FLOAT_EQ(mix.share, 1 - static_cast<float>((mix.bottom - mix.top) * (mix.right - mix.left)) / 600);
    }
    RandomStream bounded(Key(6, key));
    const Mix inside = DrawMix({.cutmix = 1, .cutmix_minmax = {{0.2f, 0.6f}}}, 20, 30, &bounded);
    EXPECT_TRUE(inside.bottom - inside.top >= 4 && inside.bottom - inside.top < 12 && inside.bottom <= 20);
    EXPECT_TRUE(inside.right - inside.left >= 6 && inside.right - inside.left < 18 && inside.right <= 30);
  }
  EXPECT_NEAR(mixed, 2400, 120);
  EXPECT_NEAR(cut, 600, 90);
}

TEST(Mixing, DrawsDependOnThePlaceInTheGlobalBatchAlone) {
  const auto draws = [](MixingOptions::Mode mode, std::vector<int32_t> positions) {
    return DrawMixes({.mixup = 0.8f, .mode = mode}, 2, 3, positions, 8, 8);
  };
  const auto batch = draws(MixingOptions::kBatch, {0, 1, 2, 3});
  for (const Mix& mix : batch) EXPECT_EQ(mix.share, batch[0].share);
  EXPECT_EQ(draws(MixingOptions::kBatch, {0, 2})[0].share, batch[0].share);
  const auto pair = draws(MixingOptions::kPair, {0, 1, 2, 3}), elem = draws(MixingOptions::kElem, {0, 1, 2, 3});
  EXPECT_EQ(pair[0].share, pair[3].share);
  EXPECT_NE(pair[0].share, pair[1].share);
  EXPECT_NE(elem[0].share, elem[3].share);
  EXPECT_EQ(draws(MixingOptions::kElem, {1, 3})[1].share, elem[3].share);
}

TEST(Mixing, RefusesOddBatchesAndWrongSides) {
  EXPECT_TRUE(Check(MixingOptions(), 3).ok());
  EXPECT_THAT(Message(Check({.mixup = 1}, 3)), HasSubstr("--batch_size=3 is odd"));
  EXPECT_THAT(Message(Check({.cutmix = 1, .cutmix_minmax = {{0.8f, 0.2f}}}, 2)), HasSubstr("found 0.8,0.2"));
  EXPECT_THAT(Message(ParseMixingMode("element").status()), HasSubstr("expected batch, pair or elem"));
}

}  // namespace
}  // namespace switchyard
