#include "core/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/data/color.h"
#include "core/data/resize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/data/files_for_tests.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

TEST(Resize, GivesTheSameBytesAsPillow13) {
  // CRC-32 of PIL's Image.resize of Pattern(height, width, channels) with Pillow 13.0. Pillow 11.3 to 12.3 give others
  // where 13 resizes columns first, here from 300 x 200 and from 50 x 30 to 29 x 20; 50 x 30 to 30 x 20 is just not
  // such a case.
  struct {
    int height, width, channels, out_height, out_width;
    Interpolation interpolation;
    uint32_t crc;
  } cases[] = {
      {23, 17, 3, 10, 8, Interpolation::kBilinear, 0xA63D1F00u},
      {23, 17, 1, 10, 8, Interpolation::kBilinear, 0xEAD47EA1u},
      {23, 17, 3, 31, 40, Interpolation::kBilinear, 0xCA09E0F7u},
      {23, 17, 1, 31, 40, Interpolation::kBilinear, 0xE30EF5B7u},
      {23, 17, 3, 23, 9, Interpolation::kBilinear, 0xF3628C71u},
      {23, 17, 1, 23, 9, Interpolation::kBilinear, 0x37329F4Cu},
      {23, 17, 3, 7, 17, Interpolation::kBilinear, 0x8B28A3B2u},
      {23, 17, 1, 7, 17, Interpolation::kBilinear, 0x80F8D421u},
      {64, 48, 3, 5, 3, Interpolation::kBilinear, 0x9C4932A8u},
      {64, 48, 1, 5, 3, Interpolation::kBilinear, 0xAE826172u},
      {300, 200, 3, 224, 224, Interpolation::kBilinear, 0x311AA466u},
      {300, 200, 1, 224, 224, Interpolation::kBilinear, 0x94638526u},
      {50, 30, 3, 30, 20, Interpolation::kBilinear, 0x976DB22Fu},
      {50, 30, 3, 29, 20, Interpolation::kBilinear, 0x4F1858B4u},
      {30, 50, 3, 20, 29, Interpolation::kBilinear, 0x47EBE2ADu},
      {23, 17, 3, 10, 8, Interpolation::kBicubic, 0x6D4C742Eu},
      {23, 17, 1, 31, 40, Interpolation::kBicubic, 0x9A6E05FAu},
      {300, 200, 3, 224, 224, Interpolation::kBicubic, 0xF32364A1u},
      {200, 300, 3, 224, 336, Interpolation::kBicubic, 0x76EA6982u},
  };
  for (const auto& c : cases) {
    Image out;
    Resize(Whole(Pattern(c.height, c.width, c.channels)), c.out_height, c.out_width, c.interpolation, &out);
    EXPECT_EQ(Crc(out.bytes), c.crc) << c.height << "x" << c.width << "x" << c.channels << " to " << c.out_height << "x"
                                     << c.out_width << " " << InterpolationName(c.interpolation);
  }
}

TEST(Resize, OfAPartEqualsThatOfItsCopy) {
  const Image image = Pattern(40, 30, 3);
  Image part, a, b;
  part.Reshape(20, 11, 3);
  for (int y = 0; y < 20; ++y) std::copy_n(image.Row(y + 5) + 7 * 3, 33, part.Row(y));
  for (const int height : {8, 16}) {  // columns first, rows first
    Resize(Crop(image, 5, 7, 20, 11), height, 9, Interpolation::kBilinear, &a);
    Resize(Whole(part), height, 9, Interpolation::kBilinear, &b);
    EXPECT_EQ(a.bytes, b.bytes);
  }
}

TEST(Resize, FiltersAreKnownByName) {
  for (const char* name : {"bilinear", "bicubic"}) EXPECT_EQ(InterpolationName(*ParseInterpolation(name)), name);
  EXPECT_THAT(Message(ParseInterpolation("bicubix").status()), HasSubstr("did you mean bicubic?"));
}

TEST(Color, GivesTheSameBytesAsPil) {
  const auto changed = [](auto change) {
    Image image = Pattern(23, 17, 3);
    change(&image);
    return Crc(image.bytes);
  };
  EXPECT_EQ(changed([](Image* image) { AdjustBrightness(1.25f, image); }), 0xEA76BC0Cu);
  EXPECT_EQ(changed([](Image* image) { AdjustContrast(0.625f, image); }), 0x69B0337Fu);
  EXPECT_EQ(changed([](Image* image) { AdjustSaturation(1.75f, image); }), 0x38643EE6u);
  EXPECT_EQ(changed([](Image* image) { AdjustSaturation(0, image); }), 0x8C22FD97u);
  EXPECT_EQ(changed([](Image* image) { ConvertChannels(1, image); }), 0xF84382DAu);
}

TEST(Color, ContrastBlendsWithTheRoundedMean) {
  Image image;
  image.Reshape(1, 2, 1);
  image.bytes = {10, 11};
  AdjustContrast(0, &image);
  EXPECT_EQ(image.bytes, (Bytes{11, 11}));
}

TEST(Color, HueTurnsRedIntoGreenIntoBlueAndAFullCircleChangesNothing) {
  Image image;
  image.Reshape(1, 2, 3);
  const Bytes red = {200, 10, 10, 90, 90, 90};
  image.bytes = red;
  AdjustHue(1.0f / 3, &image);
  EXPECT_EQ(image.bytes, (Bytes{10, 200, 10, 90, 90, 90}));
  AdjustHue(1.0f / 3, &image);
  EXPECT_EQ(image.bytes, (Bytes{10, 10, 200, 90, 90, 90}));
  AdjustHue(1.0f / 3, &image);
  EXPECT_EQ(image.bytes, red);
  image = Pattern(16, 16, 3);
  AdjustHue(0, &image);
  EXPECT_EQ(image.bytes, Pattern(16, 16, 3).bytes);
}

std::vector<float> Applied(const TransformOptions& options, Image image, int64_t epoch = 0, int64_t index = 0) {
  const auto transform = Transform::Create(options);
  EXPECT_TRUE(transform.ok()) << Message(transform.status());
  std::vector<float> out(static_cast<size_t>(transform->elements()), -99);
  transform->Apply(epoch, index, &image, out.data());
  return out;
}

TransformOptions Plain(int image_size, int channels, Augmentation augmentation, bool train) {
  TransformOptions options;
  options.evaluation = {
      .image_size = image_size, .channels = channels, .resize = image_size, .mean = {0}, .std = {1.0f / 255}};
  options.augmentation = augmentation;
  options.train = train;
  return options;
}

std::vector<float> Floats(const Image& image) { return {image.bytes.begin(), image.bytes.end()}; }

// Whether the numbers are equal up to the rounding of normalisation.
bool Near(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) { return std::abs(x - y) < 1e-3f; });
}

TEST(Transform, NormalisesEachChannelWithItsOwnStatistics) {
  TransformOptions options = Plain(4, 3, Augmentation::kNone, false);
  options.evaluation.mean = kImageNetMean;
  options.evaluation.std = kImageNetStd;
  const auto out = Applied(options, Pattern(4, 4, 3));
  for (size_t i = 0; i < out.size(); ++i) {
    const float expected =
        (static_cast<float>(Pattern(4, 4, 3).bytes[i]) / 255 - kImageNetMean[i % 3]) / kImageNetStd[i % 3];
    EXPECT_FLOAT_EQ(out[i], expected);
  }
}

TEST(Transform, AnImageTooNarrowToBeResizedIsRefused) {
  TransformOptions options = Plain(224, 3, Augmentation::kCrop, true);
  options.evaluation.resize = 256;
  const auto refuses = [&](int width) {
    Image image;
    image.Reshape(1, width, 1);
    return !Transform::Create(options)->CheckExtents(image).ok();
  };
  EXPECT_FALSE(refuses((1 << 28) / 224 / 224));
  EXPECT_TRUE(refuses((1 << 28) / 224 / 224 + 1));
  options.train = false;
  EXPECT_FALSE(refuses((1 << 28) / 256 / 256));
  EXPECT_TRUE(refuses((1 << 28) / 256 / 256 + 1));
  options.evaluation.resize = 0;
  EXPECT_FALSE(refuses(60'000));
}

TEST(Transform, EvaluationResizesTheShorterSideAndTakesTheCentre) {
  Image resized, image = Pattern(50, 80, 3);
  Resize(Whole(image), 32, 51, Interpolation::kBicubic, &resized);
  Image expected;
  expected.Reshape(28, 28, 3);
  for (int y = 0; y < 28; ++y) std::copy_n(resized.Row(y + 2) + 11 * 3, 28 * 3, expected.Row(y));
  TransformOptions options = Plain(28, 3, Augmentation::kNone, false);
  options.evaluation.resize = ResizeForCrop(28, 0.875f);
  options.evaluation.interpolation = Interpolation::kBicubic;
  EXPECT_TRUE(Near(Applied(options, image), Floats(expected)));
  // Where timm and torchvision take it: behind 12 of 23 columns, as 11.5 is rounded, and behind 2 of 5, as 2.5 is.
  options.evaluation.crop_offset = CropOffset::kHalfEven;
  for (int y = 0; y < 28; ++y) std::copy_n(resized.Row(y + 2) + 12 * 3, 28 * 3, expected.Row(y));
  EXPECT_TRUE(Near(Applied(options, image), Floats(expected)));
  const Image small = Pattern(33, 33, 3);
  for (int y = 0; y < 28; ++y) std::copy_n(small.Row(y + 2) + 2 * 3, 28 * 3, expected.Row(y));
  options.evaluation.resize = 33;
  EXPECT_TRUE(Near(Applied(options, small), Floats(expected)));
  // Or, with no side to resize to, the whole image stretched.
  Resize(Whole(image), 28, 28, Interpolation::kBicubic, &expected);
  options.evaluation.resize = 0;
  EXPECT_TRUE(Near(Applied(options, image), Floats(expected)));
}

TEST(Transform, EvaluationDoesNotDependOnTheAugmentationOfTraining) {
  const Image image = Pattern(50, 80, 3);
  TransformOptions options = Plain(28, 3, Augmentation::kNone, false);
  options.evaluation.resize = 32;
  const std::vector<float> expected = Applied(options, image);
  for (const auto augmentation : {Augmentation::kCrop, Augmentation::kCropFlip, Augmentation::kResizedCrop}) {
    options.augmentation = augmentation;
    EXPECT_EQ(Applied(options, image), expected) << AugmentationName(augmentation);
  }
}

TEST(EvaluationTransform, GoesThroughJsonAndNamesWhatIsWrongThere) {
  const EvaluationTransform transform = {.image_size = 28,
                                         .resize = 32,
                                         .interpolation = Interpolation::kBicubic,
                                         .mean = kImageNetMean,
                                         .std = kImageNetStd,
                                         .crop_offset = CropOffset::kHalfEven};
  const nlohmann::json json = ToJson(transform);
  const auto back = EvaluationTransformFromJson(nlohmann::json::parse(json.dump()));
  ASSERT_TRUE(back.ok()) << Message(back.status());
  EXPECT_EQ(*back, transform);
  const auto error = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json changed = json;
    changed[field] = value;
    return Message(EvaluationTransformFromJson(changed).status());
  };
  EXPECT_THAT(error("image_size", "28"), HasSubstr("image_size: expected a whole number, found string"));
  EXPECT_THAT(error("image_size", 1e30), HasSubstr("image_size"));
  EXPECT_THAT(error("resize", 27), HasSubstr("resize: expected 28"));
  EXPECT_THAT(error("channels", 2), HasSubstr("channels"));
  EXPECT_THAT(error("interpolation", nullptr), HasSubstr("interpolation"));
  EXPECT_THAT(error("crop_offset", "up"), HasSubstr("crop_offset: expected \"down\" or \"half_even\", found \"up\""));
  EXPECT_THAT(error("mean", {1, 2}), HasSubstr("mean: expected one number or 3"));
  EXPECT_THAT(error("std", nlohmann::json::array({{1}})), HasSubstr("std: expected numbers, found array"));
  nlohmann::json without = json;
  without.erase("mean");
  EXPECT_THAT(Message(EvaluationTransformFromJson(without).status()), HasSubstr("mean"));
  EXPECT_THAT(Message(EvaluationTransformFromJson(nlohmann::json::array()).status()), HasSubstr("expected an object"));
}

TEST(Transform, RepeatsGreyForColourModelsAndTheReverse) {
  const auto grey = Applied(Plain(5, 1, Augmentation::kNone, false), Pattern(5, 5, 1));
  const auto colour = Applied(Plain(5, 3, Augmentation::kNone, false), Pattern(5, 5, 1));
  for (size_t i = 0; i < colour.size(); ++i) EXPECT_EQ(colour[i], grey[i / 3]);
  EXPECT_EQ(Applied(Plain(5, 1, Augmentation::kNone, false), Pattern(5, 5, 3)).size(), 25u);
}

TEST(Transform, IsAFunctionOfSeedEpochAndIndex) {
  for (const auto augmentation : {Augmentation::kCrop, Augmentation::kCropFlip, Augmentation::kResizedCrop}) {
    TransformOptions options = Plain(24, 3, augmentation, true);
    options.brightness = options.contrast = options.saturation = 0.4f;
    options.hue = 0.1f;
    const Image image = Pattern(30, 26, 3);
    const auto first = Applied(options, image, 3, 7);
    EXPECT_EQ(first, Applied(options, image, 3, 7));
    EXPECT_NE(first, Applied(options, image, 4, 7));
    EXPECT_NE(first, Applied(options, image, 3, 8));
    options.seed = 43;
    EXPECT_NE(first, Applied(options, image, 3, 7));
  }
}

TEST(Transform, PaddedCropsShiftTheImageByAtMostThePaddingAndMirrorHalfOfThem) {
  TransformOptions options = Plain(8, 1, Augmentation::kCropFlip, true);
  options.crop_padding = 2;
  Image image;
  image.Reshape(8, 8, 1);
  for (int i = 0; i < 64; ++i) image.bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(i + 1);
  std::set<std::vector<float>> shifted[2];  // every possible result, straight and mirrored
  for (int top = -2; top <= 2; ++top) {
    for (int left = -2; left <= 2; ++left) {
      std::vector<float> straight(64), mirrored(64);
      for (int y = 0; y < 8; ++y) {
        for (int x = 0; x < 8; ++x) {
          const bool inside = y + top >= 0 && y + top < 8 && x + left >= 0 && x + left < 8;
          const float value = inside ? static_cast<float>((y + top) * 8 + x + left + 1) : 0;
          straight[static_cast<size_t>(y * 8 + x)] = mirrored[static_cast<size_t>(y * 8 + 7 - x)] = value;
        }
      }
      shifted[0].insert(straight), shifted[1].insert(mirrored);
    }
  }
  std::set<std::vector<float>> seen;
  int mirrored = 0;
  for (int index = 0; index < 1000; ++index) {
    auto out = Applied(options, image, 0, index);
    for (float& value : out) value = std::round(value);
    ASSERT_TRUE(shifted[0].count(out) || shifted[1].count(out));
    mirrored += static_cast<int>(shifted[1].count(out));
    seen.insert(out);
  }
  EXPECT_EQ(seen.size(), 50u);
  EXPECT_NEAR(mirrored, 500, 60);
}

TEST(Transform, ResizedCropsStayWithinTheirScaleAndTheImage) {
  TransformOptions options = Plain(16, 1, Augmentation::kResizedCrop, true);
  options.flip_probability = 0;
  Image ramp;  // grows to the right, so that a crop's edges tell where it was taken
  ramp.Reshape(64, 200, 1);
  for (int y = 0; y < 64; ++y) {
    for (int x = 0; x < 200; ++x) ramp.Row(y)[x] = static_cast<uint8_t>(x);
  }
  float least = 255, most = 0;
  for (int index = 0; index < 500; ++index) {
    const auto out = Applied(options, ramp, 0, index);
    EXPECT_LE(out[15] - out[0], 90);  // at most 64 high, aspect at most 4/3
    least = std::min(least, out[0]), most = std::max(most, out[15]);
  }
  EXPECT_LT(least, 10);
  EXPECT_GT(most, 190);
}

TEST(Transform, AcceptsImagesOfEveryShape) {
  for (const auto augmentation :
       {Augmentation::kNone, Augmentation::kCrop, Augmentation::kCropFlip, Augmentation::kResizedCrop}) {
    for (const bool train : {false, true}) {
      for (const auto& [height, width] : {std::pair{1, 1}, {1, 300}, {300, 1}, {7, 5}, {2, 64}}) {
        for (int index = 0; index < 5; ++index) {
          const auto out = Applied(Plain(16, 3, augmentation, train), Pattern(height, width, 3), 0, index);
          EXPECT_GE(*std::min_element(out.begin(), out.end()), 0);
          EXPECT_LE(*std::max_element(out.begin(), out.end()), 255.01f);
        }
      }
    }
  }
}

TEST(Transform, RefusesWrongOptionsByName) {
  const auto error = [](auto change) {
    TransformOptions options;
    change(&options);
    const auto transform = Transform::Create(options);
    return transform.ok() ? "no error" : Message(transform.status());
  };
  EXPECT_THAT(error([](TransformOptions* o) { o->evaluation.image_size = 0; }), HasSubstr("image_size"));
  EXPECT_THAT(error([](TransformOptions* o) { o->evaluation.channels = 2; }), HasSubstr("channels"));
  EXPECT_THAT(error([](TransformOptions* o) {
                o->evaluation.mean = {0.1f, 0.2f};
              }),
              HasSubstr("mean: expected one number or 3"));
  EXPECT_THAT(error([](TransformOptions* o) { o->evaluation.std = {0}; }), HasSubstr("std"));
  EXPECT_THAT(error([](TransformOptions* o) { o->min_scale = 2; }), HasSubstr("min_scale"));
  EXPECT_THAT(error([](TransformOptions* o) { o->hue = std::nanf(""); }), HasSubstr("hue"));
}

TEST(Augmentation, NamesGoThereAndBackAndAMistypedOneGetsASuggestion) {
  for (const char* name : {"none", "crop", "crop_flip", "resized_crop"}) {
    EXPECT_EQ(AugmentationName(*ParseAugmentation(name)), name);
  }
  EXPECT_THAT(Message(ParseAugmentation("crop_flop").status()), HasSubstr("did you mean crop_flip?"));
}

}  // namespace
}  // namespace switchyard
